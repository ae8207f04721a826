"""The model that Megatron-LM's arguments describe, as the configuration of the architecture that has those layers.

megatron/training/arguments.py and megatron/core/transformer/transformer_config.py at 23e00ed (Core 0.15): widths that are not
said, LayerNorm, learned positions, tied embeddings and dropout of 0.1 are its own defaults.
"""

from __future__ import annotations

import re
from typing import Any

from estimator.contract.errors import WillItFitError
from estimator.specs.resolve import resolve

SHAPE = ("--num-layers", "--hidden-size", "--num-attention-heads")
"""Arguments without which there is no model."""
TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Rows of a vocabulary that a tokenizer alone tells."""
STEP = 128
MOST_LAYERS, MOST_WIDTH = 4096, 1 << 20
"""Layers, experts and widths beyond those of any model."""
_RUN = re.compile(r"\[\s*([01])\s*\]\s*\*\s*(\d{1,4})")
LATENT = {
    "--kv-lora-rank": ("kv_lora_rank", 32),
    "--qk-head-dim": ("qk_nope_head_dim", 128),
    "--qk-pos-emb-head-dim": ("qk_rope_head_dim", 64),
    "--v-head-dim": ("v_head_dim", 128),
}
FLAGS = (
    "--ffn-hidden-size",
    "--group-query-attention",
    "--num-query-groups",
    "--kv-channels",
    "--max-position-embeddings",
    "--position-embedding-type",
    "--use-rotary-position-embeddings",
    "--normalization",
    "--untie-embeddings-and-output-weights",
    "--add-qkv-bias",
    "--qk-layernorm",
    "--vocab-size",
    "--make-vocab-size-divisible-by",
    "--tokenizer-type",
    "--tokenizer-model",
    "--num-experts",
    "--moe-router-topk",
    "--moe-ffn-hidden-size",
    "--moe-shared-expert-intermediate-size",
    "--moe-layer-freq",
    "--multi-latent-attention",
    "--q-lora-rank",
    "--hidden-dropout",
    "--attention-dropout",
    *LATENT,
)
"""Arguments that are read here."""


class NotDescribed(Exception):
    """Why arguments describe no model that is known."""


def described(given: dict[str, str]) -> bool:
    """Whether the arguments have the sizes of a model."""
    return all(flag in given for flag in SHAPE)


def model(given: dict[str, str], allow_files: bool = False) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The configuration, and what of the arguments it does not have: flags, and why. Raises `NotDescribed`."""
    left: list[tuple[str, str]] = []
    layers, hidden, heads = (_whole(given, flag, 0) for flag in SHAPE)
    if layers > MOST_LAYERS or hidden > MOST_WIDTH or _whole(given, "--num-experts", 0) > MOST_LAYERS:
        raise NotDescribed(
            f"more than {MOST_LAYERS:,} layers or experts, or {MOST_WIDTH:,} of width, are of no model that is known"
        )
    rotary = given.get("--position-embedding-type") == "rope" or "--use-rotary-position-embeddings" in given
    rms, gated = given.get("--normalization", "LayerNorm") == "RMSNorm", "--swiglu" in given
    third = hidden * 8 // 3 // 64 * 64 if gated else 4 * hidden
    width = _whole(given, "--ffn-hidden-size", third)
    dropout = [_share(given, f"--{name}-dropout") for name in ("hidden", "attention")]
    common = {
        "vocab_size": _vocabulary(given, left, allow_files),
        "tie_word_embeddings": "--untie-embeddings-and-output-weights" not in given,
    }
    positions = _whole(given, "--max-position-embeddings", _whole(given, "--seq-length", 1024))
    if "--num-experts" not in given and not (rotary or rms or gated or "--group-query-attention" in given):
        sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_inner": width, "n_positions": positions}
        drops = {"resid_pdrop": dropout[0], "embd_pdrop": dropout[0], "attn_pdrop": dropout[1]}
        return {"model_type": "gpt2", "activation_function": "gelu_new", **sizes, **drops, **common}, left
    missing = [what for what, there in (("--swiglu", gated), ("--normalization RMSNorm", rms), ("rope", rotary)) if not there]
    if missing:
        raise NotDescribed(
            f"layers with some of Llama's parts, and without {' and '.join(missing)}, are of no model that is known"
        )
    if any(dropout):
        left.append(
            (
                "--hidden-dropout",
                f"{dropout[0]} and {dropout[1]} (--attention-dropout; Megatron-LM's own is 0.1): masks are not counted",
            )
        )
    if "--disable-bias-linear" not in given:
        left.append(("--disable-bias-linear", "is not there: biases of linear layers are not counted"))
    groups = _whole(given, "--num-query-groups", 1) if "--group-query-attention" in given else heads
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": width,
        "max_position_embeddings": positions,
        **common,
    }
    if "--multi-latent-attention" not in given:
        sizes["head_dim"] = _whole(given, "--kv-channels", hidden // max(heads, 1))
    if "--num-experts" in given:
        return _mixture(given, sizes, left), left
    if "--multi-latent-attention" in given:
        raise NotDescribed("latent attention without experts is of no model that is known")
    norm, bias = "--qk-layernorm" in given, "--add-qkv-bias" in given
    return {
        "model_type": "qwen3" if norm else "qwen2" if bias else "llama",
        **sizes,
        **({"attention_bias": True} if norm and bias else {}),
    }, left


def _mixture(given: dict[str, str], sizes: dict[str, Any], left: list[tuple[str, str]]) -> dict[str, Any]:
    """A model with experts: DeepSeek's, Qwen's or Mixtral's."""
    experts, each = _whole(given, "--num-experts", 0), _whole(given, "--moe-ffn-hidden-size", sizes["intermediate_size"])
    chosen, shared = _whole(given, "--moe-router-topk", 2), _whole(given, "--moe-shared-expert-intermediate-size", 0)
    dense = _dense(given, sizes["num_hidden_layers"])
    if "--multi-latent-attention" in given:
        if dense != list(range(len(dense))):
            raise NotDescribed("dense layers among those with experts are of no model with latent attention that is known")
        if shared % each:
            raise NotDescribed("shared experts that are no multiple of an expert's width are of no model with latent attention")
        ranks = {name: _whole(given, flag, usual) for flag, (name, usual) in LATENT.items()}
        ranks["q_lora_rank"] = _whole(given, "--q-lora-rank", 0) or None  # type: ignore[assignment]
        more = {"n_routed_experts": experts, "n_shared_experts": shared // each, "first_k_dense_replace": len(dense)}
        groups = {"n_group": 1, "topk_group": 1, "num_experts_per_tok": chosen, "moe_intermediate_size": each}
        return {
            "model_type": "deepseek_v3",
            **sizes,
            **ranks,
            **more,
            **groups,
            "num_key_value_heads": sizes["num_attention_heads"],
        }
    common = {**sizes, "num_experts_per_tok": chosen}
    if "--qk-layernorm" in given and not shared:
        return {
            "model_type": "qwen3_moe",
            **common,
            "num_experts": experts,
            "moe_intermediate_size": each,
            "mlp_only_layers": dense,
        }
    if "--qk-layernorm" not in given and shared:
        if "--add-qkv-bias" not in given:
            left.append(
                ("--moe-shared-expert-intermediate-size", "read as Qwen2-MoE, whose queries, keys and values have biases")
            )
        more = {"num_experts": experts, "moe_intermediate_size": each, "shared_expert_intermediate_size": shared}
        return {"model_type": "qwen2_moe", **common, **more, "mlp_only_layers": dense}
    if shared or dense:
        raise NotDescribed(
            "experts with shared ones beside norms of queries and keys, or among dense layers, are of no model that is known"
        )
    return {"model_type": "mixtral", **common, "num_local_experts": experts, "intermediate_size": each}


def _dense(given: dict[str, str], layers: int) -> list[int]:
    """The layers that are no mixture (--moe-layer-freq): every n-th is one, or a list such as ([0]*3+[1]*58) says it."""
    said = given.get("--moe-layer-freq", "1")
    if said.isdecimal() and int(said):
        return [layer for layer in range(layers) if layer % int(said)]
    pattern = [kind == "1" for kind, times in _RUN.findall(said[:200]) for _ in range(min(int(times), layers))]
    if len(pattern) != layers:
        raise NotDescribed(f"--moe-layer-freq {said[:40]} does not say of each of {layers} layers what it is")
    return [layer for layer, mixed in enumerate(pattern) if not mixed]


def _vocabulary(given: dict[str, str], left: list[tuple[str, str]], allow_files: bool) -> int:
    """Rows of the vocabulary, before they are padded."""
    kind, name = given.get("--tokenizer-type", ""), given.get("--tokenizer-model", "")
    step = _whole(given, "--make-vocab-size-divisible-by", STEP)
    if step != STEP:
        left.append(("--make-vocab-size-divisible-by", f"{step}: rows of the embedding are padded to multiples of {STEP}"))
    if "--vocab-size" in given:
        return _whole(given, "--vocab-size", 0) + (kind == "NullTokenizer")
    if kind == "HuggingFaceTokenizer" and name:
        try:
            return int(getattr(resolve(name, allow_files).spec, "vocab_size", 0)) or _untold()
        except WillItFitError:
            return _untold()
    if not kind and "--merge-file" in given:  # a vocabulary with its merges is a GPT-2 tokenizer's
        kind = "GPT2BPETokenizer"
        left.append(("--tokenizer-type", f"is not there, and merges are: GPT-2's own vocabulary of {TOKENIZERS[kind]:,}"))
    return TOKENIZERS.get(kind) or _untold()


def _untold() -> int:
    raise NotDescribed("the rows of the vocabulary are not told: write --vocab-size, or name the model with --model")


def _whole(given: dict[str, str], flag: str, usual: int) -> int:
    value = given.get(flag, str(usual))
    if not value.isdecimal() or len(value) > 12 or not (usual == 0 or int(value)):
        raise NotDescribed(f"{flag} {value[:40]!r} is no number that the file says: only a shell knows it")
    return int(value)


def _share(given: dict[str, str], flag: str) -> float:
    try:
        return float(given.get(flag, "0.1"))
    except ValueError:
        raise NotDescribed(f"{flag} {given[flag][:40]!r} is no number") from None
