"""Transformer Engine's linear layers, and Megatron-Core's own for the output, in half precision.

Hidden states are [tokens, sequences, width]; with sequence parallelism a rank holds its part of the tokens, and gathers the
others' where a product needs all. A weight's gradient is added to its `main_grad` by the product itself
(`gradient_accumulation_fusion`): autograd gets a dummy, one per shape, that lives on (`get_dummy_wgrad`).

After transformer_engine/pytorch/module/layernorm_linear.py and linear.py of release 2.11, and Megatron-Core 0.15's
core/tensor_parallel/layers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod

from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, keep, record
from estimator.tape.collectives import BULK, PIPELINED, RING, Group, all_gather, all_reduce, reduce_scatter
from estimator.tape.layout import Shape
from estimator.tape.slots import Slot
from estimator.tape.tape import GROUPED, Tape
from estimator.tape.tensor import Tensor, empty, output, unary


class Later:
    """Weights' gradients that are put off while it is `on` (module/_common.py, `WeightGradStore`): what a product multiplies for
    one, its input and its result's gradient as the other product of its backward pass had them, lives until then."""

    def __init__(self) -> None:
        self.on = False
        self.products: list[tuple[Slot | None, Callable[[], None], tuple[Tensor, Tensor]]] = []

    def put(self, product: Callable[[], None], x: Tensor, gradient: Tensor) -> None:
        """Keep both until the product runs."""
        keep(x)
        keep(gradient)
        self.products.append((x.tape.slot, product, (x.detach(), gradient.detach())))

    def taken(self) -> Later:
        """What was put off until now, apart."""
        of_one = Later()
        of_one.products, self.products = self.products, []
        return of_one

    def run(self, tape: Tape) -> None:
        """The products, in the order in which they were put off."""
        here = tape.slot
        while self.products:
            slot, product, operands = self.products.pop(0)
            tape.enter(slot)
            product()
            del operands
        tape.enter(here)


@dataclass(frozen=True, slots=True)
class Split:
    """How tensor-parallel ranks share a layer; `sequence`: between layers each holds a part of the tokens. `later`: where this
    rank puts weights' gradients off."""

    group: Group
    sequence: bool
    later: Later = field(default_factory=Later, compare=False)

    def gathered(self, x: Tensor, beside: str = "") -> Tensor:
        """All tokens; how userbuffers hide it `beside` the next product."""
        return all_gather(x, self.group, beside) if self.sequence else x

    def reduced(self, x: Tensor, beside: str = "") -> Tensor:
        """The sum over ranks, of this rank's tokens; how userbuffers hide it `beside` a product."""
        return reduce_scatter(x, self.group, beside) if self.sequence else all_reduce(x, self.group)


def norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """RMSNorm, or with a bias LayerNorm: the result, and what it keeps per row."""
    out = unary("norm", x)
    return out, statistics(x, bias)


def statistics(x: Tensor, bias: Tensor | None) -> list[Tensor]:
    """What a norm keeps per row."""
    rows = (prod(x.shape[:-1]),)
    return [empty(x.tape, rows, dtypes.float32, "norm") for _ in range(1 if bias is None else 2)]


