"""Transformer Engine's linear layers with products in fp8: what they save, and what backward makes of it.

An input is quantized when it comes; what backward does not read of it goes with the layer. Results and gradients of inputs
are in half precision. After release 2.11, pytorch/module/layernorm_linear.py, linear.py, base.py (`grad_output_preprocess`) and
grouped_linear.py.
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.megatron.fp8 import Codes, Fp8, Operand
from estimator.megatron.linear import Norm, Split, statistics
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.collectives import BULK, PIPELINED, RING
from estimator.tape.tensor import Tensor, output, unary


class Fp8Linear:
    """A linear layer whose outputs ranks share, after a norm or without; or, with `rows`, whose inputs they share.

    Saves the codes of its input, and the norm's input. `original`: its input as it came, which is quantized again in backward
    (`set_save_original_input`).
    """

    def __init__(
        self,
        fp8: Fp8,
        build: Builder,
        weight: Tensor,
        bias: Tensor | None,
        split: Split,
        gain: Norm | None = None,
        rows: bool = False,
        original: bool = False,
    ):
        self.fp8, self.weight, self.split, self.gain = fp8, weight, split, gain
        self.codes, self.remembered = fp8.weight(build, weight)
        self.parameters = [t for t in ((gain.weight, gain.bias, bias) if gain else (bias,)) if t is not None]
        self.rows, self.original = rows, original
        self.gathers = split.sequence and not rows

    def __call__(self, x: Tensor) -> Tensor:
        fp8, weight, split, rows, gathers = self.fp8, self.weight, self.split, self.rows, self.gathers
        outputs, inputs = weight.shape
        first = 1 if self.gain or self.original else 0

        def backward(g: Tensor, *saved: Tensor) -> list[Gradient]:
            gradient = self._gradient(g)
            codes: Codes = saved[first : first + 2]
            if self.original:
                again = fp8.operand(saved[0], fp8.whole, not (fp8.whole and gathers))
                codes = fp8.saved(again, gathers)
            total = fp8.saved(fp8.gathered(codes, split, fp8.whole, not fp8.whole, BULK), True) if gathers else codes
            shape = (g.shape[0] * split.group.size if rows and split.sequence else g.shape[0], *g.shape[1:-1], inputs)
            whole = fp8.product(g, shape, outputs, gradient.rows, self.codes.columns)
            partly = whole if rows else split.reduced(whole, BULK)
            turned = fp8.turned(total) if gathers else ()
            fp8.accumulated(weight, whole.numel // inputs, gradient.columns, total)
            if gathers or not self.original:
                total[0].storage.release()
            if not self.original:
                codes[0].storage.release()
            if rows and split.sequence:
                _release(gradient)
            del turned
            if self.gain:
                to_input = output("norm_backward", (partly, saved[0]), partly.shape, partly.dtype)
                return [to_input, None, *[unary("norm_backward", t) for t in self.parameters]]
            return [partly, None, *[unary("sum", t) for t in self.parameters]]

        node = record("LayerNormLinear" if self.gain else "Linear", (x, weight, *self.parameters), (x,)[:first], backward)
        kept = statistics(x, self.gain.bias) if self.gain else []
        columns = node is not None and not self.original and not (fp8.whole and gathers)
        operand = fp8.operand(x, True, columns)
        if self.gain and fp8.recipe != "delayed":
            unary(
                "norm", x
            )  # only a scale that is known is multiplied by in the norm's own kernel (normalization.cpp, `rmsnorm_fwd`)
        total = fp8.gathered(operand.rows, split, True, False, RING).rows if gathers else operand.rows
        tokens = x.shape[0] * split.group.size if gathers else x.shape[0]
        whole = fp8.product(x, (tokens, *x.shape[1:-1], outputs), inputs, total, self.codes.rows)
        del total
        if node is not None:
            node.save((*(() if self.original else fp8.saved(operand, gathers)), *kept))
        return attach(node, split.reduced(whole, PIPELINED) if rows else whole)

    def _gradient(self, g: Tensor) -> Operand:
        """The gradient of the output both ways, of all tokens."""
        fp8, split = self.fp8, self.split
        if not (self.rows and split.sequence):
            return fp8.operand(g, True, True)
        mine = fp8.operand(g, True, not fp8.whole)
        return fp8.gathered(mine.rows, split, True, True, RING)


class Fp8Grouped:
    """Each expert's rows through its weight (`GroupedLinear`): as many rows for each, quantized by themselves."""

    def __init__(self, fp8: Fp8, build: Builder, weights: Tensor, original: bool):
        self.fp8, self.weights, self.original = fp8, weights, original
        self.codes, self.remembered = fp8.weight(build, weights)

    def __call__(self, x: Tensor) -> Tensor:
        fp8, weights, original = self.fp8, self.weights, self.original
        experts, outputs, inputs = weights.shape

        def backward(g: Tensor, *saved: Tensor) -> tuple[Gradient, Gradient]:
            gradient = fp8.operand(g, True, True, experts)
            to_input = fp8.product(g, (g.shape[0], inputs), outputs, gradient.rows, self.codes.columns, parts=experts)
            codes = fp8.operand(saved[0], fp8.whole, True, experts).columns if original else saved
            fp8.accumulated(weights, g.shape[0], gradient.columns, codes)
            codes[0].storage.release()
            return to_input, None

        node = record("GroupedLinear", (x, weights), (x,) if original else (), backward)
        operand = fp8.operand(x, True, node is not None and not original, experts)
        out = fp8.product(x, (x.shape[0], outputs), inputs, operand.rows, self.codes.rows, parts=experts)
        if node is not None and not original:
            node.save(operand.columns)
        return attach(node, out)


def _release(operand: Operand) -> None:
    """What a function made for itself goes before it returns (`clear_tensor_data`)."""
    for codes in (*operand.rows[:1], *operand.columns[:1]):
        codes.storage.release()
