"""Element-wise operations and reductions: what each saves, and what its gradient needs.

Each function is one aten operation. Backward formulas are those of torch's tools/autograd/derivatives.yaml, computed in
the order of torch's generated code (by name of the argument), with the temporaries that their C++ makes.
"""

from __future__ import annotations

from estimator import dtypes
from estimator.dtypes import DType
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.tensor import Tensor, binary, empty, unary


def to(x: Tensor, dtype: DType) -> Tensor:
    """`x.to(dtype)`: `x` itself if it has that type already."""
    source = x.dtype
    if source is dtype:
        return x
    node = record("ToCopyBackward", (x,), (), lambda g: unary("_to_copy", g, source))
    return attach(node, unary("_to_copy", x, dtype))


def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b. Saves nothing; both get the same gradient."""
    wanted = a.requires_grad, b.requires_grad
    node = record("AddBackward", (a, b), (), lambda g: [g if want else None for want in wanted])
    return attach(node, binary("add", a, b))


def add_scalar(x: Tensor) -> Tensor:
    """x + number. Saves nothing."""
    node = record("AddBackward", (x,), (), lambda g: g)
    return attach(node, unary("add", x))


def mul(a: Tensor, b: Tensor) -> Tensor:
    """a * b. Saves each factor that the other's gradient needs."""
    saved = (b if a.requires_grad else None, a if b.requires_grad else None)
    return attach(record("MulBackward", (a, b), saved, _mul_backward), binary("mul", a, b))


def _mul_backward(g: Tensor, b: Gradient, a: Gradient) -> tuple[Gradient, Gradient]:
    grad_b = None if a is None else binary("mul", g, a)
    grad_a = None if b is None else binary("mul", g, b)
    return grad_a, grad_b


def mul_scalar(x: Tensor) -> Tensor:
    """x * number. Saves nothing on the device."""
    node = record("MulBackward", (x,), (), lambda g: unary("mul", g))
    return attach(node, unary("mul", x))


def neg(x: Tensor) -> Tensor:
    """-x. Saves nothing."""
    node = record("NegBackward", (x,), (), lambda g: unary("neg", g))
    return attach(node, unary("neg", x))


def pow_scalar(x: Tensor) -> Tensor:
    """x ** number. Saves x; autocast runs it in float32."""
    x = _float32_under_autocast(x)
    return attach(record("PowBackward", (x,), (x,), _pow_backward), unary("pow", x))


def _pow_backward(g: Tensor, x: Tensor) -> Tensor:
    power = unary("pow", x)
    scaled = unary("mul", power)
    return binary("mul", g, scaled)  # one C++ expression: its temporaries live to its end


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x). Saves its result; autocast runs it in float32."""
    x = _float32_under_autocast(x)
    return attach(record("RsqrtBackward", (x,), (), _rsqrt_backward), unary("rsqrt", x), save=True)


def _rsqrt_backward(g: Tensor, y: Tensor) -> Tensor:
    cubed = unary("pow", y)
    return binary("mul", unary("mul", g), cubed)


def tanh(x: Tensor) -> Tensor:
    """tanh(x). Saves its result."""
    node = record("TanhBackward", (x,), (), lambda g, y: binary("tanh_backward", g, y))
    return attach(node, unary("tanh", x), save=True)


def relu(x: Tensor) -> Tensor:
    """max(x, 0). Saves its result."""
    node = record("ReluBackward", (x,), (), lambda g, y: binary("threshold_backward", g, y))
    return attach(node, unary("relu", x), save=True)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), one kernel. Saves x."""
    node = record("SiluBackward", (x,), (x,), lambda g, x: binary("silu_backward", g, x))
    return attach(node, unary("silu", x))


def gelu(x: Tensor) -> Tensor:
    """GELU, exact or by its tanh approximation, one kernel. Saves x."""
    node = record("GeluBackward", (x,), (x,), lambda g, x: binary("gelu_backward", g, x))
    return attach(node, unary("gelu", x))


def dropout(x: Tensor, p: float) -> Tensor:
    """CUDA's fused dropout in training mode: saves a mask of one byte per element. `p` 0 does nothing."""
    if not p:
        return x
    node = record("NativeDropoutBackward", (x,), (), lambda g, mask: binary("native_dropout_backward", g, mask, g.dtype))
    out = attach(node, unary("native_dropout", x))
    mask = unary("native_dropout", x, dtypes.bool_)
    if node is not None:
        node.save((mask,))
    return out


def mean_last(x: Tensor) -> Tensor:
    """Mean over the last dimension, which is kept. Saves nothing."""
    shape = x.shape
    node = record("MeanBackward", (x,), (), lambda g: empty(g.tape, shape, g.dtype, "div"))
    return attach(node, empty(x.tape, (*shape[:-1], 1), x.dtype, "mean"))


def softmax(x: Tensor, dtype: DType | None = None) -> Tensor:
    """Softmax over the last dimension, computed and returned in `dtype`. Saves its result.

    CUDA converts float16 to float32 within the kernel; bfloat16 is converted before it, in a tensor of its own
    (aten/src/ATen/native/SoftMax.cpp).
    """
    if dtype is None:
        dtype = dtypes.float32 if x.tape.autocast else x.dtype
    source = x.dtype
    fused = source is dtypes.float16 and dtype is dtypes.float32
    if not fused:
        x = to(x, dtype)
    node = record("SoftmaxBackward", (x,), (), lambda g, y: binary("_softmax_backward_data", g, y, source if fused else g.dtype))
    return attach(node, unary("_softmax", x, dtype), save=True)


def _float32_under_autocast(x: Tensor) -> Tensor:
    return to(x, dtypes.float32) if x.tape.autocast else x
