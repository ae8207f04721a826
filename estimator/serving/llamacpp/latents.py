"""Latent attention in llama.cpp's graphs: the sizes of a latent, and of what picks the keys that are attended to."""

from __future__ import annotations

from estimator.families.spec import ModelSpec
from estimator.serving.llamacpp.shape import Indexer, Latent

LATENT = ("deepseek", "deepseek-3.2", "kimi-linear", "mistral-4")
"""Graphs of latent attention."""


def latent_of(spec: ModelSpec) -> Latent | None:
    """What its latent attention is; None where it has none."""
    return _latent(spec) if spec.can.graph in LATENT else None


def unfolded_of(spec: ModelSpec) -> Latent | None:
    """A latent of which keys and values are made before they are cached; None where there is none."""
    return _latent(spec) if spec.can.graph == "minicpm-3" else None


def _latent(spec: ModelSpec) -> Latent:
    asked = spec.config()
    return Latent(
        queries=asked.get("q_lora_rank") or 0,
        rank=asked["kv_lora_rank"],
        plain=asked["qk_nope_head_dim"],
        rotary=asked["qk_rope_head_dim"],
    )


def indexer_of(spec: ModelSpec) -> Indexer | None:
    """What picks the keys that tokens attend to; None where they attend to all."""
    if spec.can.graph != "deepseek-3.2":
        return None
    asked = spec.config()
    return Indexer(asked["index_n_heads"], asked["index_head_dim"], asked["index_topk"], tuple(spec.indexed))  # type: ignore[attr-defined]
