"""The graph of a model's batch, by what builds it."""

from __future__ import annotations

from estimator.serving.llamacpp.ggml import Graph
from estimator.serving.llamacpp.graph import Builder
from estimator.serving.llamacpp.operations import Devices, Weight
from estimator.serving.llamacpp.shape import Batch, Shape


def built(shape: Shape, batch: Batch, devices: Devices, weight: Weight) -> Graph:
    """The graph; of those that have a builder of their own nothing is loaded for another model."""
    if shape.encodes:
        from estimator.serving.llamacpp.encoders import EncoderBuilder

        return EncoderBuilder(shape, batch, devices, weight).built()
    if shape.indexer:
        from estimator.serving.llamacpp.indexed import IndexedBuilder

        return IndexedBuilder(shape, batch, devices, weight).built()
    if shape.thinned:
        from estimator.serving.llamacpp.thinned import ThinnedBuilder

        return ThinnedBuilder(shape, batch, devices, weight).built()
    if shape.unfolded:
        from estimator.serving.llamacpp.minicpm3 import MiniCPM3Builder

        return MiniCPM3Builder(shape, batch, devices, weight).built()
    if shape.whole_keys:
        from estimator.serving.llamacpp.mimo import MimoBuilder

        return MimoBuilder(shape, batch, devices, weight).built()
    if shape.sharing is None:
        return Builder(shape, batch, devices, weight).built()
    if shape.streams > 1:
        from estimator.serving.llamacpp.gemma3n import Gemma3nBuilder

        return Gemma3nBuilder(shape, batch, devices, weight).built()
    from estimator.serving.llamacpp.gemma4 import Gemma4Builder

    return Gemma4Builder(shape, batch, devices, weight).built()
