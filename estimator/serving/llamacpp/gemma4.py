"""llama.cpp's graph of Gemma 4, whose layers have heads of their own where they see everything.

After src/models/gemma4.cpp, as of October 2026.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.serving.llamacpp.ggml import Tensor
from estimator.serving.llamacpp.graph import Builder
from estimator.serving.llamacpp.operations import NUMBER, Devices, Weight, given
from estimator.serving.llamacpp.places import Places, turning
from estimator.serving.llamacpp.shape import Batch, Experts, Shape, Sharing


class Gemma4Builder(Builder):
    """Builds the graph of one batch. `forms`: what is asked of a model and of a batch, by whether a layer has a window."""

    def __init__(self, shape: Shape, batch: Batch, devices: Devices, weight: Weight):
        super().__init__(shape, batch, devices, weight)
        assert shape.sharing is not None
        self.sharing: Sharing = shape.sharing
        keys, head = self.sharing.key_heads, self.sharing.head
        own, wide = shape.key_heads * shape.head, keys * head
        whole = replace(batch, key_bytes=batch.key_bytes * wide // own, value_bytes=batch.value_bytes * wide // own)
        self.cached: dict[int, tuple[Tensor, Tensor]] = {}
        self.found: Tensor | None = None
        self.beside: Tensor | None = None
        self.forms = {True: (shape, batch), False: (replace(shape, head=head, key_heads=keys, values_wide=head), whole)}
        if batch.turned_keys:
            self.whole.turns_keys = turning(head & -head)

    def _slides(self, layer: int) -> bool:
        return bool(self.shape.sliding) and self.shape.sliding[layer]

    def _layer(self, hidden: Tensor, layer: int) -> Tensor:
        if layer == 0 and self.sharing.per_layer:
            self.beside = self._joined(hidden)
        self.shape, self.batch = self.forms[self._slides(layer)]
        out = self._attention(self.norm(hidden, "attn_norm", layer), layer)
        attended = self.unlike("add", self.norm(out, "post_attention_norm", layer), hidden)
        fed = self._feed_forward(self.norm(attended, "ffn_norm", layer), layer, self.sharing.wide[layer], "")
        if self.shape.experts:
            sparse = self.norm(self._mixture(attended, layer, self.shape.experts), "post_ffw_norm_2", layer)
            fed = self.unlike("add", self.norm(fed, "post_ffw_norm_1", layer), sparse)
        out = self.unlike("add", self.norm(fed, "post_ffw_norm", layer, forced=False), attended)
        if self.sharing.per_layer:
            out = self.unlike("add", out, self._beside(out, layer))
        return self.unlike("mul", out, self.weight("layer_output_scale", layer))

    def _embedded(self) -> Tensor:
        """What is looked up of the tokens, before that what each layer gets."""
        if size := self.sharing.per_layer * self.shape.layers:
            table = self.weight("per_layer_token_embd", None)
            self.found = self.graph.expand(self.op("get_rows", (size, self.tokens), table, given((self.tokens,), NUMBER)))
        return super()._embedded()

    def _joined(self, hidden: Tensor) -> Tensor:
        """What layers get of each token beside hidden states: by its id, and of its embedding."""
        size, layers, tokens = self.sharing.per_layer, self.shape.layers, self.tokens
        found = self._of_ids()
        made = self.unlike("scale", self.product("per_layer_model_proj", None, size * layers, hidden))
        made = self.norm(self.view(made, (size, layers, tokens)), "per_layer_proj_norm", None)
        both = self.unlike("scale", self.unlike("add", made, found))
        return self.op("cont", (size, tokens, layers), self.view(both, (size, tokens, layers), dense=False))

    def _of_ids(self) -> Tensor:
        assert self.found is not None
        return self.view(self.unlike("scale", self.found), (self.sharing.per_layer, self.shape.layers, self.tokens))

    def _beside(self, out: Tensor, layer: int) -> Tensor:
        """What a layer makes of what it gets beside hidden states."""
        assert self.beside is not None
        made = self.unlike("unary", self.product("inp_gate", layer, self.sharing.per_layer, out))
        made = self.unlike("mul", made, self.view(self.beside, made.shape))
        return self.norm(self.product("proj", layer, self.shape.hidden, made), "post_norm", layer)

    def _attention(self, x: Tensor, layer: int) -> Tensor:
        shape, slides = self.shape, self._slides(layer)
        cache = self.sliding if slides else self.whole
        assert cache is not None
        q = self._turned(self._queries(x, layer, "attn_q", shape.heads), cache.turns_keys)
        self.graph.expand(q)
        if self.sharing.kept[layer] != layer:
            read = [self._again(cached) for cached in self.cached[self.sharing.kept[layer]]]
            return self._given(q, read[0], read[1], layer, cache)
        k = self.product("attn_k", layer, shape.head * shape.key_heads, x)
        joined = self.sharing.values_of_keys and not slides
        v = k if joined else self.product("attn_v", layer, shape.head * shape.key_heads, x)
        v = self.unlike("rms_norm", self.view(v, (shape.head, shape.key_heads, self.tokens)))
        k = self._turned(self._queries(x, layer, "attn_k", shape.key_heads, k), cache.turns_keys)
        v = self._turned(v, cache.turns_values)
        for each in (k, v):
            self.graph.expand(each)
        keys, values = self._stored(k, "k", layer, cache), self._stored(v, "v", layer, cache)
        self.cached[layer] = keys, values
        return self._given(q, keys, values, layer, cache)

    def _again(self, cached: Tensor) -> Tensor:
        """Another view of a layer's cache."""
        assert cached.root is not None
        return Tensor("view", cached.shape, [cached.root], root=cached.root, nbytes=cached.nbytes)

    def _given(self, q: Tensor, keys: Tensor, values: Tensor, layer: int, cache: Places) -> Tensor:
        """What attention gives of what is cached."""
        out = self._turned(self._attended(q, keys, values, layer, cache), cache.turns_values)
        return self.product("attn_output", layer, self.shape.hidden, out)

    def _queries(self, x: Tensor, layer: int, name: str, heads: int, made: Tensor | None = None) -> Tensor:
        """Queries or keys, normalised and turned."""
        made = made or self.product(name, layer, self.shape.head * heads, x)
        out = self.norm(self.view(made, (self.shape.head, heads, self.tokens)), f"{name}_norm", layer)
        return self.unlike("rope", out, self.positions)

    def _mixture(self, attended: Tensor, layer: int, experts: Experts) -> Tensor:
        """Experts, whose gates and inputs one matrix makes, and which a number of each multiplies."""
        count, used, tokens, hidden = experts.count, experts.used, attended.shape[1], self.shape.hidden
        seen = self.unlike("scale", self.unlike("rms_norm", attended))
        seen = self.unlike("mul", seen, self.weight("ffn_gate_inp.scale", layer))
        chosen, weights = self._chosen(self.product("ffn_gate_inp", layer, count, seen), layer, experts)
        each = self.view(self.norm(attended, "pre_ffw_norm_2", layer), (hidden, 1, tokens))
        inner = (experts.wide, used, tokens)
        both = self.op("mul_mat_id", (2 * experts.wide, used, tokens), self.weight("ffn_gate_up_exps", layer), each, chosen)
        out = self.op("glu", inner, *[self.view(both, inner, dense=False) for _ in range(2)])
        out = self.op("mul_mat_id", (hidden, used, tokens), self.weight("ffn_down_exps", layer), out, chosen)
        scales = self.op("repeat", (1, count, tokens), self.view(self.weight("ffn_down_exps.scale", layer), (1, count, 1)))
        out = self.unlike("mul", out, self.op("get_rows", (1, used, tokens), scales, chosen))
        return self._summed(self.unlike("mul", out, weights))
