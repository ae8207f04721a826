"""Products of float16 with frozen weights [out, in] in AWQ's four bits and EETQ's eight, on CUDA.

The weight itself is never trained, so only the gradient of the input is computed.
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.layout import Shape
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, binary, empty, unary
from estimator.tape.views import reshape

ROWS = 1024
"""Up to so many rows are multiplied without unpacking the weight (`FULL_DEQUANT_MATMUL_THRESHOLD`)."""
SPLITS = 8
"""Parts that such a product adds up, each in float32 (`split_k_iters`, `fp32_accum`)."""


def matmul_awq(x: Tensor, weight: Shape, bias: Tensor | None) -> Tensor:
    """x W^T + b. Few rows: partial products; many: W unpacked, as it is again for the gradient. Saves nothing of size.

    GPTQModel 7.7, nn_modules/qlinear/gemm_awq.py, `AwqGemmFn`; gptqmodel_ext/awq/quantization/gemm_cuda_gen.cu
    (`launch_gemm_forward_cuda_fp32_reduce`, `dequantize_weights_cuda`).
    """
    outputs, inputs = weight
    rows = x.numel // inputs

    def backward(g: Tensor, *_: Tensor) -> Tensor:
        full = _unpacked(g, weight)
        flat = reshape(g, (rows, outputs))
        return reshape(_product(flat, full, inputs), x_shape)

    x_shape = x.shape
    node = record("AwqGemm", (x,), (), backward)
    if rows > ROWS:
        out = _product(x, _unpacked(x, weight), outputs)
    else:
        parts = empty(x.tape, (SPLITS, rows, outputs), dtypes.float32, "gemm_forward")
        x.tape.multiply(rows, outputs, inputs, x.dtype)
        out = empty(x.tape, (*x.shape[:-1], outputs), x.dtype, "gemm_forward")
        del parts
    return attach(node, out if bias is None else binary("add", out, bias))


def _unpacked(like: Tensor, weight: Shape) -> Tensor:
    """The weight [in, out] in float16: a new tensor."""
    return to(empty(like.tape, weight[::-1], dtypes.float16, "dequantize_weights"), like.dtype)


def matmul_eetq(x: Tensor, weight: Shape, bias: Tensor | None) -> Tensor:
    """x W^T + b, with W unpacked in registers. Saves x, of whose numbers backward uses none.

    transformers 5.23, integrations/eetq.py, `EetqLinearMMFunction`: for the gradient W is unpacked by its product with an
    identity, which is made in float32. What comes of more sequences than one gets a dimension too many, which torch sums away.
    """
    outputs = weight[0]

    def backward(g: Tensor, _: Tensor) -> Tensor:
        gradient = _through_identity(g, weight)
        return gradient if one else unary("sum", gradient)

    one = x.shape[0] == 1
    node = record("EetqLinearMM", (x,), (x,), backward)
    x.tape.multiply(x.numel // weight[1], outputs, weight[1], x.dtype)
    out = empty(x.tape, (*x.shape[:-1], outputs), x.dtype, "w8_a16_gemm")
    return attach(node, out if bias is None else binary("add", out, bias))


def _through_identity(g: Tensor, weight: Shape) -> Tensor:
    """The gradient times the weight; an identity of as many rows as the weight has inputs lives as long."""
    outputs, inputs = weight
    identity = to(empty(g.tape, (inputs, inputs), dtypes.float32, "eye"), g.dtype)
    full = _product(identity, None, outputs)
    return reshape(_product(reshape(g, (g.numel // outputs, outputs)), full, inputs), (*g.shape[:-1], inputs))


def _product(a: Tensor, weight: Tensor | None, outputs: int) -> Tensor:
    """A product with a weight; None: one that the kernel unpacks itself."""
    del weight
    a.tape.multiply(a.numel // a.shape[-1], outputs, a.shape[-1], a.dtype)
    return empty(a.tape, (*a.shape[:-1], outputs), a.dtype, "mm")
