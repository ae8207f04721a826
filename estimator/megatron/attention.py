"""Self-attention as Megatron-Core runs it on Transformer Engine's kernels.

Hidden states are [tokens, sequences, width], heads [tokens, sequences, heads, size]. After core/transformer/attention.py,
and transformer_engine/pytorch/attention (release 2.11): cuDNN's fused attention from Hopper on, FlashAttention-2 before
(`get_attention_backend`).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from estimator.families.build import Builder
from estimator.megatron.config import Config
from estimator.megatron.execution import CORE_ATTENTION, Execution
from estimator.megatron.linear import Norm, Split
from estimator.megatron.ring import ring
from estimator.tape.attention import cudnn, flash
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.checkpoint import reentrant_checkpoint
from estimator.tape.collectives import Group, all_to_all
from estimator.tape.layout import Shape
from estimator.tape.tensor import Tensor, output, unary
from estimator.tape.views import contiguous, permute, reshape, split, transpose

HOPPER = (9, 0)


ALONE = Group("context")


class Context(NamedTuple):
    """Ranks that share a sequence's tokens; in a `ring` keys and values go round, else heads are exchanged for tokens."""

    group: Group
    ring: bool = True


class SelfAttention:
    """Heads and their groups are split over tensor-parallel ranks; queries, keys and values are one product, grouped."""

    def __init__(self, config: Config, build: Builder, ranks: Split, context: Context, how: Execution):
        tensor, size = ranks.group.size, config.head_dim
        self.groups, self.shared = config.groups // tensor, config.heads // config.groups
        self.size, self.context, self.how = size, context, how
        outputs = self.groups * (self.shared + 2) * size
        gain = Norm(build.parameter("input_layernorm.weight", (config.hidden,)), None)
        weight = how.weight(build, "self_attention.linear_qkv.weight", (outputs, config.hidden))
        bias = build.parameter("self_attention.linear_qkv.bias", (outputs,)) if config.qkv_bias else None
        self.linear_qkv = how.norm_linear(build, gain, weight, bias, ranks)
        self.norms = [
            Norm(build.parameter(f"self_attention.{name}_layernorm.weight", (size,)), None) for name in "qk" if config.qk_norm
        ]
        inputs = self.groups * self.shared * size
        proj = how.weight(build, "self_attention.linear_proj.weight", (config.hidden, inputs))
        self.linear_proj = how.row(build, proj, ranks, of_attention=True)

    def __call__(self, hidden: Tensor, frequencies: Tensor) -> Tensor:
        q, k, v = self.heads(hidden)
        q = rotate(q, frequencies)
        k = rotate(k, frequencies)
        out = core(q, k, v, self.context, self.how)
        return self.linear_proj(reshape(out, (*out.shape[:2], -1)))

    def heads(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; the last two are views of the product, and so are queries of a single group."""
        mixed = self.linear_qkv(hidden)
        tokens, sequences, _ = mixed.shape
        grouped = reshape(mixed, (tokens, sequences, self.groups, (self.shared + 2) * self.size))
        q, k, v = split(grouped, (self.shared * self.size, self.size, self.size), 3)
        q = reshape(q, (tokens, sequences, self.groups * self.shared, self.size))
        if self.norms:
            q_norm, k_norm = self.norms
            q = q_norm(contiguous(q))
            k = k_norm(contiguous(k))
        return q, k, v


def rotate(x: Tensor, frequencies: Tensor) -> Tensor:
    """Transformer Engine's rotary embedding (`FusedRoPEFunc`): a new tensor each way, and only the frequencies saved."""

    def backward(g: Tensor, _: Tensor) -> Tensor:
        return output("fused_rope", (g,), g.shape, g.dtype)

    node = record("FusedRoPE", (x,), (frequencies,), backward)
    return attach(node, output("fused_rope", (x,), x.shape, x.dtype))


def core(q: Tensor, k: Tensor, v: Tensor, context: Context, how: Execution) -> Tensor:
    """Attention between its products, which may be recomputed by itself (`_checkpointed_attention_forward`)."""
    if CORE_ATTENTION not in how.recomputed:
        return attend(q, k, v, context)
    out: Tensor = reentrant_checkpoint(partial(attend, context=context), q, k, v)
    return out


def attend(q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
    """Attention over the tokens of all context-parallel ranks, in a ring, or each with part of the heads (`cp_comm_type`)."""
    ranks = context.group
    q, k, v = contiguous(q), contiguous(k), contiguous(v)  # they lie in one tensor in no way that `get_qkv_layout` knows
    if ranks.size == 1 or context.ring:
        return _kernel(q, k, v, ranks)
    q, k, v = _exchanged([q, k, v], ranks, True)
    out = _kernel(q, k, v, ALONE)
    return _exchanged([out], ranks, False)[0]


def _kernel(q: Tensor, k: Tensor, v: Tensor, ranks: Group) -> Tensor:
    """[tokens, sequences, heads, size] of queries and of what comes out; in a ring of several ranks."""
    fused = q.tape.gpu.at_least(HOPPER)
    if not fused:
        q, k, v = (contiguous(transpose(t, 0, 1)) for t in (q, k, v))
    if ranks.size > 1:
        out = ring(q, k, v, ranks, fused)
    elif fused:
        q, k, v = (permute(t, (1, 2, 0, 3)) for t in (q, k, v))
        out = permute(cudnn(q, k, v, None, True), (2, 0, 1, 3))
    else:
        q, k, v = (transpose(t, 1, 2) for t in (q, k, v))
        out = transpose(flash(q, k, v, True), 1, 2)
    return out if fused else contiguous(transpose(out, 0, 1))


def _exchanged(tensors: list[Tensor], context: Group, before: bool) -> list[Tensor]:
    """Tokens of this rank and all heads become all tokens and a part of the heads, and back after attention.

    `flash_attn_a2a_communicate` of context_parallel.py: a copy in the order in which parts are sent, what arrives, and that put
    in order.
    """
    shapes = [_other(t.shape, context.size, before) for t in tensors]
    back = [t.shape for t in tensors]

    def move(given: list[Tensor], to: list[Shape]) -> list[Tensor]:
        sent, ordered = [], []
        for t, shape in zip(given, to, strict=True):
            sent.append(unary("contiguous", t))
            arrived = all_to_all(sent[-1], context, shape)
            ordered.append(unary("index_select", arrived))
        return ordered

    def backward(*gradients: Gradient) -> list[Gradient]:
        given = [g for g in gradients if g is not None]
        return [*move(given, back)]

    node = record("AllToAll", tensors, (), backward, outputs=len(tensors))
    outs = [attach(node, t) for t in move(tensors, shapes)]
    for i, out in enumerate(outs):
        out.output_nr = i
    return outs


def _other(shape: Shape, ranks: int, before: bool) -> Shape:
    tokens, sequences, heads, size = shape
    return (tokens * ranks, sequences, heads // ranks, size) if before else (tokens // ranks, sequences, heads * ranks, size)
