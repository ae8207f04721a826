"""Element-wise operations and reductions: what each saves, and what its gradient needs.

Each function is one aten operation. Backward formulas are those of torch's tools/autograd/derivatives.yaml, computed in
the order of torch's generated code (by name of the argument), with the temporaries that their C++ makes.
"""

from __future__ import annotations

from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.dtypes import DType, promote
from estimator.tape.tensor import Tensor, binary, empty, moved, output, unary


def to(x: Tensor, dtype: DType) -> Tensor:
    """`x.to(dtype)`: `x` itself if it has that type already."""
    source = x.dtype
    if source is dtype:
        return x
    node = record("ToCopyBackward", (x,), (), lambda g: unary("_to_copy", g, source))
    return attach(node, unary("_to_copy", x, dtype))


def to_dense(x: Tensor, dtype: DType) -> Tensor:
    """`x.to(dtype, memory_format=torch.contiguous_format)`: row by row if it is converted, else `x` itself."""
    source = x.dtype
    if source is dtype:
        return x
    node = record("ToCopyBackward", (x,), (), lambda g: unary("_to_copy", g, source))
    return attach(node, output("_to_copy", (x,), x.shape, dtype))


def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b. Saves nothing; both get the same gradient."""
    wanted = a.requires_grad, b.requires_grad
    node = record("AddBackward", (a, b), (), lambda g: [g if want else None for want in wanted])
    return attach(node, binary("add", a, b))


def add_(a: Tensor, b: Tensor) -> Tensor:
    """`a += b`: on the bytes of `a`, which the caller must not use any more."""
    wanted = a.requires_grad, b.requires_grad
    node = record("AddBackward", (a, b), (), lambda g: [g if want else None for want in wanted])
    moved("add_", a, b, a)
    return attach(node, Tensor(a.storage, a.shape, a.dtype, a.strides))


def add_to_view_(a: Tensor, b: Tensor) -> Tensor:
    """`a += b` where `a` is a view that autograd knows: the gradient is copied twice, as that of what `a` is a view of and for b.

    torch/csrc/autograd/functions/tensor.cpp, `CopySlices`.
    """
    wanted = a.requires_grad, b.requires_grad

    def backward(g: Tensor) -> tuple[Gradient, Gradient]:
        whole = output("new_empty_strided", (g,), g.shape, g.dtype)
        part = output("clone", (g,), g.shape, g.dtype)
        return (whole if wanted[0] else None), (part if wanted[1] else None)

    moved("add_", a, b, a)
    return attach(record("CopySlices", (a, b), (), backward), Tensor(a.storage, a.shape, a.dtype, a.strides))


def add_scaled_(a: Tensor, b: Tensor) -> Tensor:
    """`a += number * b`, as `add_`; the gradient of b is multiplied by the number in a tensor of its own."""
    wanted = a.requires_grad, b.requires_grad

    def backward(g: Tensor) -> tuple[Gradient, Gradient]:
        grad_b = unary("mul", g) if wanted[1] else None
        return (g if wanted[0] else None), grad_b

    moved("add_", a, b, a)
    return attach(record("AddBackward", (a, b), (), backward), Tensor(a.storage, a.shape, a.dtype, a.strides))


def add_scalar(x: Tensor) -> Tensor:
    """x + number. Saves nothing."""
    node = record("AddBackward", (x,), (), lambda g: g)
    return attach(node, unary("add", x))


def sub(a: Tensor, b: Tensor) -> Tensor:
    """a - b. Saves nothing; b gets the negated gradient."""
    wanted = a.requires_grad, b.requires_grad

    def backward(g: Tensor) -> tuple[Gradient, Gradient]:
        grad_b = unary("neg", g) if wanted[1] else None
        return (g if wanted[0] else None), grad_b

    return attach(record("SubBackward", (a, b), (), backward), binary("sub", a, b))


def rsub(x: Tensor) -> Tensor:
    """number - x. Saves nothing; the gradient is negated."""
    return attach(record("RsubBackward", (x,), (), lambda g: unary("neg", g)), unary("rsub", x))


def mul(a: Tensor, b: Tensor) -> Tensor:
    """a * b. Saves each factor that the other's gradient needs."""
    saved = (b if a.requires_grad else None, a if b.requires_grad else None)
    return attach(record("MulBackward", (a, b), saved, _mul_backward), binary("mul", a, b))


def _mul_backward(g: Tensor, b: Gradient, a: Gradient) -> tuple[Gradient, Gradient]:
    grad_b = None if a is None else binary("mul", g, a)
    grad_a = None if b is None else binary("mul", g, b)
    return grad_a, grad_b


def mul_(a: Tensor, b: Tensor) -> Tensor:
    """`a *= b`, where b wants no gradient: on the bytes of `a`, which the caller must not use any more. Saves b."""
    if a.tape.selection is not None:
        a.tape.selection.changes(a, "what is multiplied in place: write {operations: products}, or full")
    node = record("MulBackward", (a,), (b,), lambda g, b: binary("mul", g, b))
    moved("mul_", a, b, a)
    return attach(node, Tensor(a.storage, a.shape, a.dtype, a.strides))


