"""Rotary position embeddings as families apply them: hooks of grouped-query attention (`Rotate`)."""

from __future__ import annotations

from estimator.families.modules import rotate
from estimator.tape import dtypes
from estimator.tape.pointwise import mul, neg, to
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import cat, every_second, narrow, reshape, stack_last


def unrotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys as they are: for layers without positions."""
    return q, k


def rotate_first(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """Rotate the first elements of each head, as many as the table has, and join the rest, which may be none.

    The parts are held: PhiAttention has names for them.
    """
    size, rest = cos.shape[-1], q.shape[-1] - cos.shape[-1]
    q_rot, q_pass = narrow(q, -1, size), narrow(q, -1, rest)
    k_rot, k_pass = narrow(k, -1, size), narrow(k, -1, rest)
    q_rot, k_rot = rotate(q_rot, k_rot, cos, sin)
    return cat((q_rot, q_pass), -1), cat((k_rot, k_pass), -1), q_rot, q_pass, k_rot, k_pass


def rotate_first_alone(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """Rotate the first elements of each head, in a function of its own, after which only the results are held
    (modeling_nemotron.py, `apply_rotary_pos_emb`)."""
    return rotate_first(q, k, cos, sin)[:2]


def rotate_half_of_pairs(x: Tensor) -> Tensor:
    """Of each two neighbours in the last dimension the second, negated, before the first (modeling_glm4.py, `rotate_half`)."""
    first, second = every_second(x), every_second(x)
    return reshape(stack_last((neg(second), first)), x.shape)


def scaled_by_position(q: Tensor, cos: Tensor) -> Tensor:
    """Queries, [batch, heads, tokens, size], times a number for each position that grows with its logarithm
    (modeling_ministral3.py, `get_llama_4_attn_scale`)."""
    scale = empty(cos.tape, (cos.shape[0], 1, cos.shape[1], 1), dtypes.float32, "div")
    for operation in ("floor", "add", "log", "mul", "add"):
        scale = unary(operation, scale)
    return mul(q, to(scale, q.dtype))
