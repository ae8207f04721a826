"""Manifold-constrained hyper-connections: several streams in the place of one residual, mixed around each block.

After transformers' modeling_deepseek_v4.py (5.23), `DeepseekV4HyperConnection` and `DeepseekV4HyperHead`. All of their parameters
are in float32 whatever the model's type. Hidden states are [batch, tokens, streams, hidden].
"""

from __future__ import annotations

from typing import Any

from estimator.families.build import Builder
from estimator.tape import dtypes
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, add_scalar, div, mean_last, mul, mul_scalar, pow_scalar, rsqrt, sigmoid, softmax, to
from estimator.tape.reduction import sum_dim
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, split, unbind, unsqueeze


def unweighted_norm(x: Tensor) -> Tensor:
    """Root-mean-square normalisation without a weight (`DeepseekV4UnweightedRMSNorm`)."""
    return mul(x, to(rsqrt(add_scalar(mean_last(pow_scalar(to(x, dtypes.float32))))), x.dtype))


class HyperConnection:
    """Weights that collapse the streams into a block's input, spread its output over them, and mix them with each other.

    The last are made doubly stochastic by dividing by the sums of columns and of rows in turn, each division a tensor of its own.
    """

    def __init__(self, spec: Any, build: Builder, name: str):
        self.streams, self.iterations = spec.hc_mult, spec.hc_sinkhorn_iters
        outputs = (2 + spec.hc_mult) * spec.hc_mult
        self.fn = build.parameter(name + ".fn", (outputs, spec.hc_mult * spec.hidden_size), dtypes.float32)
        self.base = build.parameter(name + ".base", (outputs,), dtypes.float32)
        self.scale = build.parameter(name + ".scale", (3,), dtypes.float32)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What spreads, [batch, tokens, streams]; what mixes, [batch, tokens, streams, streams]; the block's input."""
        n, (batch, tokens) = self.streams, hidden.shape[:2]
        flat = to(reshape(hidden, (batch, tokens, -1)), dtypes.float32)
        flat = unweighted_norm(flat)
        flat = linear(flat, to(self.fn, dtypes.float32))
        pre_w, post_w, comb_w = split(flat, (n, n, n * n), 2)
        pre_b, post_b, comb_b = split(self.base, (n, n, n * n), 0)
        pre_scale, post_scale, comb_scale = unbind(self.scale, 0)
        comb_w = reshape(comb_w, (batch, tokens, n, n))
        comb_b = reshape(comb_b, (n, n))
        pre = add_scalar(sigmoid(add(mul(pre_w, pre_scale), pre_b)))
        post = mul_scalar(sigmoid(add(mul(post_w, post_scale), post_b)))
        comb = add_scalar(softmax(add(mul(comb_w, comb_scale), comb_b)))
        comb = div(comb, add_scalar(sum_dim(comb, 2, keepdim=True)))
        for _ in range(self.iterations - 1):
            comb = div(comb, add_scalar(sum_dim(comb, 3, keepdim=True)))
            comb = div(comb, add_scalar(sum_dim(comb, 2, keepdim=True)))
        collapsed = to(sum_dim(mul(unsqueeze(pre, 3), hidden), 2), hidden.dtype)
        return post, comb, collapsed


class HyperHead:
    """The streams collapsed into one, before the last norm."""

    def __init__(self, spec: Any, build: Builder):
        streams = spec.hc_mult
        self.fn = build.parameter("hc_head.hc_fn", (streams, streams * spec.hidden_size), dtypes.float32)
        self.base = build.parameter("hc_head.hc_base", (streams,), dtypes.float32)
        self.scale = build.parameter("hc_head.hc_scale", (1,), dtypes.float32)

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = unweighted_norm(to(reshape(hidden, (*hidden.shape[:2], -1)), dtypes.float32))
        mixes = linear(flat, to(self.fn, dtypes.float32))
        pre = add_scalar(sigmoid(add(mul(mixes, to(self.scale, dtypes.float32)), to(self.base, dtypes.float32))))
        return to(sum_dim(mul(unsqueeze(pre, 3), hidden), 2), hidden.dtype)
