"""The graph of a model in llama.cpp: its sizes, by its spec, and what is special in its architecture."""

from __future__ import annotations

from estimator.contract.errors import NotModelled
from estimator.families import having
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.families.windows import FULL, SLIDING, WindowedSpec, layer_types
from estimator.serving.llamacpp.latents import indexer_of, latent_of, unfolded_of
from estimator.serving.llamacpp.mixers import mixers_of, rotary_of, state_of
from estimator.serving.llamacpp.shape import Experts, Shape, Sharing
from estimator.serving.llamacpp.special import ROUTINGS, SHARED, SPARSE, SPECIAL, TURNED_IN_WINDOWS, UNTURNED, WINDOWED


def check_graph(spec: ModelSpec, field: str) -> None:
    """Raise `NotModelled` for a model whose graph is not known here."""
    text = spec.language_model
    if text.can.graph is None:
        known = ", ".join(having(lambda kind: kind.can.graph is not None))
        raise NotModelled(f"llama.cpp with {text.model_type} models is not modelled yet; {known} are", field)
    if text.can.graph == "falcon-1" and (text.alibi or not text.parallel_attn):  # type: ignore[attr-defined]
        raise NotModelled(
            "llama.cpp's graph of Falcon turns queries and keys, and has both halves of a layer side by side: Falcon-RW is not "
            "modelled",
            field,
        )
    if text.can.graph == "thinned" and not text.evenly_thinned:  # type: ignore[attr-defined]
        raise NotModelled(
            "llama.cpp's graph of Llama-Nemotron is modelled where all layers that attend have as many key heads, and none has a "
            "linear layer in the place of a half",
            field,
        )
    if text.can.graph == "stable-lm" and (text.qk_layernorm or text.use_parallel_residual):  # type: ignore[attr-defined]
        raise NotModelled("llama.cpp's graph of StableLM 2 12B, with norms of queries and keys, is not modelled yet", field)


def shape_of(spec: ModelSpec) -> Shape:
    """What llama.cpp's graph asks of a model."""
    kind = spec.can.graph
    assert kind is not None
    special = dict(SPECIAL.get(f"{kind}, encoding", SPECIAL[kind]) if spec.encodes else SPECIAL[kind])
    if getattr(spec, "attention_bias", False):
        special["biased"] = True
    if getattr(spec, "qk_norm", False) and "normed" not in special:
        special["normed"] = "heads"
    if getattr(spec, "use_parallel_residual", False):
        special["parallel"] = "normed apart"
    special["clipped"] = clips(spec)
    if getattr(spec, "use_qkv_bias", False):
        special["biased"] = True
    if getattr(spec, "final_logit_softcapping", None):
        special["after_logits"] = ("scale", "unary", "scale")
    latent = latent_of(spec)
    heads, keys, head = heads_of(spec)
    wide = value_head(spec)
    values = most_values(spec)
    if latent:
        head, wide, values = latent.plain + latent.rotary, spec.config()["v_head_dim"], 0
    return Shape(
        hidden=spec.hidden_size,
        head=head,
        heads=heads,
        key_heads=keys,
        second_norm=getattr(spec, "two_norms", False),
        values=values,
        values_wide=wide,
        wide=fed_width(spec),
        vocabulary=vocabulary(spec),
        layers=spec.num_hidden_layers,
        rotary=rotary(spec),
        sliding=sliding(spec),
        experts=experts_of(spec),
        latent=latent,
        unfolded=unfolded_of(spec),
        indexer=indexer_of(spec),
        mixers=mixers_of(spec),
        state=state_of(spec),
        sharing=sharing_of(spec),
        thinned=thinned_of(spec),
        streams=getattr(spec, "altup_num_inputs", 1),
        bypass=getattr(spec, "laurel_rank", 0),
        whole_keys=whole_keys(spec),
        normed_bare=spec.can.graph == "llama-4" and bool(spec.config()["use_qk_norm"]),
        **special,
    )


