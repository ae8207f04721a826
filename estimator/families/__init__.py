"""One short file per architecture: its spec, and its forward pass in tape operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any

from estimator.contract.errors import Contradiction
from estimator.families.build import Builder
from estimator.families.heads import Head, Model
from estimator.families.parameter import Parameter
from estimator.families.spec import ModelSpec
from estimator.tape.dtypes import bfloat16
from estimator.tape.tape import Tape

FAMILIES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
    "smollm3": "smollm3",
    "gpt2": "gpt2",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3_text": "gemma",
    "gemma3n_text": "gemma3n_text",
    "gemma4_text": "gemma4_text",
    "gemma4_unified_text": "gemma4_text",
    "ministral": "ministral",
    "ministral3": "ministral3",
    "mistral4": "mistral4",
    "hy_v3": "hy_v3",
    "hy_v4": "hy_v4",
    "exaone_moe": "exaone_moe",
    "kolibri1": "kolibri1",
    "flint": "flint",
    "minimax": "minimax",
    "minimax_m2": "minimax_m2",
    "minimax_m3_vl": "minimax_m3_vl",
    "minimax_m3_vl_text": "minimax_m3",
    "minimax_m3_vl_vision": "minimax_m3_vision",
    "mimo_v2_flash": "mimo_v2_flash",
    "hunyuan_v1_dense": "hunyuan",
    "hunyuan_v1_moe": "hunyuan_moe",
    "ernie4_5": "ernie4_5",
    "ernie4_5_moe": "ernie4_5_moe",
    "exaone4": "exaone4",
    "exaone4_5": "exaone4_5",
    "exaone4_5_vision": "exaone4_5_vision",
    "arcee": "arcee",
    "apertus": "apertus",
    "dots1": "dots1",
    "solar_open": "solar_open",
    "afmoe": "afmoe",
    "phimoe": "phimoe",
    "flex_olmo": "flex_olmo",
    "internlm3": "internlm3",
    "iquestcoder": "iquestcoder",
    "cwm": "cwm",
    "helium": "helium",
    "bitnet": "bitnet",
    "nanochat": "nanochat",
    "vaultgemma": "vaultgemma",
    "granite": "granite",
    "olmo": "olmo",
    "olmo2": "olmo",
    "olmo3": "olmo",
    "olmo_hybrid": "olmo_hybrid",
    "cohere": "cohere",
    "cohere2": "cohere",
    "cohere2_moe": "cohere2_moe",
    "phi": "phi",
    "phi3": "phi3",
    "phi4_multimodal": "phi4_multimodal",
    "glm": "glm4",
    "glm4": "glm4",
    "glm4_moe": "glm4_moe",
    "glm4_moe_lite": "glm4_moe_lite",
    "glm4v": "glm4v",
    "glm4v_text": "glm4v_text",
    "glm4v_vision": "glm4v_vision",
    "glm4v_moe": "glm4v",
    "glm4v_moe_text": "glm4v_text",
    "glm4v_moe_vision": "glm4v_vision",
    "glm_ocr": "glm4v",
    "glm_ocr_text": "glm4v_text",
    "glm_ocr_vision": "glm4v_vision",
    "stablelm": "stablelm",
    "persimmon": "persimmon",
    "falcon": "falcon",
    "starcoder2": "starcoder2",
    "nemotron": "nemotron",
    "jais2": "jais2",
    "nemotron-nas": "nemotron_nas",
    "longcat_flash": "longcat_flash",
    "dbrx": "dbrx",
    "jetmoe": "jetmoe",
    "hyperclovax": "hyperclovax",
    "hyperclovax_vision_v2": "hyperclovax_vision_v2",
    "seed_oss": "seed_oss",
    "gpt_neox": "gpt_neox",
    "gpt_bigcode": "gpt_bigcode",
    "gptj": "gptj",
    "codegen": "codegen",
    "gpt_neo": "gpt_neo",
    "opt": "opt",
    "biogpt": "biogpt",
    "xglm": "xglm",
    "bloom": "bloom",
    "mpt": "mpt",
    "mixtral": "mixtral",
    "qwen2_moe": "mixtral",
    "qwen3_moe": "mixtral",
    "olmoe": "olmoe",
    "granitemoe": "granitemoe",
    "granitemoeshared": "granitemoeshared",
    "granitemoe_swa": "granitemoeshared",
    "granite_swa": "granite_swa",
    "gpt_oss": "gpt_oss",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "deepseek_v32": "deepseek_v32",
    "glm_moe_dsa": "deepseek_v32",
    "deepseek_v4": "deepseek_v4",
    "youtu": "youtu",
    "axk1": "axk1",
    "minicpm3": "minicpm3",
    "mellum": "mellum",
    "laguna": "laguna",
    "kimi_linear": "kimi_linear",
    "bailing_hybrid": "bailing_hybrid",
    "bert": "bert",
    "roberta": "bert",
    "xlm-roberta": "bert",
    "camembert": "bert",
    "data2vec-text": "bert",
    "ernie": "bert",
    "roberta-prelayernorm": "roberta_prenorm",
    "xlm-roberta-xl": "roberta_prenorm",
    "distilbert": "distilbert",
    "electra": "electra",
    "albert": "albert",
    "esm": "esm",
    "mpnet": "mpnet",
    "bart": "bart",
    "mbart": "mbart",
    "blenderbot": "blenderbot",
    "m2m_100": "m2m_100",
    "marian": "marian",
    "pegasus": "marian",
    "t5": "t5",
    "t5gemma": "t5gemma",
    "t5gemma2": "t5gemma2",
    "mt5": "t5",
    "umt5": "t5",
    "modernbert": "modernbert",
    "modernbert-decoder": "modernbert_decoder",
    "eurobert": "eurobert",
    "nomic_bert": "nomic_bert",
    "jina_embeddings_v3": "nomic_bert",
    "gte": "nomic_bert",
    "deberta-v2": "deberta_v2",
    "vit": "vit",
    "deit": "vit",
    "dinov2": "dinov2",
    "dinov2_with_registers": "dinov2",
    "dinov3_vit": "dinov3_vit",
    "clip": "clip",
    "metaclip_2": "clip",
    "whisper": "whisper",
    "mamba": "mamba",
    "falcon_mamba": "falcon_mamba",
    "mamba2": "mamba2",
    "granitemoehybrid": "granitemoehybrid",
    "bamba": "bamba",
    "falcon_h1": "falcon_h1",
    "zamba2": "zamba2",
    "recurrent_gemma": "recurrent_gemma",
    "nemotron_h": "nemotron_h",
    "jamba": "jamba",
    "qwen3_next": "qwen3_next",
    "qwen3_5_text": "qwen3_5_text",
    "qwen3_5_moe_text": "qwen3_5_text",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2",
    "lfm3": "lfm3",
    "siglip": "siglip_pairs",
    "siglip_text_model": "siglip",
    "siglip_vision_model": "siglip",
    "idefics3_vision": "siglip",
    "smolvlm_vision": "siglip",
    "siglip2_vision_model": "siglip2",
    "lfm2_vl": "lfm2_vl",
    "clip_vision_model": "clip_vision",
    "pixtral": "pixtral",
    "gemma3": "gemma3",
    "gemma4": "gemma4",
    "gemma4_vision": "gemma4_vision",
    "gemma4_audio": "gemma4_audio",
    "gemma4_unified": "gemma4_unified",
    "gemma4_unified_vision": "gemma4_unified_parts",
    "gemma4_unified_audio": "gemma4_unified_parts",
    "paligemma": "gemma3",
    "llava": "llava",
    "llava_next": "llava_next",
    "llava_onevision": "llava_next",
    "mistral3": "mistral3",
    "lighton_ocr": "lighton_ocr",
    "mistral_large4": "mistral_large4",
    "mistral_large4_text": "mistral_large4_text",
    "deepseek_vl": "deepseek_vl",
    "idefics3": "idefics3",
    "smolvlm": "idefics3",
    "qwen2_vl": "qwen_vl",
    "qwen2_vl_text": "qwen_vl_text",
    "qwen2_vl_vision": "qwen_vl_vision",
    "qwen2_5_vl": "qwen_vl",
    "qwen2_5_vl_text": "qwen_vl_text",
    "qwen2_5_vl_vision": "qwen_vl_vision",
    "qwen3_vl": "qwen_vl",
    "qwen3_vl_text": "qwen_vl_text",
    "qwen3_vl_vision": "qwen_vl_vision",
    "qwen3_vl_moe": "qwen_vl",
    "qwen3_vl_moe_text": "qwen_vl_text",
    "qwen3_vl_moe_vision": "qwen_vl_vision",
    "qwen3_5": "qwen3_5",
    "qwen3_5_vision": "qwen_vl_vision",
    "qwen3_5_moe": "qwen3_5",
    "qwen3_5_moe_vision": "qwen_vl_vision",
    "mllama": "mllama",
    "mllama_text_model": "mllama_text",
    "mllama_vision_model": "mllama_vision",
    "paddleocr_vl": "paddleocr_vl",
    "paddleocr_vl_text": "paddleocr_text",
    "paddleocr_vl_vision": "paddleocr_vision",
    "kimi_k25": "kimi_k25",
    "kimi_k25_vision": "kimi_k25_vision",
    "step3p5": "step3p5",
    "step3p5_vision": "step3p5_vision",
    "step3p7": "step3p7",
    "internvl": "internvl",
    "internvl_vision": "internvl_vision",
    "aya_vision": "aya_vision",
    "cohere2_vision": "aya_vision",
    "llama4": "llama4",
    "llama4_text": "llama4_text",
    "llama4_vision_model": "llama4_vision",
    "qwen2_5_omni_thinker": "qwen_omni",
    "qwen2_5_omni_text": "qwen_vl_text",
    "qwen2_5_omni_vision_encoder": "qwen_vl_vision",
    "qwen2_5_omni_audio_encoder": "qwen_omni_audio",
    "qwen3_omni_moe_thinker": "qwen_omni",
    "qwen3_omni_moe_text": "qwen_vl_text",
    "qwen3_omni_moe_vision_encoder": "qwen_vl_vision",
    "qwen3_omni_moe_audio_encoder": "qwen3_omni_audio",
    "qwen3_asr": "qwen3_asr",
    "qwen3_asr_encoder": "qwen3_asr_audio",
    "qwen2_audio": "qwen2_audio",
    "qwen2_audio_encoder": "audio_towers",
    "voxtral": "voxtral",
    "voxtral_encoder": "audio_towers",
    "wav2vec2": "wav2vec2",
    "hubert": "wav2vec2",
    "wavlm": "wavlm",
    "parakeet_ctc": "parakeet",
}
"""The file of each `model_type`. It has `SPECS`, by model type, and `HEADS`, by the name in a job; the first is the usual one."""


def _family(model_type: str) -> Any:
    return import_module(f"estimator.families.{FAMILIES[model_type]}")


def spec_class(model_type: str) -> type[ModelSpec]:
    """What a spec of that type must say."""
    found: type[ModelSpec] = _family(model_type).SPECS[model_type]
    return found


def having(test: Callable[[type[ModelSpec]], bool]) -> list[str]:
    """The model types whose specs pass a test."""
    return [kind for kind in FAMILIES if test(spec_class(kind))]


def heads(model_type: str) -> dict[str, Head]:
    """The heads that models of that type can have, the usual one first."""
    lacking = spec_class(model_type).lacks
    return {name: head for name, head in _family(model_type).HEADS.items() if name not in lacking}


def build_model(spec: ModelSpec, build: Builder, head: str) -> Model:
    """The model of a spec with the head of that name, on the builder's tape."""
    known = heads(spec.model_type)
    if head not in known:
        raise Contradiction(f"{spec.model_type} has no head {head}; it has {', '.join(known)}", "training.head")
    return known[head](spec, build)


def count(spec: ModelSpec) -> int:
    """How many parameters a model with its usual head has, tied weights once."""
    return sum(p.total for p in parameters(spec))


def built(spec: ModelSpec, head: str | None = None) -> Builder:
    """A model in bfloat16 with a head, its usual one where none is named, built and not run: the builder has its parameters and
    buffers."""
    build = Builder(Tape(), bfloat16)
    build_model(spec, build, head or next(iter(heads(spec.model_type))))
    return build


def parameters(spec: ModelSpec) -> list[Parameter]:
    """The parameters of a model with its usual head, tied weights once."""
    return _parameters(_Asked(spec.model_dump_json(), spec))


@dataclass(frozen=True, slots=True)
class _Asked:
    text: str
    spec: ModelSpec = field(compare=False)


@lru_cache(maxsize=64)
def _parameters(asked: _Asked) -> list[Parameter]:
    return built(asked.spec).parameters
