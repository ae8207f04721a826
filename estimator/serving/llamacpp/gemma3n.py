"""llama.cpp's graph of Gemma 3n: streams of hidden states, of which each layer sees one and corrects all.

After src/models/gemma3n.cpp of llama.cpp, as of October 2026. Attention and what layers get of each token beside hidden states
are Gemma 4's, but for one size of heads.
"""

from __future__ import annotations

from estimator.serving.llamacpp.gemma4 import Gemma4Builder
from estimator.serving.llamacpp.ggml import Tensor
from estimator.serving.llamacpp.graph import Builder
from estimator.serving.llamacpp.operations import NUMBER, given


class Gemma3nBuilder(Gemma4Builder):
    """Builds the graph of one batch. Hidden states between layers: [hidden, tokens, streams]."""

    def _embedded(self) -> Tensor:
        hidden = Builder._embedded(self)
        size, layers, tokens = self.sharing.per_layer, self.shape.layers, self.tokens
        rows = self.op("get_rows", (size * layers, tokens), self.weight("per_layer_token_embd", None), given((tokens,), NUMBER))
        self.found = self.graph.expand(self.unlike("scale", self.view(rows, (size, layers, tokens))))
        return hidden

    def _of_ids(self) -> Tensor:
        assert self.found is not None
        return self.found

    def _layer(self, hidden: Tensor, layer: int) -> Tensor:
        shape = self.shape
        if layer == 0:
            self.beside = self._joined(hidden)
            hidden = self._stacked(hidden)
        self.shape, self.batch = self.forms[self._slides(layer)]
        predicted = self._predicted(hidden, layer)
        active = self._one(predicted)
        x = self.norm(active, "attn_norm", layer)
        bypass = self._bypass(x, layer)
        out = self.norm(self._attention(x, layer), "post_attention_norm", layer)
        attended = self.unlike("add", out, active)
        both = self.unlike("scale", self.unlike("add", attended, bypass))
        fed = self._feed(self.norm(both, "ffn_norm", layer), layer)
        fed = self.norm(fed, "post_ffw_norm", layer, forced=False)
        corrected = self._corrected(predicted, self.unlike("add", fed, both), layer)
        first = self.unlike("mul", self._one(corrected), self.weight("altup_correct_scale", layer))
        first = self._beside(first, layer)
        rest = self.view(corrected, (*first.shape, shape.streams - 1))
        hidden = self.op("concat", corrected.shape, self._one(corrected), self.unlike("add", rest, first))
        return self._merged(hidden) if layer == shape.layers - 1 else hidden

    def _one(self, streams: Tensor) -> Tensor:
        """One of them."""
        return self.view(streams, streams.shape[:2])

    def _magnitude(self, x: Tensor) -> Tensor:
        return Tensor("sqrt", (1, *x.shape[1:]), [self.op("sum_rows", (1, *x.shape[1:]), self.unlike("sqr", x))])

    def _scaled_to(self, x: Tensor, magnitude: Tensor) -> Tensor:
        made = self._magnitude(x)
        return self.unlike("div", self.unlike("mul", x, magnitude), made)

    def _stacked(self, hidden: Tensor) -> Tensor:
        """The first stream and what is made of it for the others."""
        shape, (size, tokens) = self.shape, hidden.shape
        target = self._magnitude(hidden)
        added = self.product("altup_proj", None, size, self.op("repeat", (size, tokens, shape.streams - 1), hidden))
        return self.op("concat", (size, tokens, shape.streams), hidden, self._scaled_to(added, target))

    def _merged(self, hidden: Tensor) -> Tensor:
        """The mean of all streams."""
        size, tokens, streams = hidden.shape
        target = self._magnitude(self._one(hidden))
        made = self.product("altup_unembd_proj", None, size, self.view(hidden, (size, tokens, streams - 1)))
        made, total = self._scaled_to(made, target), self._one(hidden)
        for _ in range(streams - 1):
            total = self.unlike("add", total, self._one(made))
        return self.unlike("scale", total)

    def _modalities(self, x: Tensor, layer: int) -> Tensor:
        x = self.unlike("scale", self.norm(x, "altup_router_norm", layer))
        return self.unlike("unary", self.product("altup_router", layer, self.shape.streams, x))

    def _predicted(self, hidden: Tensor, layer: int) -> Tensor:
        """What a layer is thought to make of all streams, by the one that it sees."""
        size, tokens, streams = hidden.shape
        made = self.product("altup_predict_coef", layer, streams**2, self._modalities(self._one(hidden), layer))
        turned = self.op("cont", (streams, size, tokens), self.view(hidden, (streams, size, tokens), dense=False))
        made = self.op("mul_mat", (size, streams, tokens), turned, self.view(made, (streams, streams, tokens)))
        made = self.op("cont", hidden.shape, self.view(made, hidden.shape, dense=False))
        return self.unlike("add", made, hidden)

    def _corrected(self, predicted: Tensor, out: Tensor, layer: int) -> Tensor:
        """All streams, by what the layer made of one."""
        _, tokens, streams = predicted.shape
        modalities = self._modalities(out, layer)
        wrong = self.unlike("sub", out, self._one(predicted))
        factors = self.unlike("scale", self.product("altup_correct_coef", layer, streams, modalities))
        factors = self.op("cont", (1, tokens, streams), self.view(factors, (tokens, streams), dense=False))
        wrong = self.unlike("mul", self.op("repeat", predicted.shape, wrong), factors)
        return self.unlike("add", wrong, predicted)

    def _bypass(self, x: Tensor, layer: int) -> Tensor:
        made = self.product("laurel_l", layer, self.shape.bypass, x)
        made = self.norm(self.product("laurel_r", layer, self.shape.hidden, made), "laurel_post_norm", layer)
        return self.unlike("add", made, x)

    def _feed(self, x: Tensor, layer: int) -> Tensor:
        wide = self.sharing.wide[layer]
        up, gate = self.product("ffn_up", layer, wide, x), self.product("ffn_gate", layer, wide, x)
        if self.sharing.sparse[layer]:
            mean = self.op("mean", (1, x.shape[1]), gate)
            spread = self.op("sum_rows", mean.shape, self.unlike("sqr", self.unlike("sub", gate, mean)))
            spread = self.unlike("sqrt", self.unlike("scale", spread))
            cutoff = self.unlike("add", mean, self.unlike("scale", spread))
            gate = self.unlike("unary", self.unlike("sub", gate, cutoff))
        return self.product("ffn_down", layer, self.shape.hidden, self.unlike("mul", up, self.unlike("unary", gate)))
