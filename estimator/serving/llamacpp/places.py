"""Places of llama.cpp's caches, as inputs of its graph."""

from __future__ import annotations

from estimator.serving.llamacpp.ggml import Tensor
from estimator.serving.llamacpp.operations import HALF, NUMBER, PLACE, given
from estimator.serving.llamacpp.shape import Batch, Shape


class Places:
    """Of one of the caches: places for new keys and values, the mask, and what turns both before they are stored."""

    def __init__(self, shape: Shape, batch: Batch, cells: int):
        self.cells = cells
        tokens, streams = batch.tokens, batch.streams
        self.key_places = given((tokens,), PLACE)
        numbers = tokens if batch.flash else tokens * shape.values
        self.value_places = None if shape.latent else given((numbers,), PLACE)
        self.mask = given((cells, tokens // streams, 1, streams), HALF if batch.flash else NUMBER)
        self.turns_keys = turning(batch.turned_keys)
        self.turns_values = turning(batch.turned_values)


def turning(size: int) -> Tensor | None:
    return given((size, size), 4) if size else None
