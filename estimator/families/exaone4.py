"""EXAONE 4: norms after each block and of queries and keys; layers that see everything rotate nothing where others have windows.

After transformers' modeling_exaone4.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PostNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention, normed_after_all
from estimator.families.heads import decoder_heads
from estimator.families.modules import Module
from estimator.families.rotations import unrotated
from estimator.families.spec import DecoderSpec, Size
from estimator.families.windows import FULL, SLIDING, LayerType, WindowedSpec, causal_masks
from estimator.tape.dtypes import DType
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor


class Exaone4Spec(WindowedSpec):
    """A `sliding_window_pattern` of letters, LLLG, is that of a period of so many layers."""

    can = Abilities(gguf=True, graph="exaone-4")
    default_period = 4

    sliding_window: Size | None = 4096  # type: ignore[assignment]
    sliding_window_pattern: Size = 4

    @property
    def kinds(self) -> tuple[LayerType, ...]:
        return super().kinds if self.sliding_window else (FULL,) * self.num_hidden_layers

    @model_validator(mode="before")
    @classmethod
    def _period(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "sliding_window_pattern" not in given:
            return given
        said = given["sliding_window_pattern"]
        if isinstance(said, str) and said == "L" * (len(said) - 1) + "G":
            return {**given, "sliding_window_pattern": len(said)}
        rest = {name: value for name, value in given.items() if name != "sliding_window_pattern"}
        return rest if said in (None, 0) and given.get("sliding_window") is None else given


SPECS = {"exaone4": Exaone4Spec}


def masks(
    spec: DecoderSpec, tape: Tape, batch: int, tokens: int, dtype: DType, implementation: str
) -> dict[LayerType, Tensor | None]:
    """A mask for windows is made only where a layer has one."""
    if isinstance(spec, Exaone4Spec) and SLIDING in spec.kinds:
        return causal_masks(spec, tape, batch, tokens, dtype, implementation)
    return {FULL: causal_mask(tape, batch, tokens, dtype, implementation, None)}


def self_attention(spec: WindowedSpec, build: Builder, kind: LayerType) -> GroupedQueryAttention:
    """Attention of a layer of a kind."""

    def norm(which: str, _: int) -> Module:
        return build.rms_norm(f"self_attn.{which}_norm", spec.head_dim)

    rotate = None if kind == SLIDING or spec.sliding_window is None else unrotated
    return GroupedQueryAttention(spec, build, norm=norm, project=normed_after_all, rotate=rotate)


def exaone4(spec: Exaone4Spec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(kind: LayerType) -> PostNorm:
        return PostNorm(spec, build, self_attention(spec, build, kind), GatedMLP(spec, build))

    return Decoder(spec, build, layer, spec.kinds, masks=masks)


HEADS = decoder_heads(exaone4)