def clips(spec: ModelSpec) -> bool:
    """Whether queries, keys and values are kept within a limit."""
    asked = spec.config()
    return bool(asked.get("clip_qkv") or (asked.get("attn_config") or {}).get("clip_qkv"))


def heads_of(spec: ModelSpec) -> tuple[int, int, int]:
    """Heads of queries, heads of keys (one in each layer of the older Falcons with `multi_query`), and the size of one; 0 where
    no layer attends."""
    if not isinstance(spec, DecoderSpec):
        queries = int(getattr(spec, "num_attention_heads", 0))
        return queries, int(getattr(spec, "num_key_value_heads", queries)), spec.hidden_size // queries if queries else 0
    if spec.can.graph == "mimo-2":
        return spec.num_attention_heads, spec.key_heads(SLIDING), spec.head_dim  # type: ignore[attr-defined]
    if spec.can.graph == "minicpm-3":
        return spec.num_attention_heads, spec.num_attention_heads, spec.qk_head_dim  # type: ignore[attr-defined]
    falcon = spec.can.graph == "falcon-1"
    one = falcon and spec.multi_query and not spec.new_decoder_architecture  # type: ignore[attr-defined]
    return spec.num_attention_heads, 1 if one else spec.num_key_value_heads, spec.head_dim


def value_head(spec: ModelSpec) -> int:
    """Numbers of a head of values."""
    return int(spec.v_head_dim) if spec.can.graph in ("mimo-2", "minicpm-3") else heads_of(spec)[-1]  # type: ignore[attr-defined]


def whole_keys(spec: ModelSpec) -> int:
    """Heads of keys in layers that see everything, where others have more."""
    return int(spec.num_key_value_heads) if spec.can.graph == "mimo-2" else 0  # type: ignore[attr-defined]


def most_values(spec: ModelSpec) -> int:
    """Numbers of a token's values in the layer that has most."""
    sharing, own = sharing_of(spec), heads_of(spec)[1] * value_head(spec)
    return max(own, sharing.key_heads * sharing.head) if sharing else own


def vocabulary(spec: ModelSpec) -> int:
    """Tokens that it knows."""
    return int(getattr(spec, "vocab_size"))  # noqa: B009 (a field of all that write texts)


def sliding(spec: ModelSpec) -> tuple[bool, ...]:
    """Which layers llama.cpp gives a sliding window: Gemma's and gpt-oss's do, where Mistral's and Qwen's files say of none."""
    if spec.can.graph == "llama-4":
        return tuple(spec.chunked)  # type: ignore[attr-defined]
    if spec.can.graph == "gpt-oss":
        return tuple([kind == SLIDING for kind in spec.kinds()])  # type: ignore[attr-defined]
    if spec.can.graph == "modern-bert":
        return tuple([kind == SLIDING for kind in spec.kinds])  # type: ignore[attr-defined]
    if spec.can.graph not in WINDOWED or not isinstance(spec, WindowedSpec):
        return ()
    slides = tuple([kind == SLIDING for kind in layer_types(spec)])
    return slides if any(slides) else ()


def window(spec: ModelSpec) -> int:
    """Tokens that its layers with a sliding window see."""
    if spec.can.graph == "mimo-2":
        # llama.cpp counts those before a token, the family the token itself, too
        return spec.sliding_window - 1  # type: ignore[attr-defined, no-any-return]
    seen = getattr(spec, "attention_chunk_size", None) or getattr(spec, "sliding_window", None)
    return int(seen or 0) if any(sliding(spec)) else 0


def rotary(spec: ModelSpec) -> tuple[bool, ...]:
    """Which layers turn queries and keys by their positions."""
    if spec.can.graph == "cohere2-moe":
        return tuple([own or not sparse for own, sparse in zip(sliding(spec), sparse_layers(spec), strict=True)])
    if spec.can.graph in ("smollm-3", "llama-4"):
        return tuple(spec.rotating)  # type: ignore[attr-defined]
    turned = spec.can.graph not in UNTURNED and rotary_of(spec)
    return (sliding(spec) if spec.can.graph in TURNED_IN_WINDOWS else ()) or (turned,) * spec.num_hidden_layers


