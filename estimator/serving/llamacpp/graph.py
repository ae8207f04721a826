"""The graph that llama.cpp computes for a batch: which tensors, in which order, each from which.

After llama.cpp's src/llama-graph.cpp (`build_inp_embd`, `build_qkv`, `build_attn`, `build_attn_mha`, `build_ffn`,
those of mixtures apart), src/llama-kv-cache.cpp (`cpy_k`, `cpy_v`) and the graphs of src/models/, for a whole cache and a full
batch (`graph_reserve`, src/llama-context.cpp), as of October 2026. Numbers are float32, places of the cache int64, all other
numbers of inputs int32.
"""

from __future__ import annotations

from estimator.serving.llamacpp.ggml import Graph, Tensor
from estimator.serving.llamacpp.mixtures import Mixtures
from estimator.serving.llamacpp.operations import HALF, NUMBER, PLACE, Devices, Weight, given
from estimator.serving.llamacpp.places import Places
from estimator.serving.llamacpp.recurrent import Recurrent
from estimator.serving.llamacpp.shape import Batch, Latent, Shape


class Builder(Mixtures):
    """Builds the graph of one batch."""

    def __init__(self, shape: Shape, batch: Batch, devices: Devices, weight: Weight):
        super().__init__(shape, devices, weight)
        self.batch = batch
        self.graph, self.tokens = Graph(), batch.tokens
        self.whole = Places(shape, batch, batch.cells)
        self.sliding = Places(shape, batch, batch.window_cells) if any(shape.sliding) else None
        self.positions = given((batch.tokens * shape.positions,), NUMBER)
        self.tempers = given((1, 1, batch.tokens), NUMBER) if shape.tempered else None
        self.chosen = given((batch.outputs,), NUMBER)
        self.recurrent = Recurrent(self, shape.state) if shape.state else None

    def built(self) -> Graph:
        """The graph."""
        shape = self.shape
        hidden = self._embedded()
        if shape.scaled_embedding:
            each = shape.scaled_embedding == "by token"
            hidden = self.unlike("mul", hidden, given((1, self.tokens), NUMBER)) if each else self.unlike("scale", hidden)
        if shape.learned_positions:
            rows = self.op("get_rows", hidden.shape, self.weight("position_embd", None), self.positions)
            hidden = self.unlike("add", hidden, rows)
        if shape.normed_embedding:
            hidden = self.norm(hidden, "token_embd_norm", 0, own=False)
        embedded = hidden
        if shape.deepstack:
            hidden = self.view(embedded, (shape.hidden, self.tokens), dense=False)
        for layer in range(shape.layers):
            hidden = self._layer(hidden, layer)
            if layer < shape.deepstack:
                hidden = self.unlike("add", hidden, self.view(embedded, hidden.shape, dense=False))
        last = (shape.hidden, self.batch.outputs)
        if shape.cut == "before the norm":
            hidden = self.op("get_rows", last, hidden, self.chosen)
        hidden = self.norm(hidden, "output_norm", None)
        if shape.cut == "after the norm":
            hidden = self.op("get_rows", last, hidden, self.chosen)
        if shape.scaled_output:
            hidden = self.unlike("scale", hidden)
        logits = self.product("output", None, shape.vocabulary, hidden)
        if shape.logits_bias:
            logits = self.unlike("add", logits, self.weight("output.bias", None))
        for name in shape.after_logits:
            logits = self.unlike(name, logits)
        self.graph.expand(logits)
        return self.graph

    def _embedded(self) -> Tensor:
        """What is looked up of the tokens. A batch may also have hidden states, or both, for which there is room always; where
        images bring more for each token than texts do, what is looked up is filled up."""
        shape, tokens = self.shape, self.tokens
        size, table = (shape.hidden * (1 + shape.deepstack), tokens), self.weight("token_embd", None)
        rows = [self.op("get_rows", (shape.hidden, tokens), table, given((tokens,), NUMBER)) for _ in range(2)]
        for each in rows:
            self.graph.expand(each)
        whole, some = [self.op("pad", size, each) if shape.deepstack else each for each in rows]
        states = given(size, NUMBER)
        others = self.op("cont", size, given(size, NUMBER))
        mixed = Tensor("set_rows", size, [some, given((tokens,), PLACE), others], root=others)
        for each in (whole, states, mixed):
            self.graph.expand(each)
        return whole

    def _layer(self, hidden: Tensor, layer: int) -> Tensor:
        shape = self.shape
        residual: Tensor | None = hidden
        before = self.norm(hidden, "attn_norm", layer) if shape.pre_norms else hidden
        if shape.normed_first:
            self.graph.expand(before)
        read = self.norm(hidden, "attn_norm_2", layer) if shape.second_norm else before
        out = self._mixed(read, hidden, layer)
        if shape.mixer(layer) == "both":
            out, residual = self.unlike("add", out, hidden), None
        if shape.post_norm_first:
            out = self.norm(out, "post_attention_norm", layer)
        if layer == shape.layers - 1 and shape.cut == "in the last layer":
            self.tokens = self.batch.outputs
            size = (shape.hidden, self.tokens)
            out = self.op("get_rows", size, out, self.chosen)
            residual = residual and self.op("get_rows", size, residual, self.chosen)
            if shape.parallel and shape.parallel != "normed apart":
                before = self.op("get_rows", size, before, self.chosen)
        if shape.parallel:
            assert residual is not None
            fed = self._fed(self.norm(residual, shape.fed_norm, layer) if shape.parallel == "normed apart" else before, layer)
            first, second, third = {
                "feed-forward first": (fed, out, residual),
                "attention first": (out, fed, residual),
                "residual second": (fed, residual, out),
                "normed apart": (fed, residual, out),
            }[shape.parallel]
            return self.unlike("add", self.unlike("add", first, second), third)
        if shape.post_norms and not shape.post_norm_first:
            out = self.norm(out, "post_attention_norm", layer)
        if shape.scaled_residual:
            out = self.unlike("scale", out)
        attended = out
        if residual is not None:
            attended = self.unlike("add", *((residual, out) if shape.residual_first == "both" else (out, residual)))
        if shape.alone:
            return attended
        fed = self._fed(self.norm(attended, shape.fed_norm, layer) if shape.pre_norms else attended, layer)
        if shape.post_norms:
            fed = self.norm(fed, "post_ffw_norm", layer, forced=False)
        if shape.scaled_residual:
            fed = self.unlike("scale", fed)
        return self.unlike("add", *((attended, fed) if shape.residual_first else (fed, attended)))

    def _mixed(self, x: Tensor, hidden: Tensor, layer: int) -> Tensor:
        """What a layer has before its feed-forward layer, of what is normalised; `hidden` is not."""
        kind = self.shape.mixer(layer)
        if kind == "attention":
            return self._latent(x, layer, self.shape.latent) if self.shape.latent else self._attention(x, layer)
        if kind == "none":
            return self._fed(x, layer)
        assert self.recurrent is not None
        if kind == "both":
            seen = self._attention(x, layer)
            return self.unlike("add", seen, self.recurrent.mamba2(self.norm(hidden, "attn_norm", layer), layer))
        if kind == "kimi delta":
            from estimator.serving.llamacpp.kimi_delta import kimi_delta

            return kimi_delta(self.recurrent, x, layer)
        made = {
            "delta net": self.recurrent.delta_net,
            "mamba-1": self.recurrent.mamba,
            "mamba-2": self.recurrent.mamba2,
            "convolution": self.recurrent.convolution,
        }
        return made[kind](x, layer)

    def _projected(self, x: Tensor, layer: int) -> list[Tensor]:
        """Queries, keys and values, by heads."""
        shape, tokens = self.shape, self.tokens
        heads = {"q": shape.heads, "k": shape.key_heads, "v": shape.key_heads}
        if shape.joined:
            width = shape.head * sum(heads.values())
            joined = self.biased(self.product("attn_qkv", layer, width, x), "attn_qkv.bias", layer, shape.biased)
            joined = self.unlike("clamp", joined) if shape.clipped else joined
            return [self.part(joined, (shape.head, count, tokens), tokens) for count in heads.values()]
        found = []
        for name, count in heads.items():
            gates = count if name == "q" and shape.gated_queries else 0
            size = shape.values_wide if name == "v" else shape.head
            out = self.product(f"attn_{name}", layer, size * (count + gates), x)
            out = self.biased(out, f"attn_{name}.bias", layer, shape.biased)
            found.append(self.unlike("clamp", out) if shape.clipped else out)
        if shape.normed == "whole":
            found[:2] = [self.norm(out, f"attn_{name}_norm", layer) for out, name in zip(found, "qk", strict=False)]
        dense = (not shape.gated_queries, True, True)
        sizes = [(shape.values_wide if name == "v" else shape.head, count, tokens) for name, count in heads.items()]
        return [self.view(*part) for part in zip(found, sizes, dense, strict=True)]

    def _attention(self, x: Tensor, layer: int) -> Tensor:
        shape = self.shape
        q, k, v = self._projected(x, layer)
        gate = self.view(q, (shape.head * shape.heads, self.tokens), dense=False) if shape.gated_queries else None
        early = shape.normed == "heads" and not shape.normed_late
        if early:
            q = self.norm(q, "attn_q_norm", layer)
        if shape.rotary[layer]:
            q = self.unlike("rope", q, self.positions)
        if early:
            k = self.norm(k, "attn_k_norm", layer)
        if shape.rotary[layer]:
            k = self.unlike("rope", k, self.positions)
        if shape.normed_late:
            k, q = self.norm(k, "attn_k_norm", layer), self.norm(q, "attn_q_norm", layer)
        if self.tempers is not None and not (shape.tempered == "unturned" and shape.rotary[layer]):
            q = self.unlike("mul", q, self.tempers)
        if shape.normed_bare and shape.rotary[layer]:
            q, k = self.unlike("rms_norm", q), self.unlike("rms_norm", k)
        if shape.scaled_queries:
            q = self.unlike("scale", q)
        cache = self.sliding if self.sliding and shape.sliding[layer] else self.whole
        q, k, v = self._turned(q, cache.turns_keys), self._turned(k, cache.turns_keys), self._turned(v, cache.turns_values)
        for each in (q, k, v) if self.sliding else (q, v, k):
            self.graph.expand(each)
        keys, values = self._stored(k, "k", layer, cache), self._stored(v, "v", layer, cache)
        out = self._attended(q, keys, values, layer, cache)
        out = self._turned(out, cache.turns_values)
        if gate is not None:
            out = self.unlike("mul", out, self.unlike("unary", self.unlike("cont", gate)))
        if shape.gate_beside:
            gate = self.product("attn_gate", layer, shape.head * shape.heads, x)
            out = self.unlike("mul", out, self.unlike("unary", gate))
        return self.biased(self.product("attn_output", layer, shape.hidden, out), "attn_output.bias", layer, shape.output_bias)

    def _turned(self, x: Tensor, by: Tensor | None) -> Tensor:
        if by is None:
            return x
        size = by.shape[0]
        rows = self.view(x, (size, x.nbytes // 4 // size)) if x.dense else self.unlike("cont", x)
        return self.view(self.op("mul_mat", rows.shape, by, rows), x.shape)

    def _stored(self, x: Tensor, which: str, layer: int, cache: Places) -> Tensor:
        """Keys or values in the cache, as a view of it."""
        batch, tokens = self.batch, x.shape[2]
        width = x.shape[0] * x.shape[1]
        places, flat = cache.key_places, batch.flash or which == "k"
        rows = self.view(x, (width, tokens)) if flat or x.dense else self.op("cont", (width, tokens), x)
        if not flat and width < self.shape.values:
            width = self.shape.values
            rows = self.op("pad", (width, tokens), rows)
        held = Tensor("none", (width, cache.cells, batch.streams), nbytes=0)
        held.device = self.devices.layers[layer]
        target = held if batch.streams == 1 and flat else self.view(held, (width, cache.cells * batch.streams))
        if which == "v":
            assert cache.value_places is not None
            places = cache.value_places
            if not flat:
                rows = self.view(rows, (1, width * tokens))
        self.graph.expand(Tensor("set_rows", target.shape, [rows, places, target], root=held, nbytes=0))
        shape = (x.shape[0], x.shape[1], cache.cells, batch.streams)
        each = batch.key_bytes if which == "k" else batch.value_bytes
        return Tensor("view", shape, [held], root=held, nbytes=cache.cells * batch.streams * each)

    def _attended(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        layer: int,
        cache: Places,
        up: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """What `build_attn_mha` makes of queries; `up`: the matrix that makes values of a latent; `mask`: the layer's own."""
        shape, batch, tokens = self.shape, self.batch, self.tokens
        each, streams = tokens // batch.streams, batch.streams
        size, heads, width = q.shape[0], shape.heads, values.shape[0]
        q = self.view(self.view(q, (size, heads, each, streams), dense=False), (size, each, heads, streams), dense=False)
        keys, values = self._by_heads(keys), self._by_heads(values)
        sinks = [self.weight("attn_sinks", layer)] if shape.sinks else []
        final = shape.values_wide * heads
        if batch.flash:
            out = self.op("flash_attn", (width, heads, each, streams), q, keys, values, mask or cache.mask, *sinks)
            out.gpu_bytes = self._unpacked(out, keys, values, up is not None)
            if up is not None:
                out = self.op("mul_mat", (shape.values_wide, each, heads, streams), up, self.view(out, out.shape, dense=False))
                out = self.op("cont", (shape.values_wide, heads, each, streams), self.view(out, out.shape, dense=False))
            out = self.view(out, (final, tokens))
        else:
            scores = self.op("mul_mat", (cache.cells, each, heads, streams), keys, q)
            for name in shape.capped_scores:
                scores = self.unlike(name, scores)
            scores = self.unlike("soft_max", scores, mask or cache.mask, *sinks)
            if up is not None:
                values = self.op("cont", (cache.cells, width, 1, streams), self.view(values, values.shape, dense=False))
            out = self.op("mul_mat", (width, each, heads, streams), values, scores)
            if up is not None:
                out = self.op("mul_mat", (shape.values_wide, each, heads, streams), up, out)
            out = self.op("cont", (final, tokens), self.view(out, out.shape, dense=False))
        return self.graph.expand(out)

    def _by_heads(self, cached: Tensor) -> Tensor:
        size, heads, cells, streams = cached.shape
        return Tensor("view", (size, cells, heads, streams), [cached], root=cached, dense=False, nbytes=cached.nbytes)

    def _unpacked(self, out: Tensor, keys: Tensor, values: Tensor, shared: bool) -> int:
        """With keys and values in float16, which CUDA makes of other types behind what it computes (ggml-cuda/fattn.cu)."""
        nbytes = out.nbytes
        for held, other in ((keys, self.batch.unpacked_keys), (values, self.batch.unpacked_values and not shared)):
            if other:
                elements = held.shape[0] * held.shape[1] * held.shape[2] * held.shape[3]
                nbytes = -(-nbytes // 128) * 128 + elements * HALF
        return nbytes

    def _latent(self, x: Tensor, layer: int, latent: Latent) -> Tensor:
        """Attention on a latent that all heads share, with queries turned into its space (src/models/deepseek2.cpp)."""
        shape, tokens = self.shape, self.tokens
        size = latent.plain + latent.rotary
        mask = None
        if latent.queries:
            q = self.norm(self.product("attn_q_a", layer, latent.queries, x), "attn_q_a_norm", layer)
            mask = self._seen(x, q, layer)
            q = self.product("attn_q_b", layer, shape.heads * size, q)
        else:
            q = self.product("attn_q", layer, shape.heads * size, x)
        q = self.view(q, (size, shape.heads, tokens))
        both = self.product("attn_kv_a_mqa", layer, latent.rank + latent.rotary, x)
        compressed = self.view(both, (latent.rank, tokens), dense=False)
        turned = self._rotated(self.view(both, (latent.rotary, 1, tokens), dense=False), layer)
        compressed = self.norm(compressed, "attn_kv_a_norm", layer)
        plain = self.view(q, (latent.plain, shape.heads, tokens), dense=False)
        rotated = self._rotated(self.view(q, (latent.rotary, shape.heads, tokens), dense=False), layer)
        plain = self.view(plain, (latent.plain, tokens, shape.heads), dense=False)
        absorbed = self.op("mul_mat", (latent.rank, tokens, shape.heads), self.weight("attn_k_b", layer), plain)
        absorbed = self.view(absorbed, (latent.rank, shape.heads, tokens), dense=False)
        queries = self.op("concat", (latent.rank + latent.rotary, shape.heads, tokens), absorbed, rotated)
        values = self.view(compressed, (latent.rank, 1, tokens))
        keys = self.op("concat", (latent.rank + latent.rotary, 1, tokens), values, turned)
        if self.tempers is not None:
            queries = self.unlike("mul", queries, self.tempers)
        for each in (queries, values, keys):
            self.graph.expand(each)
        stored = self._stored(keys, "k", layer, self.whole)
        shown = Tensor("view", (latent.rank, 1, *stored.shape[2:]), [stored], root=stored, nbytes=stored.nbytes)
        out = self._attended(queries, stored, shown, layer, self.whole, self.weight("attn_v_b", layer), mask)
        return self.product("attn_output", layer, shape.hidden, out)

    def _rotated(self, x: Tensor, layer: int) -> Tensor:
        return self.unlike("rope", x, self.positions) if self.shape.rotary[layer] else x

    def _seen(self, x: Tensor, queries: Tensor, layer: int) -> Tensor | None:
        """The layer's own mask; None where it has that of its cache. `queries`: before a matrix makes heads of them."""
        return None

    def _fed(self, x: Tensor, layer: int) -> Tensor:
        experts = self.shape.experts
        if experts is None or not experts.sparse[layer]:
            return self._feed_forward(x, layer, self.shape.wide, "")
        out = self._experts(x, layer, experts)
        if experts.latent:
            out = self.product("ffn_latent_up", layer, self.shape.hidden, out)
        if experts.shared:
            shared = self._feed_forward(x, layer, experts.shared, "_shexp", experts.shared_gate)
            out = self.unlike("add", out, shared)
        return out

    def _feed_forward(self, x: Tensor, layer: int, wide: int, which: str, gated: str | None = None) -> Tensor:
        shape = self.shape
        up_width = 2 * wide if shape.joined_feed else wide
        up = self.biased(self.product(f"ffn_up{which}", layer, up_width, x), "ffn_up.bias", layer, shape.feed_bias)
        if shape.joined_feed:
            up = self.op("glu", (wide, x.shape[1]), up)
        elif shape.gated:
            up = self.op("glu", up.shape, self.product(f"ffn_gate{which}", layer, wide, x), up)
        else:
            for name in shape.activation:
                up = self.unlike(name, up)
        out = self.product(f"ffn_down{which}", layer, shape.hidden, up)
        out = self.biased(out, "ffn_down.bias", layer, shape.feed_bias)
        if gated is None:
            return out
        gate = self.product("ffn_gate_inp_shexp", layer, 1, x)
        opened = self.unlike("unary", gate)
        return self.unlike("mul", out, opened if gated == "sigmoid" else self.unlike("div", opened, gate))
