"""Layers of llama.cpp's graph that keep a state of each sequence in place of its tokens: delta nets, Mamba's, short convolutions.

After llama.cpp's src/models/delta-net-base.cpp, src/models/qwen35.cpp, src/models/qwen3next.cpp, src/models/mamba-base.cpp,
src/models/lfm2.cpp and src/llama-graph.cpp (`build_rs`), as of October 2026, with the fused kernel of delta nets. States are
float32; a layer's new ones are copied over those that it began with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from estimator.serving.llamacpp.ggml import Tensor
from estimator.serving.llamacpp.shape import State

if TYPE_CHECKING:
    from estimator.serving.llamacpp.graph import Builder

Rows = Callable[[Tensor, Tensor], Tensor]
"""(states of all sequences, numbers of those of the batch) -> what is computed of them."""


class Recurrent:
    """These layers of one graph, for a batch with equally many tokens of each sequence: x [width, tokens of all] -> the same."""

    def __init__(self, build: Builder, state: State):
        self.build, self.state, self.sequences = build, state, build.batch.sequences
        self.each = build.tokens // self.sequences
        self.numbers = Tensor("none", (self.sequences,))
        self.numbers.given = True
        self.own, self.others = build.view(self.numbers, (self.sequences,)), build.view(self.numbers, (0,))

    def delta_net(self, x: Tensor, layer: int) -> Tensor:
        """Qwen's gated delta nets."""
        build, state, shape = self.build, self.state, self.build.shape
        heads, size, tokens = state.heads, state.size, (self.each, self.sequences)
        mixed = build.product("attn_qkv", layer, state.convolved, x)
        z = build.product("attn_gate", layer, state.inner, x)
        if state.joined_gates:
            both = build.product("ssm_ba", layer, 2 * heads, x)
            part = (heads // state.groups, state.groups, *tokens)
            beta = build.unlike("unary", build.op("cont", part, build.part(both, part, build.tokens)))
            alpha = build.op("cont", (heads, *tokens), build.part(both, part, build.tokens))
        else:
            beta = build.unlike("unary", build.view(build.product("ssm_beta", layer, heads, x), (1, heads, *tokens)))
            alpha = build.view(build.product("ssm_alpha", layer, heads, x), (heads, *tokens))
        alpha = build.unlike("unary", build.unlike("add", alpha, build.weight("ssm_dt.bias", layer)))
        gate = build.view(build.unlike("mul", alpha, build.weight("ssm_a", layer)), (1, heads, *tokens))
        joined = self._behind(self.held(layer), build.view(mixed, (state.convolved, *tokens)), state.convolved)
        held = self.held(layer)
        begun = build.view(self.states(held, state.numbers), (size, size, heads, self.sequences))
        out = build.op("ssm_conv", (state.convolved, *tokens), joined, build.weight("ssm_conv1d", layer))
        out = build.unlike("unary", out)
        q, k, v = (build.part(out, (size, count, *tokens), build.tokens) for count in (state.groups, state.groups, heads))
        q, k = (build.unlike("scale", build.unlike("rms_norm", part)) for part in (q, k))
        rows = (self.each + size) * self.sequences
        made = build.op("gated_delta_net", (state.inner, rows), q, k, v, gate, build.view(beta, (1, heads, *tokens)), begun)
        seen = build.view(made, (size, heads, *tokens))
        self.keep(build.view(made, (size, size, heads, self.sequences)), held)
        normed = build.norm(seen, "ssm_norm", layer)
        normed = build.unlike("mul", normed, build.unlike("unary", build.view(z, (size, heads, *tokens))))
        out = build.product("ssm_out", layer, shape.hidden, build.view(normed, (state.inner, *tokens)))
        return build.view(out, (shape.hidden, build.tokens))

    def mamba2(self, x: Tensor, layer: int) -> Tensor:
        """Mamba-2's mixer."""
        build, state = self.build, self.state
        heads, tokens = state.heads, (self.each, self.sequences)
        wide = (state.inner // heads, heads, *tokens)
        begun, held = self.begun(state.convolved, layer)
        made = build.product("ssm_in", layer, state.inner + state.convolved + heads, x)
        made = build.view(made, (made.shape[0], *tokens))
        z = build.part(made, wide, build.tokens)
        mixed, steps = (build.part(made, (size, *tokens), build.tokens) for size in (state.convolved, heads))
        out = self._convolved(self.joined(begun, held, mixed, state.convolved), layer)
        values = build.part(out, wide, build.tokens)
        b, c = (build.part(out, (state.size, state.groups, *tokens), build.tokens) for _ in range(2))
        steps = build.unlike("add", build.unlike("cont", steps), build.weight("ssm_dt.bias", layer))
        seen = self._scanned(layer, values, steps, b, c)
        seen = build.unlike("add", seen, build.unlike("mul", values, build.weight("ssm_d", layer)))
        out = build.op("glu", wide, build.unlike("cont", z), seen)
        if state.normed:
            out = build.norm(build.view(out, (state.inner // state.groups, state.groups, *tokens)), "ssm_norm", layer)
        return build.product("ssm_out", layer, build.shape.hidden, build.view(out, (state.inner, build.tokens)))

    def mamba(self, x: Tensor, layer: int) -> Tensor:
        """Mamba's mixer."""
        build, state, hidden = self.build, self.state, self.build.shape.hidden
        inner, size, tokens = state.inner, state.size, (self.each, self.sequences)
        begun, held = self.begun(inner, layer)
        made = build.product("ssm_in", layer, 2 * inner, build.view(x, (hidden, *tokens)))
        mixed, z = (build.part(made, (inner, *tokens), build.tokens) for _ in range(2))
        values = self._convolved(self.joined(begun, held, mixed, inner), layer)
        read = build.product("ssm_x", layer, state.rank + 2 * size, values)
        steps = build.part(read, (state.rank, *tokens), build.tokens)
        b, c = (build.part(read, (size, 1, *tokens), build.tokens) for _ in range(2))
        if state.normed == "without weights":
            steps, b, c = (build.unlike("rms_norm", part) for part in (steps, b, c))
        elif state.normed:
            steps, b, c = (build.norm(part, f"ssm_{name}_norm", layer) for part, name in ((steps, "dt"), (b, "b"), (c, "c")))
        else:
            steps = build.unlike("cont", steps)
        steps = build.unlike("add", build.product("ssm_dt", layer, inner, steps), build.weight("ssm_dt.bias", layer))
        seen = self._scanned(layer, build.view(values, (1, inner, *tokens)), steps, b, c)
        seen = build.view(seen, (inner, *tokens))
        seen = build.unlike("add", seen, build.unlike("mul", values, build.weight("ssm_d", layer)))
        out = build.op("glu", seen.shape, build.unlike("cont", z), seen)
        return build.view(build.product("ssm_out", layer, hidden, out), (hidden, build.tokens))

    def convolution(self, x: Tensor, layer: int) -> Tensor:
        """LFM2's short convolution, gated before and after."""
        build, hidden = self.build, self.build.shape.hidden
        size = (hidden, self.each, self.sequences)
        made = build.product("shortconv.in_proj", layer, 3 * hidden, build.view(x, size))
        b, c, value = (build.part(made, size, build.tokens) for _ in range(3))
        joined = self._behind(self.held(layer), build.unlike("mul", b, value), hidden)
        out = build.op("ssm_conv", size, joined, build.weight("shortconv.conv", layer))
        out = build.product("shortconv.out_proj", layer, hidden, build.unlike("mul", c, out))
        return build.view(out, (hidden, build.tokens))

    def held(self, layer: int) -> Tensor:
        """States that lie where their layer does."""
        made = Tensor("none", (1,), nbytes=0)
        made.device = self.build.devices.layers[layer]
        return made

    def states(self, held: Tensor, size: int, rows: Rows | None = None) -> Tensor:
        """The states of a batch's sequences, `size` numbers each, or what `rows` computes of them. One may be cleared first, and
        those of other sequences moved."""
        build, graph = self.build, self.build.graph
        every = build.view(held, (size, self.sequences))
        graph.expand(Tensor("scale", (size,), [build.view(every, (size,))], root=held, nbytes=0))
        if rows is None:
            moved = graph.expand(build.op("get_rows", (size, self.sequences), every, self.numbers))
            self.keep(build.view(moved, (size, 0)), held)
            return build.view(moved, (size, self.sequences))
        found = graph.expand(rows(every, self.own))
        self.keep(build.op("get_rows", (size, 0), every, self.others), held)
        return found

    def keep(self, x: Tensor, held: Tensor) -> None:
        """Copy new states over those that the batch began with."""
        target = self.build.view(held, x.shape)
        self.build.graph.expand(Tensor("cpy", x.shape, [x, target], root=held, nbytes=0))

    def begun(self, width: int, layer: int) -> tuple[Tensor, Tensor]:
        """The last tokens that a layer's convolution saw, and what holds them."""
        held, before = self.held(layer), self.state.kernel - 1
        return self.build.view(self.states(held, before * width), (before, width, self.sequences)), held

    def _behind(self, held: Tensor, x: Tensor, width: int) -> Tensor:
        before = self.state.kernel - 1
        begun = self.build.view(self.states(held, before * width), (before, width, self.sequences))
        return self.joined(begun, held, x, width)

    def joined(self, begun: Tensor, held: Tensor, x: Tensor, width: int) -> Tensor:
        """Tokens behind those that the convolution saw before, the last of which it keeps."""
        build, before = self.build, self.state.kernel - 1
        turned = build.view(x, (self.each, width, self.sequences), dense=False)
        joined = build.op("concat", (before + self.each, width, self.sequences), begun, turned)
        self.keep(build.part(joined, (before, width, self.sequences), width * self.sequences), held)
        return joined

    def _convolved(self, joined: Tensor, layer: int) -> Tensor:
        build, size = self.build, (joined.shape[1], self.each, self.sequences)
        out = build.op("ssm_conv", size, joined, build.weight("ssm_conv1d", layer))
        return build.unlike("unary", build.unlike("add", out, build.weight("ssm_conv1d.bias", layer)))

    def _scanned(self, layer: int, x: Tensor, steps: Tensor, b: Tensor, c: Tensor) -> Tensor:
        build, held, inner = self.build, self.held(layer), self.state.inner
        kept = self.state.numbers * self.sequences

        def rows(every: Tensor, own: Tensor) -> Tensor:
            a = build.weight("ssm_a", layer)
            return build.op("ssm_scan", (inner * build.tokens + kept,), build.view(every, (1,)), x, steps, a, b, c, own)

        made = self.states(held, self.state.numbers, rows)
        self.keep(build.view(made, (kept,)), held)
        return build.view(made, x.shape)
