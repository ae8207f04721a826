"""Masks of a decoder whose tokens see each other in both directions: what looks back, or anything else that is near enough.

After `Gemma3TextModel.forward` and `_bidirectional_window_overlay` (transformers' modeling_gemma3.py, 5.23), which hand functions
to masking_utils.py, `create_causal_mask` and `create_sliding_window_causal_mask`: such masks are always made, by `vmap`.
"""

from __future__ import annotations

from collections.abc import Callable

from estimator.families.spec import DecoderSpec
from estimator.families.windows import FULL, SLIDING, LayerType
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty


def two_way_masks(
    spec: DecoderSpec, tape: Tape, batch: int, tokens: int, dtype: DType, implementation: str
) -> dict[LayerType, Tensor | None]:
    """The masks of layers that see everything and of those that see a window; none for FlashAttention."""
    if implementation not in ("sdpa", "eager"):
        return {FULL: None, SLIDING: None}
    return {
        FULL: _as_asked(tape, batch, tokens, dtype, implementation, _whole),
        SLIDING: _as_asked(tape, batch, tokens, dtype, implementation, _near),
    }


def _as_asked(
    tape: Tape, batch: int, tokens: int, dtype: DType, implementation: str, seen: Callable[[Tape, int], Tensor]
) -> Tensor:
    """Of booleans, one for all sequences; for `eager` numbers that are added, of each sequence."""
    places = [empty(tape, (size,), dtypes.int64, "arange") for size in (batch, 1, tokens, tokens)]
    mask = seen(tape, tokens)
    del places
    return mask if implementation == "sdpa" else empty(tape, (batch, 1, tokens, tokens), dtype, "where")


def _square(tape: Tape, tokens: int, operation: str) -> Tensor:
    return empty(tape, (1, 1, tokens, tokens), dtypes.bool_, operation)


def _whole(tape: Tape, tokens: int) -> Tensor:
    """What looks back, or anything."""
    none = empty(tape, (tokens,), dtypes.bool_, "new_zeros")
    back = _square(tape, tokens, "le")
    either = _square(tape, tokens, "bitwise_or")
    del back, none
    made = _square(tape, tokens, "bitwise_or")
    del either
    return made


def _near(tape: Tape, tokens: int) -> Tensor:
    """What looks back in a window, or is as near in either direction; distances are numbers of eight bytes."""
    none = empty(tape, (tokens,), dtypes.bool_, "new_zeros")
    window = _window(tape, tokens)
    either = _square(tape, tokens, "bitwise_or")
    del window, none
    distance = empty(tape, either.shape, dtypes.int64, "sub")
    amount = empty(tape, either.shape, dtypes.int64, "abs")
    del distance
    near = _square(tape, tokens, "lt")
    del amount
    made = _square(tape, tokens, "bitwise_or")
    del near, either
    return made


def _window(tape: Tape, tokens: int) -> Tensor:
    """What looks back in a window."""
    ones = empty(tape, (tokens,), dtypes.bool_, "new_ones")
    first = empty(tape, (tokens,), dtypes.int64, "sub")
    after = _square(tape, tokens, "gt")
    del first
    joined = _square(tape, tokens, "bitwise_and")
    del after, ones
    back = _square(tape, tokens, "le")
    window = _square(tape, tokens, "bitwise_and")
    del back, joined
    return window
