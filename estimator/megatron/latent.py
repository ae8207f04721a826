"""Multi-head latent attention as Megatron-Core runs it: queries, keys and values through low-rank products.

After core/transformer/multi_latent_attention.py and core/fusions/fused_mla_yarn_rope_apply.py (0.15): queries are rotated in
place, keys and values are written to new tensors. The first products are not split over ranks: each has its own tokens.
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.megatron.attention import Context, attend
from estimator.megatron.config import Config, Latent
from estimator.megatron.linear import ColumnLinear, Norm, NormLinear, RowLinear, Split
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.collectives import Group, all_gather, reduce_scatter
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape, split

ALONE = Group("tensor")


class LatentAttention:
    """The layer's norm stands by itself, as two products read its result."""

    def __init__(self, config: Config, latent: Latent, build: Builder, ranks: Split, context: Context):
        name, hidden, heads = "self_attention.", config.hidden, config.heads // ranks.group.size
        self.latent, self.heads, self.ranks, self.context = latent, heads, ranks, context
        self.input_layernorm = Norm(build.parameter("input_layernorm.weight", (hidden,)), None)
        duplicated = Split(ALONE, False, ranks.later)
        queries = heads * (latent.plain + latent.rotary)
        self.q_down: Module | None = None
        self.q_up: Module
        if latent.queries is None:
            self.q_up = ColumnLinear(build.parameter(name + "linear_q_proj.weight", (queries, hidden)), None, ranks)
        else:
            down = build.parameter(name + "linear_q_down_proj.weight", (latent.queries, hidden))
            self.q_down = ColumnLinear(down, None, duplicated)
            self.q_up = self._up(build, name + "linear_q_up_proj", latent.queries, queries)
        down = build.parameter(name + "linear_kv_down_proj.weight", (latent.keys + latent.rotary, hidden))
        self.kv_down = ColumnLinear(down, None, duplicated)
        self.kv_up = self._up(build, name + "linear_kv_up_proj", latent.keys, heads * (latent.plain + latent.value))
        out = build.parameter(name + "linear_proj.weight", (hidden, heads * latent.value))
        self.linear_proj = RowLinear(out, None, ranks)

    def _up(self, build: Builder, name: str, inputs: int, outputs: int) -> NormLinear:
        gain = Norm(build.parameter(name + ".layer_norm_weight", (inputs,)), None)
        return NormLinear(gain, build.parameter(name + ".weight", (outputs, inputs)), None, self.ranks)

    def __call__(self, hidden: Tensor, frequencies: Tensor) -> Tensor:
        q, k, v = self.project(self.input_layernorm(hidden), frequencies)
        out = attend(q, k, v, self.context)
        return self.linear_proj(reshape(out, (*out.shape[:2], -1)))

    def project(self, hidden: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [tokens, sequences, heads, size]."""
        latent = self.latent
        q_compressed = hidden if self.q_down is None else self.q_down(hidden)
        combined = self.kv_down(hidden)
        kv_compressed, rotary = split(combined, (latent.keys, latent.rotary), 2)
        if self.ranks.sequence:
            rotary = gathered(rotary, self.ranks.group)
        q = self.q_up(q_compressed)
        q = reshape(q, (*q.shape[:2], self.heads, latent.plain + latent.rotary))
        kv = self.kv_up(kv_compressed)
        q = _rotated_in_place(q, frequencies)
        k, v = self._keys_and_values(kv, rotary, frequencies)
        return q, k, v

    def _keys_and_values(self, kv: Tensor, rotary: Tensor, frequencies: Tensor) -> list[Tensor]:
        """Keys with the rotated part that all heads share, and values, each in a tensor of its own."""
        latent, (tokens, sequences, _), before = self.latent, kv.shape, (kv.shape, rotary.shape)

        def backward(*gradients: Gradient) -> list[Gradient]:
            like = next(g for g in gradients if g is not None)
            return [empty(like.tape, shape, like.dtype, "mla_rope_backward") for shape in before]

        node = record("ApplyMLARotaryEmbKV", (kv, rotary), (frequencies,), lambda *g: backward(*g[:2]), outputs=2)
        sizes = (latent.plain + latent.rotary, latent.value)
        outs = [attach(node, empty(kv.tape, (tokens, sequences, self.heads, size), kv.dtype, "mla_rope")) for size in sizes]
        outs[1].output_nr = 1
        return outs


def _rotated_in_place(q: Tensor, frequencies: Tensor) -> Tensor:
    """The same bytes; so is the gradient."""
    node = record("ApplyMLARotaryEmbQ", (q,), (frequencies,), lambda g, _: g)
    return attach(node, q.detach())


def gathered(x: Tensor, group: Group) -> Tensor:
    """All tokens (`gather_from_sequence_parallel_region`); backward sums over ranks."""
    node = record("GatherFromSequence", (x,), (), lambda g: reduce_scatter(g, group))
    return attach(node, all_gather(x, group))
