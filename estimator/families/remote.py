"""What checkpoints with code of their own say in their config.json, as a family here says it that has their operations.

transformers has no classes for these types, and a checkpoint's code is never run. What a config is turned into has the same
parameters, the same products and the same cache; names of layers are the family's. After the model files of vLLM
(model_executor/models/internlm2.py, exaone.py, qwen.py, chatglm.py, baichuan.py, minicpm.py, bailing_moe.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from estimator.contract.errors import NotModelled

Given = Mapping[str, Any]


class Remote(NamedTuple):
    """A type of such code."""

    like: str
    """The family."""
    named: Mapping[str, str] = {}
    """What its config calls what the family's calls otherwise."""
    usual: Given = {}
    """What its code takes where the config says nothing, where the family takes something else."""
    fixed: Given = {}
    """What the family must be told."""
    fits: Callable[[Given, str], None] = lambda given, where: None
    """Raises `NotModelled` for configs of the type that are not like the family."""
    parts: Callable[[Given, str], Given] = lambda given, where: given
    """The config with its parts as the family says them. Raises `NotModelled`."""


def _only(name: str, *values: Any) -> Callable[[Given, str], None]:
    """That a setting, where it is said, has one of these values."""

    def fits(given: Given, where: str) -> None:
        if name in given and given[name] not in values:
            known = " or ".join(map(repr, values))
            raise NotModelled(f"{name} {given[name]!r} is not modelled for {given['model_type']}; {known} is", where)

    return fits


def _second_ling(given: Given, where: str) -> None:
    """Ling 2.0's code (BailingMoeV2), which the first's shares its `model_type` with."""
    if given.get("score_function", "softmax") != "sigmoid" or not given.get("use_qk_norm"):
        raise NotModelled("bailing_moe of Ling 1 (softmax, no norms of heads) is not modelled; Ling 2.0's is", where)
    _only("use_bias", False)(given, where)
    _only("num_nextn_predict_layers", 0, None)(given, where)


def _second_chatglm(given: Given, where: str) -> None:
    """ChatGLM 2's code, and its successors', which the first's shares its `model_type` with."""
    if not given.get("multi_query_attention"):
        raise NotModelled("chatglm of ChatGLM 1 (or without multi_query_attention) is not modelled; 2, 3 and GLM-4 are", where)
    for name, value in (("add_bias_linear", False), ("rmsnorm", True), ("post_layer_norm", True)):
        _only(name, value)(given, where)
    _only("apply_residual_connection_post_layernorm", False)(given, where)


def _rotating_baichuan(given: Given, where: str) -> None:
    """The 7B models of Baichuan 1 and 2; the others, which are wider, have ALiBi in the place of a rotary embedding."""
    if given.get("hidden_size") != 4096:
        raise NotModelled("baichuan of a hidden_size other than 4096 has ALiBi, and is not modelled; the 7B models are", where)


def _internvl(given: Given, where: str) -> Given:
    """InternVL's own code: `llm_config`, and a tower with norms and biases under other names."""
    text, tower = given.get("llm_config"), given.get("vision_config")
    if not isinstance(text, Mapping) or not isinstance(tower, Mapping):
        raise NotModelled("internvl_chat without llm_config or vision_config is not modelled", where)
    _only("ps_version", "v2")(given, where)
    named = {"qk_normalization": "use_qk_norm", "qkv_bias": "attention_bias"}
    seen = {named.get(name, name): value for name, value in tower.items() if name in {*named, *_INTERNVIT}}
    return {
        "text_config": translated(text, f"{where}.llm_config" if where else "llm_config"),
        "vision_config": {**seen, "model_type": "internvl_vision"},
        "downsample_ratio": given.get("downsample_ratio", 0.5),
        "tie_word_embeddings": bool(text.get("tie_word_embeddings", False)),
    }


