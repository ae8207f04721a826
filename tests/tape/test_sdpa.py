"""Which kernel torch's attention runs in: the tape's choice beside the judge's, and beside what torch's source says."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from estimator.tape import dtypes
from estimator.tape.gpu import Gpu
from estimator.tape.sdpa import scaled_dot_product_attention
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.verify.attention import kernel_of

T4, V100, A100, RTX_4090, H100, B200, RTX_5090 = (7, 5), (7, 0), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)


class Call(NamedTuple):
    """What torch decides by."""

    capability: tuple[int, int] = A100
    dtype: str = "bfloat16"
    sizes: tuple[int, int] = (64, 64)
    mask: str = "none"
    shared: bool = False
    grouped: bool = True
    dropout: float = 0.0

    @property
    def gpu(self) -> Gpu:
        return Gpu(self.capability, self.capability[0] in (9, 10))


def chosen(call: Call) -> str:
    """What runs on the tape."""
    tape = Tape(call.gpu)
    tape.begin("forward")
    tape.grad_enabled = True
    dtype, heads = dtypes.BY_NAME[call.dtype], 2 if call.shared else 4
    q = empty(tape, (1, 4, 16, call.sizes[0]), dtype)
    k, v = (empty(tape, (1, heads, 16, size), dtype) for size in call.sizes)
    mask: Tensor | None = None
    if call.mask != "none":
        mask = empty(tape, (1, 4, 16, 16), dtypes.bool_ if call.mask == "booleans" else dtype)
        mask.requires_grad = call.mask == "learned"
    for tensor in (q, k, v):
        tensor.requires_grad = True
    scaled_dot_product_attention(q, k, v, mask, call.dropout, grouped=call.grouped)
    ran = {name.partition("_")[0] for name in tape.operations if name.endswith("_attention")}
    return ran.pop() if ran else "math"


def judged(call: Call) -> str:
    """What the judge runs."""
    dtype, heads = getattr(torch, call.dtype), 2 if call.shared else 4
    q = torch.empty(1, 4, 16, call.sizes[0], dtype=dtype, requires_grad=True)
    k, v = (torch.empty(1, heads, 16, size, dtype=dtype) for size in call.sizes)
    mask = None
    if call.mask != "none":
        mask = torch.empty(1, 4, 16, 16, dtype=torch.bool if call.mask == "booleans" else dtype)
        mask.requires_grad = call.mask == "learned"
    return kernel_of(call.gpu, q, k, v, mask, call.dropout, call.grouped)


@pytest.mark.parametrize(
    ("call", "kernel"),
    [
        (Call(), "flash"),
        (Call(dtype="float32"), "efficient"),
        (Call(dtype="float32", shared=True), "math"),
        (Call(shared=True), "flash"),
        (Call(shared=True, grouped=False), "math"),
        (Call(mask="booleans"), "efficient"),
        (Call(mask="learned"), "efficient"),
        (Call(sizes=(192, 128)), "efficient"),
        (Call(sizes=(260, 260)), "math"),
        (Call(sizes=(264, 264)), "efficient"),
        (Call(sizes=(100, 100)), "flash"),
        (Call(sizes=(100, 100), mask="booleans"), "math"),
        (Call(H100), "cudnn"),
        (Call(B200, shared=True), "cudnn"),
        (Call(H100, mask="booleans"), "cudnn"),
        (Call(H100, mask="learned"), "efficient"),
        (Call(H100, dropout=0.1), "flash"),
        (Call(H100, dropout=0.125), "cudnn"),
        (Call(H100, sizes=(192, 128)), "cudnn"),
        (Call(H100, sizes=(256, 256)), "flash"),
        (Call(H100, sizes=(100, 100)), "flash"),
        (Call(H100, dtype="float32"), "efficient"),
        (Call(RTX_5090), "flash"),
        (Call(RTX_4090, sizes=(224, 224)), "efficient"),
        (Call(RTX_4090, sizes=(256, 256)), "flash"),
        (Call(RTX_5090, sizes=(256, 256), dropout=0.1), "efficient"),
        (Call(T4), "math"),
        (Call(T4, dtype="float16"), "efficient"),
        (Call(T4, dtype="float16", shared=True), "math"),
        (Call(V100, dtype="float16", mask="booleans"), "efficient"),
        (Call(V100, dtype="float32", sizes=(30, 30)), "efficient"),
    ],
    ids=str,
)
def test_the_kernel_is_the_one_that_torchs_source_names(call: Call, kernel: str) -> None:
    assert (chosen(call), judged(call)) == (kernel, kernel)


sizes = st.sampled_from([8, 20, 64, 96, 128, 192, 224, 256, 260, 264])
calls = st.builds(
    Call,
    st.sampled_from([T4, V100, A100, RTX_4090, H100, B200, RTX_5090, (6, 1)]),
    st.sampled_from(["float16", "bfloat16", "float32"]),
    st.tuples(sizes, sizes),
    st.sampled_from(["none", "booleans", "numbers", "learned"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 0.125]),
)


@given(calls)
def test_tape_and_judge_choose_alike(call: Call) -> None:
    assert chosen(call) == judged(call)
