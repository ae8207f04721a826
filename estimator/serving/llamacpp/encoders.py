"""llama.cpp's graphs of encoders, which keep no cache: a text's tokens see each other in one pass, and give vectors.

After src/models/bert.cpp, modern-bert.cpp, eurobert.cpp and gemma-embedding.cpp, and src/llama-graph.cpp
(`build_attn_inp_no_cache`, `build_attn_mha`, `build_pooling`), as of October 2026. A file has no output layer, and a vector is
the mean of a text's.
"""

from __future__ import annotations

from estimator.serving.llamacpp.ggml import Graph, Tensor
from estimator.serving.llamacpp.graph import Builder
from estimator.serving.llamacpp.operations import HALF, NUMBER, Devices, Weight, given
from estimator.serving.llamacpp.shape import Batch, Shape


class EncoderBuilder(Builder):
    """Builds the graph of one batch."""

    def __init__(self, shape: Shape, batch: Batch, devices: Devices, weight: Weight):
        super().__init__(shape, batch, devices, weight)
        self.masks = {slides: self._mask() for slides in sorted({False, *shape.sliding})}

    def _mask(self) -> Tensor:
        return given((self.tokens, self.tokens, 1, 1), HALF if self.batch.flash else NUMBER)

    def built(self) -> Graph:
        """The graph."""
        shape = self.shape
        hidden = self._embedded()
        if shape.scaled_embedding:
            hidden = self.unlike("mul", hidden, given((1, self.tokens), NUMBER))
        if shape.typed:
            table = self.weight("token_types", None)
            hidden = self.unlike("add", hidden, Tensor("view", (shape.hidden,), [table], root=table))
        if shape.learned_positions:
            rows = self.op("get_rows", hidden.shape, self.weight("position_embd", None), self.positions)
            hidden = self.unlike("add", rows, hidden)
        if shape.normed_embedding:
            hidden = self.norm(hidden, "token_embd_norm", None)
        for layer in range(shape.layers):
            hidden = self._layer(hidden, layer)
        if shape.pre_norms:
            hidden = self.norm(hidden, "output_norm", None)
        self.graph.expand(hidden)
        self._pooled(hidden)
        return self.graph

    def _layer(self, hidden: Tensor, layer: int) -> Tensor:
        shape = self.shape
        normed = shape.pre_norms and not (shape.first_unnormed and layer == 0)
        out = self._attention(self.norm(hidden, "attn_norm", layer) if normed else hidden, layer)
        if layer == shape.layers - 1:
            self.tokens = self.batch.outputs
            out, hidden = (self.op("get_rows", (shape.hidden, self.tokens), each, self.chosen) for each in (out, hidden))
        if shape.post_norms:
            out = self.norm(out, "post_attention_norm", layer)
        out = self.unlike("add", out, hidden)
        if shape.pre_norms:
            fed = self._feed_forward(self.norm(out, "ffn_norm", layer), layer, shape.wide, "")
            fed = self.norm(fed, "post_ffw_norm", layer, forced=False) if shape.post_norms else fed
            return self.unlike("add", fed, out)
        out = self.norm(out, "attn_output_norm", layer)
        return self.norm(self.unlike("add", self._feed_forward(out, layer, shape.wide, ""), out), "layer_output_norm", layer)

    def _attention(self, x: Tensor, layer: int) -> Tensor:
        shape, tokens = self.shape, self.tokens
        q, k, v = self._projected(x, layer)
        if shape.normed:
            q, k = self.norm(q, "attn_q_norm", layer), self.norm(k, "attn_k_norm", layer)
        if shape.rotary[layer]:
            q, k = self.unlike("rope", q, self.positions), self.unlike("rope", k, self.positions)
        if shape.scaled_queries:
            q = self.unlike("scale", q)
        for each in (q, k, v):
            self.graph.expand(each)
        mask = self.masks[bool(shape.sliding) and shape.sliding[layer]]
        q, k, v = (self.view(each, (shape.head, tokens, each.shape[1]), dense=False) for each in (q, k, v))
        if self.batch.flash:
            keys, values = (Tensor("cpy", each.shape, [each], width=HALF) for each in (k, v))
            out = self.op("flash_attn", (shape.head, shape.heads, tokens), q, keys, values, mask)
            out = self.view(out, (shape.head * shape.heads, tokens))
        else:
            scores = self.unlike("soft_max", self.op("mul_mat", (tokens, tokens, shape.heads), k, q), mask)
            turned = self.op("cont", (tokens, shape.head, shape.key_heads), self.view(v, v.shape, dense=False))
            out = self.op("mul_mat", (shape.head, tokens, shape.heads), turned, scores)
            out = self.op("cont", (shape.head * shape.heads, tokens), self.view(out, out.shape, dense=False))
        self.graph.expand(out)
        return self.biased(self.product("attn_output", layer, shape.hidden, out), "attn_output.bias", layer, shape.output_bias)

    def _pooled(self, hidden: Tensor) -> None:
        """The mean of each text's vectors."""
        turned = self.op("cont", (self.tokens, self.shape.hidden), self.view(hidden, hidden.shape, dense=False))
        means = given((self.tokens, self.batch.sequences), NUMBER)
        self.graph.expand(self.op("mul_mat", (self.shape.hidden, self.batch.sequences), turned, means))
