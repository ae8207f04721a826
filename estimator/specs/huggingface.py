"""A Hugging Face config.json as a spec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from estimator.errors import InvalidJob, NotModelled, did_you_mean
from estimator.specs.spec import ModelSpec, ModelType
from estimator.validation import explain

KNOWN = get_args(ModelType)


def read_config(path: Path) -> ModelSpec:
    """The spec of a config.json on disk; `InvalidJob` says what is wrong with a file that is not one."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidJob(f"cannot be read: {error.strerror}", str(path)) from None
    except UnicodeDecodeError:
        raise InvalidJob("is not text in UTF-8; give a model's config.json", str(path)) from None
    except json.JSONDecodeError as error:
        raise InvalidJob(f"is not JSON (line {error.lineno}: {error.msg}); give a model's config.json", str(path)) from None
    except RecursionError:
        raise InvalidJob("is nested too deeply for a config.json", str(path)) from None
    if not isinstance(config, dict):
        raise InvalidJob("holds no JSON object; give a model's config.json", str(path))
    return from_config(config, str(path))


def from_config(config: Mapping[str, Any], where: str) -> ModelSpec:
    """The spec of a config's mapping, with transformers' defaults for what it leaves out."""
    kind = config.get("model_type")
    if kind is None:
        raise InvalidJob(f"has no model_type; a model's config.json names one of {', '.join(KNOWN)}", where)
    if kind not in KNOWN:
        near = did_you_mean(str(kind), KNOWN)
        raise NotModelled(f"model_type {kind!r} is not modelled yet; known are {', '.join(KNOWN)}.{near}", where)
    fields = _gpt2(config, where) if kind == "gpt2" else _llama(config, kind, where)
    try:
        return ModelSpec(model_type=kind, **fields)
    except ValidationError as error:
        raise InvalidJob(explain(error), where) from None


def _required(config: Mapping[str, Any], where: str, *names: str) -> Any:
    for name in names:
        if config.get(name) is not None:
            return config[name]
    raise InvalidJob(f"lacks {names[0]}", where)


def _llama(config: Mapping[str, Any], kind: str, where: str) -> dict[str, Any]:
    hidden, heads = _required(config, where, "hidden_size"), _required(config, where, "num_attention_heads")
    if not (isinstance(hidden, int) and isinstance(heads, int) and heads > 0):
        raise InvalidJob("hidden_size and num_attention_heads must be positive whole numbers", where)
    bias = bool(config.get("attention_bias", False))
    if kind in ("qwen2", "qwen3") and config.get("use_sliding_window"):
        raise NotModelled("use_sliding_window is not modelled for Qwen models yet", where)
    return {
        "hidden_size": hidden,
        "intermediate_size": _required(config, where, "intermediate_size"),
        "num_hidden_layers": _required(config, where, "num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads", 8 if kind == "mistral" else None) or heads,
        "head_dim": config.get("head_dim", 128 if kind == "qwen3" else None) or hidden // heads,
        "vocab_size": _required(config, where, "vocab_size"),
        "max_position_embeddings": config.get("max_position_embeddings", 2048),
        "hidden_act": config.get("hidden_act", "silu"),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "attention_bias": kind == "qwen2" or bias,
        "attention_output_bias": kind != "qwen2" and bias,
        "mlp_bias": kind == "llama" and bool(config.get("mlp_bias", False)),
        "qk_norm": kind == "qwen3",
        "sliding_window": config.get("sliding_window", 4096) if kind == "mistral" else None,
        "attention_dropout": config.get("attention_dropout", 0.0),
    }


def _gpt2(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    hidden = _required(config, where, "n_embd", "hidden_size")
    heads = _required(config, where, "n_head", "num_attention_heads")
    if not (isinstance(hidden, int) and isinstance(heads, int) and heads > 0):
        raise InvalidJob("n_embd and n_head must be positive whole numbers", where)
    for name in ("add_cross_attention", "reorder_and_upcast_attn"):
        if config.get(name):
            raise NotModelled(f"{name} is not modelled for GPT-2 yet", where)
    return {
        "hidden_size": hidden,
        "intermediate_size": config.get("n_inner") or 4 * hidden,
        "num_hidden_layers": _required(config, where, "n_layer", "num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": hidden // heads,
        "vocab_size": _required(config, where, "vocab_size"),
        "max_position_embeddings": config.get("n_positions") or config.get("max_position_embeddings") or 1024,
        "hidden_act": config.get("activation_function", "gelu_new"),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", True)),
        "attention_dropout": config.get("attn_pdrop", 0.1),
        "hidden_dropout": config.get("resid_pdrop", 0.1),
        "embedding_dropout": config.get("embd_pdrop", 0.1),
    }
