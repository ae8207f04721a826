"""llama.cpp's graph of MiMo-V2, whose layers that see everything have fewer heads of keys, and no sinks.

After src/models/mimo2.cpp of llama.cpp, as of October 2026.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.serving.llamacpp.ggml import Tensor
from estimator.serving.llamacpp.graph import Builder
from estimator.serving.llamacpp.operations import Devices, Weight
from estimator.serving.llamacpp.shape import Batch, Shape


class MimoBuilder(Builder):
    """Builds the graph of one batch. `forms`: what is asked of a model and of a batch, by whether a layer has a window."""

    def __init__(self, shape: Shape, batch: Batch, devices: Devices, weight: Weight):
        super().__init__(shape, batch, devices, weight)
        fewer, many = shape.whole_keys, shape.key_heads
        values = batch.value_bytes * fewer // many if batch.flash else batch.value_bytes
        whole = replace(batch, key_bytes=batch.key_bytes * fewer // many, value_bytes=values)
        self.forms = {True: (shape, batch), False: (replace(shape, key_heads=fewer, sinks=False), whole)}

    def _layer(self, hidden: Tensor, layer: int) -> Tensor:
        self.shape, self.batch = self.forms[bool(self.shape.sliding) and self.shape.sliding[layer]]
        return super()._layer(hidden, layer)

    def _attention(self, x: Tensor, layer: int) -> Tensor:
        return self.unlike("scale", super()._attention(x, layer))
