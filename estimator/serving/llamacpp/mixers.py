"""What each layer of a model is in llama.cpp's graph. Of the families whose layers are not all attention nothing is loaded for
another model."""

from __future__ import annotations

from estimator.families.spec import ModelSpec
from estimator.serving.llamacpp.shape import Mixer, State

HYBRID = (None, "granite", "qwen-3.5", "qwen-3-next", "nemotron-h", "jamba-1", "lfm-2", "falcon-h1", "state-space", "kimi-linear")
"""Graphs whose layers may be something other than attention."""


def mixers_of(spec: ModelSpec) -> tuple[Mixer, ...]:
    """Of each layer; empty where all are attention."""
    if spec.can.graph not in HYBRID:
        return ()
    from estimator.serving.llamacpp import hybrids

    return hybrids.mixers_of(spec)


def state_of(spec: ModelSpec) -> State | None:
    """What its layers without attention keep; None where all are attention."""
    if spec.can.graph not in HYBRID:
        return None
    from estimator.serving.llamacpp import hybrids

    return hybrids.state_of(spec)


def rotary_of(spec: ModelSpec) -> bool:
    """Whether its layers of attention turn queries and keys by their positions."""
    if spec.can.graph not in HYBRID:
        return True
    from estimator.serving.llamacpp import hybrids

    return hybrids.rotary_of(spec)