_INTERNVIT = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("image_size", "patch_size", "num_channels", "norm_type"),
)
LING = Remote(
    "glm4_moe",
    {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts", "use_qkv_bias": "attention_bias"},
    fixed={"use_qk_norm": True, "scoring_func": "sigmoid"},
    fits=_second_ling,
)
REMOTE = {
    "kimi_k2": Remote("deepseek_v3"),
    "internlm2": Remote("llama", {"bias": "attention_bias"}),
    "exaone": Remote("llama", {"num_layers": "num_hidden_layers"}),
    "minicpm": Remote("granite", usual={"tie_word_embeddings": True}, fits=_only("num_experts", 0, None)),
    "qwen": Remote(
        "qwen2",
        {"seq_length": "max_position_embeddings", "kv_channels": "head_dim"},
        usual={"tie_word_embeddings": False},
        fits=_only("no_bias", True),
    ),
    "chatglm": Remote(
        "glm",
        {"num_layers": "num_hidden_layers", "ffn_hidden_size": "intermediate_size", "padded_vocab_size": "vocab_size"}
        | {"multi_query_group_num": "num_key_value_heads", "kv_channels": "head_dim", "add_qkv_bias": "attention_bias"}
        | {"seq_length": "max_position_embeddings"},
        usual={"tie_word_embeddings": False, "attention_bias": False},
        fits=_second_chatglm,
    ),
    "baichuan": Remote(
        "llama",
        {"model_max_length": "max_position_embeddings"},
        usual={"tie_word_embeddings": False},
        fits=_rotating_baichuan,
    ),
    "internvl_chat": Remote("internvl", parts=_internvl),
    "bailing_moe": LING,
    "bailing_moe_v2": LING,
}
"""By `model_type`."""


THINNED = (
    "nemotron-nas is code of its checkpoint's own, which transformers has no class for and which is never run: answered with "
    "transformers' Llama layers in the sizes of block_configs; its own code may hold more while it trains"
)
_PAGES = ("model_type", "multimodal_projector_bias", "projector_hidden_act", "vision_feature_layer")
"""What LightOnOCR's published config.json says of Mistral 3, of which its code has none."""
THINKERS = {"qwen2_5_omni": "qwen2_5_omni_thinker", "qwen3_omni_moe": "qwen3_omni_moe_thinker"}
"""Types of models that think and speak, which are trained as the part that thinks, and that part's."""


def translated(given: Given, where: str) -> Given:
    """The config of a type with code of its own as its family's, of one that speaks, too, as its thinker's; any other as it is.
    Raises `NotModelled`."""
    thinks, thinker = given.get("thinker_config"), THINKERS.get(str(given.get("model_type")))
    if thinker is not None and isinstance(thinks, Mapping):
        return {**thinks, "model_type": thinker}
    if given.get("model_type") == "qwen3_asr" and isinstance(thinks, Mapping):
        return {**thinks, "model_type": "qwen3_asr"}
    text = given.get("text_config")
    if given.get("model_type") == "mistral3" and isinstance(text, Mapping) and text.get("model_type") == "qwen3":
        named = {name: value for name, value in given.items() if name not in _PAGES}
        return {"tie_word_embeddings": text.get("tie_word_embeddings", True), **named, "model_type": "lighton_ocr"}
    remote = REMOTE.get(str(given.get("model_type")))
    if remote is None:
        return given
    remote.fits(given, where)
    found = {remote.named.get(name, name): value for name, value in remote.parts(given, where).items()}
    if given["model_type"] == "qwen" and isinstance(given.get("intermediate_size"), int):
        found["intermediate_size"] = given["intermediate_size"] // 2  # of which each of its two input layers has half
    return {**remote.usual, **found, **remote.fixed, "model_type": remote.like}


def said(kind: Any) -> tuple[str, ...]:
    """What to say of a config of a `model_type` that was turned into a family's."""
    if isinstance(kind, str) and kind in THINKERS:
        return ("its thinker alone, which is what is trained: the talker and what makes sound of its codes are left out",)
    if kind == "nemotron-nas":
        return (THINNED,)
    if not isinstance(kind, str) or kind not in REMOTE:
        return ()
    like = REMOTE[kind].like
    return (
        f"{kind} is code of its checkpoint's own, which transformers has no class for and which is never run: "
        f"answered as {like}, which has the same parameters and products; layers have {like}'s names, and its own code may hold "
        "more while it trains",
    )
