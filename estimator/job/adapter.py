"""Adapters: small trainable parts beside a frozen model. Each method is a class with the keys that it has; `type` says which."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from estimator.job.part import Count, Part

Rank = Annotated[int, Field(ge=1, le=65536)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
Type = Literal["bf16", "fp16", "fp32"]


def _some(targets: str | list[str]) -> str | list[str]:
    if not targets:
        raise ValueError("is empty: name at least one layer, or write all-linear")
    return targets


ALL_LINEAR: Final = "all-linear"
Targets = Annotated[
    Literal["all-linear"] | list[str],
    Field(description="names of the adapted layers, or all-linear"),
    AfterValidator(_some),
]


class LowRank(Part):
    """A method that puts matrices of a low rank beside linear layers, those that `targets` names."""

    type: str
    rank: Rank = 16
    targets: Targets = ALL_LINEAR
    dtype: Type = "bf16"
    dropout: Dropout = 0.0


class Lora(LowRank):
    """LoRA: small trainable matrices beside frozen linear layers."""

    type: Literal["lora"] = "lora"


class Dora(LowRank):
    """DoRA: LoRA whose sum with the frozen weight is scaled to a trained length for each output."""

    type: Literal["dora"]


class Vera(LowRank):
    """VeRA: two frozen random matrices that all layers share, and two trained vectors for each layer."""

    type: Literal["vera"]
    rank: Rank = 256


class PromptLearning(Part):
    """A method that trains vectors which every sequence begins with, in each layer or before the first."""

    type: str
    virtual_tokens: Annotated[int, Field(ge=1, le=2**16)] = Field(20, description="how many vectors, each like a token's")
    dtype: Type = "fp32"


class PromptTuning(PromptLearning):
    """Prompt tuning: vectors before the embeddings of the sequence."""

    type: Literal["prompt-tuning"]


class PTuning(PromptLearning):
    """P-tuning: the same, made by a small network from vectors of its own."""

    type: Literal["p-tuning"]
    encoder: Literal["mlp", "lstm"] = "mlp"
    hidden: Count | None = Field(None, description="width of the network; without it, the model's")


class PrefixTuning(PromptLearning):
    """Prefix tuning: keys and values that the tokens of every layer look back on."""

    type: Literal["prefix-tuning"]
    projection: bool = Field(False, description="they are made by a small network from vectors of its own")
    hidden: Count | None = Field(None, description="width of the network; without it, that of a layer's keys")


def _type(given: Any) -> str:
    """The method that a mapping names, as `branch` writes it; lora, where it names none."""
    name = given.get("type", "lora") if isinstance(given, dict) else getattr(given, "type", "lora")
    return branch(name)


def branch(method: object) -> str:
    """What pydantic calls a method in the place of an error, which `estimator.validation` leaves out of what it says."""
    return f"type[{method}]"


Adapter = Annotated[
    Annotated[Lora, Tag(branch("lora"))]
    | Annotated[Dora, Tag(branch("dora"))]
    | Annotated[Vera, Tag(branch("vera"))]
    | Annotated[PromptTuning, Tag(branch("prompt-tuning"))]
    | Annotated[PTuning, Tag(branch("p-tuning"))]
    | Annotated[PrefixTuning, Tag(branch("prefix-tuning"))],
    Discriminator(_type),
]
"""One method."""