class Norm:
    """A norm by itself (`TENorm`). Saves its input and what it keeps per row."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        parameters = [t for t in (self.weight, self.bias) if t is not None]

        def backward(g: Tensor, x: Tensor, *_: Tensor) -> list[Gradient]:
            return [output("norm_backward", (g, x), x.shape, x.dtype), *[unary("norm_backward", t) for t in parameters]]

        node = record("TENorm", (x, *parameters), (x,), backward)
        out, kept = norm(x, self.weight, self.bias)
        if node is not None:
            node.save(tuple(kept))
        return attach(node, out)


class NormLinear:
    """A norm and a linear layer whose outputs ranks share (`TELayerNormColumnParallelLinear`).

    Saves the input and the normalised input, of this rank's tokens; backward gathers the latter again.
    """

    def __init__(self, gain: Norm, weight: Tensor, bias: Tensor | None, split: Split):
        self.gain, self.weight, self.bias, self.split = gain, weight, bias, split

    def __call__(self, x: Tensor) -> Tensor:
        weight, split, gain = self.weight, self.split, self.gain
        parameters = [t for t in (gain.weight, gain.bias, self.bias) if t is not None]

        def backward(g: Tensor, x: Tensor, normed: Tensor, *_: Tensor) -> list[Gradient]:
            total = split.gathered(normed, BULK)
            whole = multiplied(g, (*total.shape[:-1], weight.shape[1]), weight.shape[0])
            partly = split.reduced(whole, BULK)
            if not accumulated(weight, total, g, split.later):
                normed.storage.release()
                total.storage.release()
            gradient = output("norm_backward", (partly, x), partly.shape, partly.dtype)
            return [gradient, None, *[unary("norm_backward", t) for t in parameters]]

        normed, kept = norm(x, gain.weight, gain.bias)
        node = record("LayerNormLinear", (x, weight, *parameters), (x, normed, *kept), backward)
        total = split.gathered(normed, RING)
        return attach(node, multiplied(total, (*total.shape[:-1], weight.shape[0]), weight.shape[1]))


class ColumnLinear:
    """A linear layer whose outputs ranks share, without a norm (`TEColumnParallelLinear`). Saves its input."""

    def __init__(self, weight: Tensor, bias: Tensor | None, split: Split):
        self.weight, self.bias, self.split = weight, bias, split

    def __call__(self, x: Tensor) -> Tensor:
        weight, split = self.weight, self.split
        biases = [] if self.bias is None else [self.bias]

        def backward(g: Tensor, x: Tensor) -> list[Gradient]:
            total = split.gathered(x, BULK)
            whole = multiplied(g, (*total.shape[:-1], weight.shape[1]), weight.shape[0])
            gradient = split.reduced(whole, BULK)
            accumulated(weight, total, g, split.later)
            return [gradient, None, *[unary("sum", t) for t in biases]]

        node = record("Linear", (x, weight, *biases), (x,), backward)
        total = split.gathered(x, RING)
        return attach(node, multiplied(total, (*total.shape[:-1], weight.shape[0]), weight.shape[1]))


class RowLinear:
    """A linear layer whose inputs ranks share (`TERowParallelLinear`). Saves its input."""

    def __init__(self, weight: Tensor, bias: Tensor | None, split: Split):
        self.weight, self.bias, self.split = weight, bias, split

    def __call__(self, x: Tensor) -> Tensor:
        weight, split = self.weight, self.split

        def backward(g: Tensor, x: Tensor) -> list[Gradient]:
            total = split.gathered(g, RING)
            gradient = multiplied(total, x.shape, weight.shape[0])
            accumulated(weight, x, total, split.later)
            return [gradient, None]

        node = record("Linear", (x, weight), (x,), backward)
        whole = multiplied(x, (*x.shape[:-1], weight.shape[0]), weight.shape[1])
        return attach(node, split.reduced(whole, PIPELINED))


def grouped(x: Tensor, weights: Tensor, later: Later) -> Tensor:
    """Each expert's rows through its weight (Transformer Engine's `GroupedLinear`). Saves its input, and lets go of it when the
    weights' gradients are added up."""
    experts, outputs, inputs = weights.shape
    rows = x.shape[0] // experts

    def backward(g: Tensor, x: Tensor) -> tuple[Gradient, Gradient]:
        gradient = empty(g.tape, x.shape, g.dtype, "grouped_gemm")
        g.tape.multiply(rows, inputs, outputs, g.dtype, experts, GROUPED)
        if not accumulated(weights, x, g, later):
            x.storage.release()
        return gradient, None

    node = record("GroupedLinear", (x, weights), (x,), backward)
    x.tape.multiply(rows, outputs, inputs, x.dtype, experts, GROUPED)
    assert inputs == x.shape[1]
    return attach(node, empty(x.tape, (x.shape[0], outputs), x.dtype, "grouped_gemm"))


class OutputLayer:
    """Megatron-Core's own column-parallel layer, for logits: all tokens are gathered in one buffer that lives on.

    core/tensor_parallel/layers.py, `LinearWithGradAccumulationAndAsyncCommunication` and `get_global_memory_buffer`.
    """

    def __init__(self, weight: Tensor, split: Split):
        self.weight, self.split = weight, split

    def __call__(self, x: Tensor) -> Tensor:
        weight, split = self.weight, self.split
        if not weight.requires_grad:
            return self._frozen(x)
        whole = (x.shape[0] * split.group.size if split.sequence else x.shape[0], *x.shape[1:])

        def gather(like: Tensor) -> None:
            if split.sequence:
                like.tape.communicate("all_gather", split.group.name, split.group.size, prod(whole) * like.dtype.itemsize)

        def backward(g: Tensor, x: Tensor) -> tuple[Gradient, Gradient]:
            gather(x)
            gradient = multiplied(g, whole, weight.shape[0])
            accumulated(weight, x, g, None)
            return split.reduced(gradient), None

        node = record("OutputLayer", (x, weight), (x,), backward)
        gather(x)
        return attach(node, multiplied(x, (*whole[:-1], weight.shape[0]), weight.shape[1]))

    def _frozen(self, x: Tensor) -> Tensor:
        """With a weight that is frozen nothing is saved, and what is gathered is a tensor of its own
        (`linear_with_frozen_weight`)."""
        weight, split = self.weight, self.split
        total = split.gathered(x)
        shape = total.shape

        def backward(g: Tensor) -> Gradient:
            return split.reduced(multiplied(g, shape, weight.shape[0]))

        node = record("OutputLayer", (x,), (), backward)
        return attach(node, multiplied(total, (*shape[:-1], weight.shape[0]), weight.shape[1]))


def multiplied(x: Tensor, shape: Shape, inner: int) -> Tensor:
    """A matrix product of this shape, over so many numbers."""
    x.tape.multiply(prod(shape[:-1]), shape[-1], inner, x.dtype)
    return empty(x.tape, shape, x.dtype, "gemm")


def accumulated(weight: Tensor, x: Tensor, gradient: Tensor, later: Later | None) -> bool:
    """A weight's gradient, or one for each expert, added to `main_grad` by the product: now, or `later`, if it is on.

    Says whether it was put off. `later` is None where no schedule puts it off.
    """
    *experts, outputs, inputs = weight.shape
    count, kind = prod(experts), GROUPED if experts else "mm"
    rows = prod(gradient.shape[:-1]) // count
    product = partial(weight.tape.multiply, outputs, inputs, rows, gradient.dtype, count, kind, 8, later is not None)
    if later is not None and later.on:
        later.put(product, x, gradient)
        return True
    product()
    if weight.on_grad is not None:
        weight.on_grad()
    return False