def fed_width(spec: ModelSpec) -> int:
    """Width of feed-forward layers that are no experts."""
    for name in ("width", "shared_intermediate_size", "intermediate_size_mlp", "prefix_dense_intermediate_size"):
        if found := getattr(spec, name, None):
            return int(found)
    return int(getattr(spec, "intermediate_size", 0))


def sparse_layers(spec: ModelSpec) -> tuple[bool, ...]:
    """Which layers have experts."""
    if spec.can.graph == "llama-4":
        return tuple(spec.sparse)  # type: ignore[attr-defined]
    if spec.can.graph == "nemotron-h":
        return tuple([kind == "moe" for kind in spec.kinds])  # type: ignore[attr-defined]
    if spec.can.graph == "gemma-4":
        return (spec.enable_moe_block,) * spec.num_hidden_layers  # type: ignore[attr-defined]
    return tuple(spec.sparse()) if hasattr(spec, "sparse") else (False,) * spec.num_hidden_layers


def experts_of(spec: ModelSpec) -> Experts | None:
    """What its mixtures are; None where it has none."""
    asked, sparse = spec.config(), sparse_layers(spec)
    if not any(sparse):
        return None
    special = dict(ROUTINGS[spec.can.routing])
    counts = (asked.get(name) for name in ("n_shared_experts", "moe_num_shared_experts", "num_shared_experts"))
    every = next(filter(None, counts), spec.can.graph in ("hunyuan", "llama-4"))
    size = int(getattr(spec, "expert_size", None) or asked.get("moe_intermediate_size") or asked["intermediate_size"])
    shared = next((int(asked[name]) for name in SHARED if asked.get(name)), int(every or 0) * size)
    if asked.get("n_group", 1) not in (None, 1) and spec.can.routing.endswith("sigmoid"):
        special |= {"groups": asked["n_group"], "best_groups": asked["topk_group"]}
    if spec.can.routing.endswith("sigmoid"):
        special["normalized"] = asked.get("norm_topk_prob", True)
    return Experts(
        count=int(asked.get("num_local_experts") or getattr(spec, "num_experts")),  # noqa: B009 (a field of several specs)
        used=getattr(spec, "num_experts_per_tok"),  # noqa: B009
        wide=size,
        sparse=sparse,
        shared=shared,
        latent=asked.get("moe_latent_size") or 0,
        scaled=special.pop("scaled", asked.get("routed_scaling_factor", 1.0) not in (None, 1.0)),
        **special,
    )


def thinned_of(spec: ModelSpec) -> tuple[tuple[bool, int], ...]:
    """Of each layer whether it attends, and how wide its feed-forward layer is; empty where nothing is left out."""
    return tuple(spec.thinned) if spec.can.graph == "thinned" else ()  # type: ignore[attr-defined]


def sharing_of(spec: ModelSpec) -> Sharing | None:
    """What layers that see everything have of their own; None where all layers have the same."""
    if spec.can.graph not in ("gemma-3n", "gemma-4"):
        return None
    keys, head = spec.heads_of(FULL)  # type: ignore[attr-defined]
    shared, layers = spec.num_kv_shared_layers, spec.num_hidden_layers  # type: ignore[attr-defined]
    own, slides = layers - shared, sliding(spec) or (False,) * layers
    kept = [layer if layer < own else own - (2 if slides[layer] else 1) for layer in range(layers)]
    more = 2 if getattr(spec, "use_double_wide_mlp", False) else 1
    wide = [fed_width(spec) * (more if layer >= own else 1) for layer in range(layers)]
    beside = spec.hidden_size_per_layer_input  # type: ignore[attr-defined]
    joined = bool(getattr(spec, "attention_k_eq_v", False))
    sparse = [layer < SPARSE.get(spec.can.graph, 0) for layer in range(layers)]
    return Sharing(keys, head, joined, tuple(kept), beside, tuple(wide), tuple(sparse))
