"""CUDA's autocast, asked itself: its dispatch is in every build of torch, and fake tensors need no GPU to go through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from estimator import dtypes
from estimator.families.attention import Attention
from estimator.tape import autocast, loss, matmul, normalization, pointwise
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from tests.judge.cuda import on_cuda

OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    # torch's operation and the tape's, of a half-precision x [2, 16] and float32 w [16, 16], b [16], q [1, 2, 16, 8]
    "linear": (lambda x, w, b, q: F.linear(x, w), lambda x, w, b, q: matmul.linear(x, w, None)),
    "matmul": (lambda x, w, b, q: q @ q.transpose(2, 3), lambda x, w, b, q: matmul.matmul(q, q)),
    "layer_norm": (lambda x, w, b, q: F.layer_norm(x, (16,), b, b), lambda x, w, b, q: normalization.layer_norm(x, b, b)),
    "pow": (lambda x, w, b, q: torch.pow(x, 3.0), lambda x, w, b, q: pointwise.pow_scalar(x)),
    "rsqrt": (lambda x, w, b, q: torch.rsqrt(x), lambda x, w, b, q: pointwise.rsqrt(x)),
    "softmax": (lambda x, w, b, q: F.softmax(x, -1), lambda x, w, b, q: pointwise.softmax(x, None)),
    "silu": (lambda x, w, b, q: F.silu(x), lambda x, w, b, q: pointwise.silu(x)),
    "gelu": (lambda x, w, b, q: F.gelu(x), lambda x, w, b, q: pointwise.gelu(x)),
    "relu": (lambda x, w, b, q: F.relu(x), lambda x, w, b, q: pointwise.relu(x)),
    "tanh": (lambda x, w, b, q: torch.tanh(x), lambda x, w, b, q: pointwise.tanh(x)),
    "native_dropout": (lambda x, w, b, q: torch.native_dropout(x, 0.1, True)[0], lambda x, w, b, q: pointwise.dropout(x, 0.1)),
    "sdpa": (
        lambda x, w, b, q: F.scaled_dot_product_attention(q, q, q),
        lambda x, w, b, q: Attention("sdpa")(q, q, q, None)[0],
    ),
    "cross_entropy": (
        lambda x, w, b, q: F.cross_entropy(x, torch.zeros(2, dtype=torch.int64, device=x.device)),
        lambda x, w, b, q: loss.cross_entropy(x, empty(x.tape, (2,), dtypes.int64, "labels")),
    ),
}


@contextmanager
def autocast_of(device: str) -> Iterator[None]:
    """Under CUDA's autocast without CUDA, on fake tensors; or under the CPU's, with the judge's decisions."""
    pretending = {"is_available": lambda: True, "is_bf16_supported": lambda *_: True}
    with (
        mock.patch.multiple(torch.cuda, **pretending),  # type: ignore[call-overload]
        mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False),
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.no_grad(),
        torch.autocast(device, torch.bfloat16),
    ):
        yield


def of_torch(operation: Callable[..., torch.Tensor], device: str) -> str:
    def made(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, device=device, dtype=dtype)

    result = operation(made(2, 16, dtype=torch.bfloat16), made(16, 16), made(16), made(1, 2, 16, 8))
    return str(result.dtype).removeprefix("torch.")


def of_tape(operation: Callable[..., Tensor]) -> str:
    tape = Tape()
    tape.begin("forward")
    x, w = empty(tape, (2, 16), dtypes.bfloat16, "x"), empty(tape, (16, 16), dtypes.float32, "w")
    b, q = empty(tape, (16,), dtypes.float32, "b"), empty(tape, (1, 2, 16, 8), dtypes.float32, "q")
    with autocast.autocast(tape, dtypes.bfloat16):
        return operation(x, w, b, q).dtype.name


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_tape_casts_what_cuda_casts(name: str) -> None:
    real, ours = OPERATIONS[name]
    with autocast_of("cuda"):
        expected = of_torch(real, "cuda")
    assert of_tape(ours) == expected


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_judge_casts_what_cuda_casts(name: str) -> None:
    real = OPERATIONS[name][0]
    with autocast_of("cuda"):
        expected = of_torch(real, "cuda")
    with on_cuda(), autocast_of("cpu"):
        assert of_torch(real, "cpu") == expected


def test_the_cpu_by_itself_casts_otherwise() -> None:
    """Why the judge must decide: the CPU's autocast leaves alone what CUDA's runs in float32."""
    for name in ("layer_norm", "pow", "rsqrt", "softmax"):
        with autocast_of("cpu"):
            assert of_torch(OPERATIONS[name][0], "cpu") == "bfloat16"
