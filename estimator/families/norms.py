"""Norms, written out, that several families share, other than transformers' usual one."""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.tape import dtypes
from estimator.tape.pointwise import add_scalar, mean_last, mul, pow_scalar, rsqrt, to
from estimator.tape.tensor import Tensor


class WideRMSNorm:
    """Root-mean-square normalisation in float32, weighted before it is cast back (`Olmo2RMSNorm`, `GptOssRMSNorm`)."""

    def __init__(self, build: Builder, name: str, size: int):
        self.weight = build.parameter(name + ".weight", (size,))

    def __call__(self, x: Tensor) -> Tensor:
        out = to(x, dtypes.float32)
        variance = mean_last(pow_scalar(out))
        out = mul(out, rsqrt(add_scalar(variance)))
        return to(mul(self.weight, out), x.dtype)


class WidelyWeightedRMSNorm(WideRMSNorm):
    """The same with its weight in float32 (`HeliumRMSNorm`)."""

    def __call__(self, x: Tensor) -> Tensor:
        out = to(x, dtypes.float32)
        variance = mean_last(pow_scalar(out))
        out = mul(out, rsqrt(add_scalar(variance)))
        return to(mul(to(self.weight, dtypes.float32), out), x.dtype)


class RMSNormThenWeight:
    """Root-mean-square normalisation in float32, weighted once it is cast back (`Llama4TextRMSNorm`)."""

    def __init__(self, build: Builder, name: str, size: int):
        self.weight = build.parameter(name + ".weight", (size,))

    def __call__(self, x: Tensor) -> Tensor:
        out = normalized(x)
        return mul(out, self.weight)


def normalized(x: Tensor) -> Tensor:
    """Root-mean-square normalisation in float32, without a weight, cast back (`Llama4TextL2Norm`)."""
    return to(_norm(to(x, dtypes.float32)), x.dtype)


def _norm(x: Tensor) -> Tensor:
    return mul(x, rsqrt(add_scalar(mean_last(pow_scalar(x)))))
