"""Multi-head latent attention as Megatron-Core runs it: queries, keys and values through low-rank products.

After core/transformer/multi_latent_attention.py and core/fusions/fused_mla_yarn_rope_apply.py (0.15): queries are rotated in
place, keys and values are written to new tensors. The first products are not split over ranks: each has its own tokens.
"""

from __future__ import annotations

from functools import partial

from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.megatron.attention import Context, core
from estimator.megatron.config import Config, Latent
from estimator.megatron.execution import LAYER_NORM, UP_PROJECTION, Execution
from estimator.megatron.linear import Norm, Split
from estimator.megatron.recomputed import discarding
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.collectives import Group, all_gather, reduce_scatter
from estimator.tape.tensor import Tensor, output
from estimator.tape.views import reshape, split

ALONE = Group("tensor")


class LatentAttention:
    """The layer's norm stands by itself, as two products read its result."""

    def __init__(self, config: Config, latent: Latent, build: Builder, ranks: Split, context: Context, how: Execution):
        name, hidden, heads = "self_attention.", config.hidden, config.heads // ranks.group.size
        self.latent, self.heads, self.ranks, self.context, self.how = latent, heads, ranks, context, how
        self.input_layernorm = Norm(build.parameter("input_layernorm.weight", (hidden,)), None)
        duplicated = Split(ALONE, False, ranks.later)
        queries = heads * (latent.plain + latent.rotary)
        self.q_down: Module | None = None
        self.q_up: Module
        if latent.queries is None:
            self.q_up = how.column(build, how.weight(build, name + "linear_q_proj.weight", (queries, hidden)), ranks)
        else:
            down = how.weight(build, name + "linear_q_down_proj.weight", (latent.queries, hidden))
            self.q_down = how.column(build, down, duplicated, of_norm=True)
            self.q_up = self._up(build, name + "linear_q_up_proj", latent.queries, queries)
        down = how.weight(build, name + "linear_kv_down_proj.weight", (latent.keys + latent.rotary, hidden))
        self.kv_down = how.column(build, down, duplicated, of_norm=True)
        self.kv_up = self._up(build, name + "linear_kv_up_proj", latent.keys, heads * (latent.plain + latent.value))
        out = how.weight(build, name + "linear_proj.weight", (hidden, heads * latent.value))
        self.linear_proj = how.row(build, out, ranks, of_attention=True)

    def _up(self, build: Builder, name: str, inputs: int, outputs: int) -> Module:
        gain = Norm(build.parameter(name + ".layer_norm_weight", (inputs,)), None)
        return self.how.norm_linear(build, gain, self.how.weight(build, name + ".weight", (outputs, inputs)), None, self.ranks)

    def __call__(self, hidden: Tensor, frequencies: Tensor) -> Tensor:
        attended = partial(self.attended, frequencies)
        if LAYER_NORM in self.how.recomputed:
            return discarding(attended, self.input_layernorm, hidden)
        return attended(self.input_layernorm(hidden))

    def attended(self, frequencies: Tensor, hidden: Tensor) -> Tensor:
        """What attention makes of hidden states."""
        project, attend = partial(self.project, frequencies), partial(core, context=self.context, how=self.how)
        if UP_PROJECTION in self.how.recomputed:
            out = discarding(attend, project, *self.compressed(hidden))
        else:
            q, k, v = project(*self.compressed(hidden))
            out = attend(q, k, v)
        return self.linear_proj(reshape(out, (*out.shape[:2], -1)))

    def compressed(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What queries are made of, and what keys and values are; and what all heads' keys share, of all tokens."""
        latent = self.latent
        q_compressed = hidden if self.q_down is None else self.q_down(hidden)
        combined = self.kv_down(hidden)
        kv_compressed, rotary = split(combined, (latent.keys, latent.rotary), 2)
        if self.ranks.sequence:
            rotary = gathered(rotary, self.ranks.group)
        return q_compressed, kv_compressed, rotary

    def project(
        self, frequencies: Tensor, q_compressed: Tensor, kv_compressed: Tensor, rotary: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [tokens, sequences, heads, size]."""
        latent = self.latent
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
            return [output("mla_rope_backward", (like,), shape, like.dtype) for shape in before]

        node = record("ApplyMLARotaryEmbKV", (kv, rotary), (frequencies,), lambda *g: backward(*g[:2]), outputs=2)
        sizes = (latent.plain + latent.rotary, latent.value)
        outs = [attach(node, output("mla_rope", (kv,), (tokens, sequences, self.heads, size), kv.dtype)) for size in sizes]
        outs[1].output_nr = 1
        return outs


def _rotated_in_place(q: Tensor, frequencies: Tensor) -> Tensor:
    """Queries rotated in place: the result lies on the same bytes, and so does the gradient."""
    node = record("ApplyMLARotaryEmbQ", (q,), (frequencies,), lambda g, _: g)
    return attach(node, q.detach())


def gathered(x: Tensor, group: Group) -> Tensor:
    """All tokens (`gather_from_sequence_parallel_region`); backward sums over ranks."""
    node = record("GatherFromSequence", (x,), (), lambda g: reduce_scatter(g, group))
    return attach(node, all_gather(x, group))