def mul_scalar(x: Tensor) -> Tensor:
    """x * number. Saves nothing on the device."""
    node = record("MulBackward", (x,), (), lambda g: unary("mul", g))
    return attach(node, unary("mul", x))


def mul_scalar_(x: Tensor) -> Tensor:
    """`x *= number`, or `x /= number`: on the bytes of `x`, which the caller must not use any more."""
    node = record("MulBackward", (x,), (), lambda g: unary("mul", g))
    moved("mul_", x, x)
    return attach(node, Tensor(x.storage, x.shape, x.dtype, x.strides))


def div_scalar(x: Tensor) -> Tensor:
    """x / number. Saves nothing on the device."""
    node = record("DivBackward", (x,), (), lambda g: unary("div", g))
    return attach(node, unary("div", x))


def clamp(x: Tensor, lower: bool = True) -> Tensor:
    """x, no higher than one number and, if `lower`, no lower than another. Saves x; outside them its gradient is zero."""
    node = record("ClampBackward", (x,), (x,), lambda g, x: _clamp_backward(g, x, lower))
    return attach(node, unary("clamp", x))


def div(a: Tensor, b: Tensor) -> Tensor:
    """a / b. Saves both if both want gradients, else what the one gradient needs."""
    saved = (a if b.requires_grad else None, b)
    wanted = a.requires_grad

    def backward(g: Tensor, a: Gradient, b: Tensor) -> tuple[Gradient, Gradient]:
        grad_b = None if a is None else _quotient(g, a, b)
        grad_a = binary("div", g, b) if wanted else None
        return grad_a, grad_b

    return attach(record("DivBackward", (a, b), saved, backward), binary("div", a, b))


def _quotient(g: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """-g * ((a / b) / b), one C++ expression: what is right of the product comes first, and its temporaries live to its end."""
    once = binary("div", a, b)
    twice = binary("div", once, b)
    return binary("mul", unary("neg", g), twice)


def div_(a: Tensor, b: Tensor) -> Tensor:
    """a /= b. Saves b, and a copy of what a was (an in-place operation clones what its formula needs)."""
    if a.tape.selection is not None:
        a.tape.selection.changes(a, "the weights of the chosen experts: write {operations: products}, or full")
    node = record("DivBackward", (a, b), (b if a.requires_grad else None,), _div_in_place_backward)
    if node is not None:
        node.save((unary("clone", a) if b.requires_grad else None,))
    return attach(node, Tensor(a.storage, a.shape, a.dtype, a.strides))


def _div_in_place_backward(g: Tensor, b: Gradient, a: Gradient) -> tuple[Gradient, Gradient]:
    """FunctionsManual.cpp: `div_tensor_other_backward`, one expression whose temporaries live to its end; then a's."""
    grad_b = None
    if a is not None and b is not None:
        quotient = binary("div", a, b)
        again = binary("div", quotient, b)
        negative = unary("neg", g)
        grad_b = binary("mul", negative, again)
        del quotient, again, negative
    return None if b is None else binary("div", g, b), grad_b


def exp(x: Tensor) -> Tensor:
    """e ** x. Saves its result; autocast runs it in float32."""
    x = _float32_under_autocast(x)
    node = record("ExpBackward", (x,), (), lambda g, y: binary("mul", g, y))
    return attach(node, unary("exp", x), save=True)


def expm1(x: Tensor) -> Tensor:
    """e ** x - 1. Saves its result; autocast runs it in float32."""
    x = _float32_under_autocast(x)
    node = record("Expm1Backward", (x,), (), lambda g, y: binary("mul", g, unary("add", y)))
    return attach(node, unary("expm1", x), save=True)


def log(x: Tensor) -> Tensor:
    """The natural logarithm of x, which it saves; autocast runs it in float32."""
    x = _float32_under_autocast(x)
    return attach(record("LogBackward", (x,), (x,), lambda g, x: binary("div", g, x)), unary("log", x))


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


def sqrt(x: Tensor) -> Tensor:
    """The square root of x. Saves its result."""
    return attach(record("SqrtBackward", (x,), (), _sqrt_backward), unary("sqrt", x), save=True)


def _sqrt_backward(g: Tensor, y: Tensor) -> Tensor:
    twice = unary("mul", y)
    return binary("div", g, twice)  # one C++ expression: its temporary lives to its end


def clamp_in_place(x: Tensor) -> Tensor:
    """x.clamp_(least, most). Saves a copy of what x was before."""
    node = record("ClampBackward", (x,), (), lambda g, x: _clamp_backward(g, x, lower=True))
    if node is not None:
        node.save((unary("clone", x),))
    return attach(node, Tensor(x.storage, x.shape, x.dtype, x.strides))


def _clamp_backward(g: Tensor, x: Tensor, lower: bool) -> Tensor:
    """torch/csrc/autograd/FunctionsManual.cpp, `clamp_backward`; the second mask is put into the first."""
    zero = empty(g.tape, (), g.dtype, "scalar_tensor")
    reached = unary("ge", x, dtypes.bool_) if lower else None
    within = unary("le", x, dtypes.bool_)
    result = binary("where", within, g, g.dtype)
    del zero, reached
    return result


def where(condition: Tensor, x: Tensor) -> Tensor:
    """`x` where a condition of booleans holds, else a number. Saves the condition."""
    node = record("WhereBackward", (x,), (condition,), lambda g, condition: binary("where", condition, g, g.dtype))
    return attach(node, binary("where", condition, x, x.dtype))


def where_either(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`x` where a condition of booleans holds, else `y`. Saves the condition; each gets the gradient where it was taken."""
    wanted = x.requires_grad, y.requires_grad

    def backward(g: Tensor, condition: Tensor) -> tuple[Gradient, Gradient]:
        other = binary("where", condition, g, g.dtype) if wanted[1] else None
        return (binary("where", condition, g, g.dtype) if wanted[0] else None), other

    node = record("WhereBackward", (x, y), (condition,), backward)
    return attach(node, binary("where", condition, x, promote(x.dtype, y.dtype)))


def clamp_between(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """`x` between two tensors of one number. Saves all three; the gradient goes where `x` was between."""
    return attach(record("ClampBackward", (x,), (x, low, high), _clamp_between_backward), unary("clamp", x))


def _clamp_between_backward(g: Tensor, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    above = unary("ge", x, dtypes.bool_)
    below = unary("le", x, dtypes.bool_)
    out = binary("where", above, g, g.dtype)
    del above, below
    return out


def tanh(x: Tensor) -> Tensor:
    """tanh(x). Saves its result."""
    node = record("TanhBackward", (x,), (), lambda g, y: binary("tanh_backward", g, y))
    return attach(node, unary("tanh", x), save=True)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)). Saves its result."""
    node = record("SigmoidBackward", (x,), (), lambda g, y: binary("sigmoid_backward", g, y))
    return attach(node, unary("sigmoid", x), save=True)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)). Saves x; autocast runs it in float32."""
    x = _float32_under_autocast(x)
    node = record("SoftplusBackward", (x,), (x,), lambda g, x: binary("softplus_backward", g, x))
    return attach(node, unary("softplus", x))


def relu(x: Tensor) -> Tensor:
    """max(x, 0). Saves its result."""
    node = record("ReluBackward", (x,), (), lambda g, y: binary("threshold_backward", g, y))
    return attach(node, unary("relu", x), save=True)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), one kernel. Saves x."""
    node = record("SiluBackward", (x,), (x,), lambda g, x: binary("silu_backward", g, x))
    return attach(node, unary("silu", x))


