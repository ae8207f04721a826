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
from torch.utils._python_dispatch import TorchDispatchMode

from estimator.families.attention import Attention
from estimator.tape import autocast, dtypes, loss, matmul, normalization, pointwise, reduction, selection, views
from estimator.tape.convolution import convolution
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.verify.cuda import on_cuda

OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    # torch's operation and the tape's, of a half-precision x [2, 16] and float32 w [16, 16], b [16], q [1, 2, 16, 8]
    "linear": (lambda x, w, b, q: F.linear(x, w), lambda x, w, b, q: matmul.linear(x, w, None)),
    "matmul": (lambda x, w, b, q: q @ q.transpose(2, 3), lambda x, w, b, q: matmul.matmul(q, q)),
    "baddbmm": (
        lambda x, w, b, q: torch.baddbmm(w.narrow(0, 0, 2).unsqueeze(1), q.squeeze(0), q.squeeze(0).transpose(1, 2)),
        lambda x, w, b, q: matmul.baddbmm(
            views.reshape(views.narrow(w, 0, 2), (2, 1, 16)),
            views.reshape(q, (2, 16, 8)),
            views.transpose(views.reshape(q, (2, 16, 8)), 1, 2),
        ),
    ),
    "cat": (lambda x, w, b, q: torch.cat((x, w)), lambda x, w, b, q: views.cat((x, w), 0)),
    "stack": (lambda x, w, b, q: torch.stack((x, x), -1), lambda x, w, b, q: views.stack_last((x, x))),
    "clamp": (lambda x, w, b, q: x.clamp(-1, 1), lambda x, w, b, q: pointwise.clamp(x)),
    "masked_fill": (
        lambda x, w, b, q: x.masked_fill(x > 0, 1),
        lambda x, w, b, q: selection.masked_fill(x, empty(x.tape, x.shape, dtypes.bool_, "mask")),
    ),
    "convolution": (
        lambda x, w, b, q: F.conv1d(q.squeeze(0), w.unsqueeze(2), b),
        lambda x, w, b, q: convolution(views.select(q, 0), views.unsqueeze(w, 2), b),
    ),
    "layer_norm": (lambda x, w, b, q: F.layer_norm(x, (16,), b, b), lambda x, w, b, q: normalization.layer_norm(x, b, b)),
    "rms_norm": (lambda x, w, b, q: F.rms_norm(x, (16,), b), lambda x, w, b, q: normalization.rms_norm(x, b)),
    "pow": (lambda x, w, b, q: torch.pow(x, 3.0), lambda x, w, b, q: pointwise.pow_scalar(x)),
    "square": (lambda x, w, b, q: torch.square(x), lambda x, w, b, q: pointwise.pow_scalar(x)),
    "product with a view of a weight": (lambda x, w, b, q: x @ w.T, lambda x, w, b, q: matmul.times_transposed(x, w)),
    "expm1": (lambda x, w, b, q: torch.expm1(x), lambda x, w, b, q: pointwise.expm1(x)),
    "rsqrt": (lambda x, w, b, q: torch.rsqrt(x), lambda x, w, b, q: pointwise.rsqrt(x)),
    "softmax": (lambda x, w, b, q: F.softmax(x, -1), lambda x, w, b, q: pointwise.softmax(x, None)),
    "softmax of a tensor's own": (lambda x, w, b, q: x.softmax(-1), lambda x, w, b, q: pointwise.softmax(x, None)),
    "sum": (lambda x, w, b, q: x.sum(-1), lambda x, w, b, q: reduction.sum_dim(x, -1)),
    "norm": (lambda x, w, b, q: torch.norm(x, p="fro"), lambda x, w, b, q: reduction.vector_norm(x)),
    "linalg.norm": (lambda x, w, b, q: torch.linalg.norm(x, dim=1), lambda x, w, b, q: reduction.vector_norm(x, 1)),
    "std": (lambda x, w, b, q: x.std(-1, keepdim=True, unbiased=False), lambda x, w, b, q: reduction.std_last(x)),
    "amax": (lambda x, w, b, q: x.amax(-1), lambda x, w, b, q: selection.amax_last(x)),
    "sigmoid": (lambda x, w, b, q: torch.sigmoid(x), lambda x, w, b, q: pointwise.sigmoid(x)),
    "topk": (lambda x, w, b, q: torch.topk(x, 2)[0], lambda x, w, b, q: selection.topk(x, 2)[0]),
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


def test_python_code_is_told_that_autocast_is_on() -> None:
    with autocast_of("cuda"):
        assert torch.is_autocast_enabled()
    with on_cuda(), autocast_of("cpu"):
        assert torch.is_autocast_enabled()


def test_the_cpu_by_itself_casts_otherwise() -> None:
    """Why the judge must decide: the CPU's autocast leaves alone what CUDA's runs in float32."""
    for name in ("layer_norm", "pow", "rsqrt", "softmax", "sum"):
        with autocast_of("cpu"):
            assert of_torch(OPERATIONS[name][0], "cpu") == "bfloat16"


@pytest.mark.parametrize(("name", "known"), [("mm", True), ("sum", True), ("cat", False), ("_grouped_mm", False)])
def test_what_autocast_knows_on_cuda(name: str, known: bool) -> None:
    """Products of experts run in their weights' type, and tensors of several types are joined without casts."""
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA") is known


def test_the_judge_joins_without_casts() -> None:
    class Seen(TorchDispatchMode):
        names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(func.name())
            return func(*args, **(kwargs or {}))

    with on_cuda(), autocast_of("cpu"), Seen() as seen:
        torch.cat((torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2)))
    assert seen.names[-1] == "aten::cat"
    assert "aten::_to_copy" not in seen.names
