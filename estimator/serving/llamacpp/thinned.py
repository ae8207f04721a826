"""llama.cpp's graph of a Llama of which a search has thinned the layers out (Llama-Nemotron).

After src/models/deci.cpp of llama.cpp, as of October 2026. A layer without a feed-forward layer is passed over whole, with its
attention if it has one.
"""

from __future__ import annotations

from estimator.serving.llamacpp.ggml import Tensor
from estimator.serving.llamacpp.graph import Builder


class ThinnedBuilder(Builder):
    """Builds the graph of one batch."""

    def _layer(self, hidden: Tensor, layer: int) -> Tensor:
        attends, wide = self.shape.thinned[layer]
        if not wide:
            return hidden
        out = self._attention(self.norm(hidden, "attn_norm", layer), layer) if attends else hidden
        residual = hidden
        if layer == self.shape.layers - 1:
            self.tokens = self.batch.outputs
            size = (self.shape.hidden, self.tokens)
            out, residual = (self.op("get_rows", size, each, self.chosen) for each in (out, residual))
        attended = self.unlike("add", out, residual) if attends else out
        fed = self._feed_forward(self.norm(attended, "ffn_norm", layer), layer, wide, "")
        return self.unlike("add", fed, attended)