def glu(x: Tensor, dim: int) -> Tensor:
    """The first half of a dimension times the sigmoid of the second, one kernel. Saves x, whose gradient is whole."""
    shape = tuple([size // 2 if i == dim else size for i, size in enumerate(x.shape)])
    node = record("GluBackward", (x,), (x,), lambda g, x: output("glu_backward", (g, x), x.shape, g.dtype))
    return attach(node, output("glu", (x,), shape, x.dtype))


def gelu(x: Tensor) -> Tensor:
    """GELU, exact or by its tanh approximation, one kernel. Saves x."""
    node = record("GeluBackward", (x,), (x,), lambda g, x: binary("gelu_backward", g, x))
    return attach(node, unary("gelu", x))


def erf(x: Tensor) -> Tensor:
    """The error function of x, which it saves."""
    return attach(record("ErfBackward", (x,), (x,), _erf_backward), unary("erf", x))


def _erf_backward(g: Tensor, x: Tensor) -> Tensor:
    square = unary("pow", x)
    negative = unary("neg", square)
    bell = unary("exp", negative)
    scaled = unary("mul", bell)
    return binary("mul", scaled, g)  # one C++ expression: its temporaries live to its end


def dropout(x: Tensor, p: float) -> Tensor:
    """CUDA's fused dropout in training mode: saves a mask of one byte per element. `p` 0 does nothing."""
    if not p or x.tape.evaluating:
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
    node = record("MeanBackward", (x,), (), lambda g: output("div", (g,), shape, g.dtype))
    return attach(node, output("mean", (x,), (*shape[:-1], 1), x.dtype))


def softmax(x: Tensor, dtype: DType | None = None) -> Tensor:
    """Softmax over the last dimension, computed and returned in `dtype`. Saves its result.

    CUDA converts float16 to float32 within the kernel; bfloat16 is converted before it, in a tensor of its own
    (aten/src/ATen/native/SoftMax.cpp).
    """
    if dtype is None:
        dtype = dtypes.float32 if x.tape.autocast else x.dtype
    source = x.dtype
    fused = source is dtypes.float16 and dtype is dtypes.float32
    converted = x if fused else to(x, dtype)
    node = record(
        "SoftmaxBackward", (converted,), (), lambda g, y: binary("_softmax_backward_data", g, y, source if fused else g.dtype)
    )
    return attach(node, unary("_softmax", converted, dtype), save=True)


def _float32_under_autocast(x: Tensor) -> Tensor:
    return to(x, dtypes.float32) if x.tape.autocast else x
