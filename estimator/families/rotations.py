"""Rotary position embeddings as families apply them: hooks of grouped-query attention (`Rotate`)."""

from __future__ import annotations

from estimator.families.modules import rotate
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, narrow


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
