"""Decoders in which layers that see a sliding window alternate with layers that see everything.

After the configurations of transformers that have `layer_types`, and its masking_utils.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from estimator.families.attention import causal_mask
from estimator.families.cache_layers import CacheLayer, attention
from estimator.families.each_layer import check_each_named
from estimator.families.spec import DecoderSpec, RotaryDecoderSpec, Size
from estimator.tape.dtypes import DType
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor

LayerType = Literal["full_attention", "sliding_attention"]
FULL: LayerType = "full_attention"
SLIDING: LayerType = "sliding_attention"
PERIOD = "sliding_window_pattern"


class WindowedSpec(RotaryDecoderSpec):
    """The last layer of each period sees everything, unless `layer_types` says which ones do.

    Some configurations say how long the period is: they have a field `sliding_window_pattern`.
    """

    default_period: ClassVar[int]
    seeing_all: ClassVar[int] = -1
    """Which layer of each period sees everything: the last one, mostly."""

    sliding_window: Size = 4096
    layer_types: tuple[LayerType, ...] | None = None

    @property
    def kinds(self) -> tuple[LayerType, ...]:
        """What each layer sees."""
        return self.layer_types or self.types(self.num_hidden_layers, getattr(self, PERIOD, self.default_period))

    @classmethod
    def types(cls, layers: int, period: int) -> tuple[LayerType, ...]:
        """What layers see whose types nothing says."""
        return tuple([SLIDING if (i - cls.seeing_all) % period else FULL for i in range(layers)])

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        heads, size, window = self.num_key_value_heads, self.head_dim, self.sliding_window
        return tuple([attention(heads, size, window if kind == SLIDING else None) for kind in self.kinds])

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, given: Any) -> Any:
        """Types that the pattern gives anyway need not be said, and then follow the number of layers."""
        if not isinstance(given, Mapping) or not isinstance(given.get("layer_types"), list | tuple):
            return given
        layers, period = given.get("num_hidden_layers"), given.get(PERIOD, cls.default_period)
        if not (isinstance(layers, int) and isinstance(period, int) and 0 < layers <= 2**12 and period > 0):
            return given
        if list(given["layer_types"]) == list(cls.types(layers, period)):
            return {name: value for name, value in given.items() if name != "layer_types"}
        return given

    @model_validator(mode="after")
    def _each_layer(self) -> Self:
        check_each_named(self.layer_types, self.num_hidden_layers)
        return self

    def config(self) -> dict[str, Any]:
        return super().config() | {"layer_types": list(self.kinds)}


def layer_types(spec: DecoderSpec) -> tuple[LayerType, ...]:
    """What each layer of any decoder sees."""
    return spec.kinds if isinstance(spec, WindowedSpec) else (FULL,) * spec.num_hidden_layers


def causal_masks(
    spec: DecoderSpec, tape: Tape, batch: int, tokens: int, dtype: DType, implementation: str
) -> dict[LayerType, Tensor | None]:
    """The mask for each kind of layer. Where there can be windows both are made, even if all layers are of one kind."""
    masks = {FULL: causal_mask(tape, batch, tokens, dtype, implementation, spec.window)}
    if isinstance(spec, WindowedSpec):
        masks[SLIDING] = causal_mask(tape, batch, tokens, dtype, implementation, spec.sliding_window)
    return masks


def masks_seen(
    spec: DecoderSpec, tape: Tape, batch: int, tokens: int, dtype: DType, implementation: str
) -> dict[LayerType, Tensor | None]:
    """The masks of those kinds that some layer is of."""
    sliding = spec.sliding_window if isinstance(spec, WindowedSpec) else None
    windows = {kind: sliding if kind == SLIDING else None for kind in layer_types(spec)}
    return {kind: causal_mask(tape, batch, tokens, dtype, implementation, window) for kind, window in windows.items()}
