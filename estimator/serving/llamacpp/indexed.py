"""llama.cpp's graph of latent attention to those keys alone that an indexer has picked (DeepSeek-V3.2, GLM-5).

After llama.cpp's src/models/deepseek32.cpp, src/models/glm-dsa.cpp and `build_attn` of src/llama-graph.cpp (October 2026), with
the fused kernel of indexers. Every key is still scored: the mask leaves those that were picked.
"""

from __future__ import annotations

from estimator.serving.llamacpp.ggml import Tensor
from estimator.serving.llamacpp.graph import Builder
from estimator.serving.llamacpp.operations import HALF, NUMBER, PLACE, Devices, Weight, given
from estimator.serving.llamacpp.places import turning
from estimator.serving.llamacpp.shape import Batch, Shape


class IndexedBuilder(Builder):
    """Builds the graph of one batch. `picked`: what the last layer with an indexer has picked for each token."""

    def __init__(self, shape: Shape, batch: Batch, devices: Devices, weight: Weight):
        super().__init__(shape, batch, devices, weight)
        assert shape.indexer is not None
        self.indexer, self.streams = shape.indexer, batch.streams
        self.each = batch.tokens // batch.streams
        self.most = min(self.indexer.picked, batch.cells)
        self.picked = given((self.most, self.each, 1, self.streams), NUMBER)
        self.index_places = given((batch.tokens,), PLACE)
        self.index_mask = given((batch.cells, self.each, 1, self.streams), HALF)
        self.index_turns = turning(self.indexer.size & -self.indexer.size)

    def _seen(self, x: Tensor, queries: Tensor, layer: int) -> Tensor:
        """The mask with what was picked alone."""
        if self.indexer.layers[layer]:
            self.picked = self._picked(x, queries, layer)
        whole, cells = self.whole.mask, self.batch.cells
        masked = self.view(self.unlike("fill", whole), (1, cells, self.each, self.streams))
        places = self.view(self.picked, (self.most, self.each, self.streams))
        zeros = Tensor("none", (1, self.most, self.each, self.streams))
        shown = Tensor("set_rows", masked.shape, [self.unlike("fill", zeros), places, masked], root=masked)
        width = HALF if self.batch.flash else NUMBER
        return Tensor("add", whole.shape, [self.view(shown, whole.shape), whole], width=width)

    def _picked(self, x: Tensor, queries: Tensor, layer: int) -> Tensor:
        """The best keys of each token, by the indexer's own queries and keys, which are cached."""
        size, heads, tokens, streams = self.indexer.size, self.indexer.heads, self.tokens, self.streams
        assert self.index_turns is not None
        q = self.view(self.product("indexer.attn_q_b", layer, size * heads, queries), (size, heads, tokens))
        q = self.op("mul_mat", q.shape, self.index_turns, self.unlike("rope", q, self.positions))
        k = self.unlike("norm", self.product("indexer.attn_k", layer, size, x))
        if self.devices.forced:
            k.backend = self.devices.layers[layer]
        k = self.unlike("mul", k, self.weight("indexer.k_norm", layer))
        k = self.view(self.unlike("add", k, self.weight("indexer.k_norm.bias", layer)), (size, 1, tokens))
        k = self.op("mul_mat", k.shape, self.index_turns, self.unlike("rope", k, self.positions))
        held = Tensor("none", (size, self.batch.cells, streams), nbytes=0)
        held.device = self.devices.layers[layer]
        self.graph.expand(
            Tensor("set_rows", held.shape, [self.view(k, (size, tokens)), self.index_places, held], root=held, nbytes=0)
        )
        cached = self.batch.cells * streams * self.batch.index_bytes
        keys = Tensor("view", (size, 1, self.batch.cells, streams), [held], root=held, nbytes=cached)
        weights = self.view(self.product("indexer.proj", layer, heads, x), (heads, self.each, 1, streams))
        scored = (self.batch.cells, self.each, 1, streams)
        q = self.view(q, (size, heads, self.each, streams))
        scores = self.op("lightning_indexer", scored, q, keys, self.unlike("scale", weights), self.index_mask)
        best = self.op("top_k", (self.most, *scored[1:]), scores)
        return self.unlike("cont", best)
