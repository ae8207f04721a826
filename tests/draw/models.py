"""Models that jobs are drawn for: small ones of every family, or catalogue models of full width with few layers."""

from __future__ import annotations

import random
from functools import cache
from typing import Any, Literal, get_args, get_origin

from estimator.families import FAMILIES, spec_class
from estimator.specs.published import published
from tests.draw.contract import members
from tests.jobs import table

LAYERS = ("num_hidden_layers", "num_decoder_layers", "decoder_layers", "encoder_layers")
EACH = ("layer_types", "mlp_layer_types")
"""What each layer is. A model of few layers is often of one kind by default: of those that attend in every fourth none does."""


@cache
def kinds() -> tuple[str, ...]:
    """Families whose forward pass is modelled."""
    return tuple(kind for kind in FAMILIES if spec_class(kind).runs)


@cache
def named() -> tuple[str, ...]:
    """Catalogue models that run, by name."""
    from estimator.specs.published import model_folder

    names = sorted(path.stem for path in model_folder().glob("*.yaml"))
    return tuple(name for name in names if published(name).architecture.forward_modelled)


def kind_of(name: str) -> str:
    """The family of a catalogue model."""
    return published(name).architecture.model_type


def small(rng: random.Random, kind: str) -> dict[str, Any]:
    """A small architecture of a family."""
    layers, head_count, size = rng.choice((1, 1, 1, 1, 2, 2, 3)), rng.choice((4, 8)), rng.choice((16, 32, 64, 80, 128))
    common: dict[str, Any] = {
        "hidden_size": head_count * size,
        "num_hidden_layers": layers,
        "num_attention_heads": head_count,
        "vocab_size": rng.choice((1000, 8000)),
    }
    if "vision_config" in spec_class(kind).model_fields and "text_config" in table("random_models")[kind]:
        common = {}
    if kind == "mamba2":
        common["num_heads"] = 2 * head_count * size // 32
    if kind in ("granitemoehybrid", "bamba", "falcon_h1"):
        common["mamba_n_heads"] = head_count
    if kind == "granitemoehybrid":
        common["layer_types"] = [rng.choice(("mamba", "attention")) for _ in range(layers)]
    if kind == "nemotron_h":
        common["mamba_num_heads"] = head_count
        common["layer_types"] = [rng.choice(("linear_attention", "full_attention", "mlp", "moe")) for _ in range(layers)]
    if kind == "lfm2_moe":
        common["layer_types"] = [rng.choice(("conv", "full_attention")) for _ in range(layers)]
    for name in EACH:
        if name not in common and (of := layer_kinds(kind, name)) and rng.random() < 0.5:
            common[name] = [rng.choice(of) for _ in range(layers)]
    keys = spec_class(kind).keys()
    known = {name: value for name, value in common.items() if name in keys}
    own = {name: rng.choice(values) for name, values in table("random_models")[kind].items()}
    return {"model_type": kind, **known, **own}


@cache
def layer_kinds(kind: str, name: str) -> tuple[str, ...]:
    """What a layer may be, where a family has a field that lists it layer by layer."""
    listed = spec_class(kind).model_fields.get(name)
    return tuple(_literals(listed.annotation)) if listed else ()


def _literals(annotation: Any) -> list[str]:
    found: list[str] = []
    for each in members(annotation):
        inner = get_args(each)
        found += inner if get_origin(each) is Literal else [name for one in inner for name in _literals(one)]
    return found


def full(rng: random.Random, name: str) -> dict[str, Any]:
    """A catalogue model with one to four layers."""
    whole = published(name).architecture.model_dump(mode="json")
    return _cut(whole, rng.randint(1, 4))


def _cut(whole: dict[str, Any], most: int) -> dict[str, Any]:
    """A model, and its parts, with so many layers at most."""
    cut: dict[str, Any] = {}
    for key, value in whole.items():
        deep = key in LAYERS and isinstance(value, int)
        cut[key] = min(value, most) if deep else value[:most] if key == "layer_types" and value else value
        if key == "num_kv_shared_layers":
            cut[key] = 0  # of so few none is left to share with
        if isinstance(value, dict) and "vision_config" in whole:
            cut[key] = _cut(value, most)
    return cut
