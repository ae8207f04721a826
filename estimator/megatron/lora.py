"""LoRA beside Transformer Engine's linear layers, whose own weights are frozen.

modelscope/mcore-bridge (f020e47, 1.5), tuners/lora.py, `LoraParallelLinear`: of a layer whose outputs ranks share A is whole on
every rank and B is shared like the layer; of one whose inputs they share A is, and B is whole. A reads what the layer reads,
behind a dropout; of a layer with a norm, what the norm gave (`return_layernorm_output`). Adapters are in the model's type
(`Float16Module` comes after them) and have float32 copies, as all that Megatron-Core trains. Transformer Engine keeps no input of
a layer whose weight is frozen (module/layernorm_linear.py, linear.py and grouped_linear.py of release 2.11).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.megatron.config import Config
from estimator.megatron.linear import ColumnLinear, Later, Norm, RowLinear, Split, grouped, multiplied, norm
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.collectives import Group
from estimator.tape.pointwise import add, dropout, mul_scalar
from estimator.tape.tape import GROUPED
from estimator.tape.tensor import Tensor, empty, output


def trained(config: Config, rank: int) -> tuple[int, int]:
    """Parameters of the adapters of the whole model, and how many of them a token uses."""
    heads = config.head_dim * (config.heads + 2 * config.groups), config.head_dim * config.heads
    attention = (config.hidden + heads[0]) + (heads[1] + config.hidden)

    def mlp(width: int) -> int:
        return (config.hidden + 2 * width) + (width + config.hidden)

    total = active = 0
    for sparse in config.sparse:
        mixture = config.mixture if sparse else None
        each = mlp(config.width) if mixture is None else mlp(mixture.width)
        shared = mlp(mixture.shared) if mixture is not None and mixture.shared else 0
        experts, used = (mixture.experts, mixture.per_token) if mixture is not None else (1, 1)
        total += attention + experts * each + shared
        active += attention + used * each + shared
    return rank * total, rank * active


ALONE = Split(Group("tensor"), False)
"""For matrices that are whole on every rank: of this rank's tokens."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """LoRA of this rank on every linear layer of the layers. As a part of a `Builder` it freezes everything else."""

    rank: int
    dropped: float

    layers = None
    remembers = False

    def chosen(self, layer: int) -> bool:
        """Every layer has adapters."""
        return True

    def trains(self, name: str, chosen: bool | None) -> bool:
        """Whether a parameter is an adapter's."""
        return ".lora_" in name

    def norm_linear(self, build: Builder, name: str, gain: Norm, weight: Tensor, split: Split) -> Module:
        """Beside a norm and a layer whose outputs ranks share."""
        base, pair = FrozenNormLinear(gain, weight, split), self._shared_outputs(build, name, weight, split)

        def run(x: Tensor) -> Tensor:
            out, x = base(x)
            return self._added(out, x, *pair)

        return run

    def column(self, build: Builder, name: str, weight: Tensor, split: Split) -> Module:
        """Beside a layer whose outputs ranks share."""
        base, pair = FrozenColumn(weight, split), self._shared_outputs(build, name, weight, split)
        return lambda x: self._added(base(x), x, *pair)

    def row(self, build: Builder, name: str, weight: Tensor, split: Split) -> Module:
        """Beside a layer whose inputs ranks share."""
        outputs, inputs = weight.shape
        base = FrozenRow(weight, split)
        a = RowLinear(build.parameter(f"{name}.lora_A.weight", (self.rank, inputs)), None, split)
        b = ColumnLinear(build.parameter(f"{name}.lora_B.weight", (outputs, self.rank)), None, ALONE)
        return lambda x: self._added(base(x), x, a, b)

    def grouped(self, build: Builder, name: str, weights: Tensor, later: Later) -> Callable[[Tensor], Tensor]:
        """Beside experts' products, an adapter for each expert."""
        experts, outputs, inputs = weights.shape
        base = next(p for p in build.parameters if p.tensor is weights)

        def made(part: str, *shape: int) -> Tensor:
            used = prod(shape) * base.active // base.count
            return build.parameter(f"{name}.{part}.weight", shape, active=used)

        first = made("lora_A", experts, self.rank, inputs)
        second = made("lora_B", experts, outputs, self.rank)

        def run(x: Tensor) -> Tensor:
            out = frozen_grouped(x, weights)
            return self._added(
                out, x, partial(grouped, weights=first, later=later), partial(grouped, weights=second, later=later)
            )

        return run

    def _shared_outputs(self, build: Builder, name: str, weight: Tensor, split: Split) -> tuple[Module, Module]:
        outputs, inputs = weight.shape
        a = ColumnLinear(build.parameter(f"{name}.lora_A.weight", (self.rank, inputs)), None, ALONE)
        return a, ColumnLinear(build.parameter(f"{name}.lora_B.weight", (outputs, self.rank)), None, split)

    def _added(self, out: Tensor, x: Tensor, a: Module, b: Module) -> Tensor:
        low = a(dropout(x, self.dropped))
        low = b(low)
        low = mul_scalar(low)
        return add(out, low)


class FrozenNormLinear:
    """A norm and a layer whose outputs ranks share; gives what the norm gave, too, of this rank's tokens. Saves its input."""

    def __init__(self, gain: Norm, weight: Tensor, split: Split):
        self.gain, self.weight, self.split = gain, weight, split

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight, split = self.weight, self.split

        def backward(g: Gradient, of_normed: Gradient, x: Tensor, *_: Tensor) -> list[Gradient]:
            assert g is not None
            whole = multiplied(g, (*g.shape[:-1], weight.shape[1]), weight.shape[0])
            partly = split.reduced(whole)
            del whole
            if of_normed is not None:
                partly = output("add", (partly, of_normed), partly.shape, partly.dtype)
            return [output("norm_backward", (partly, x), x.shape, x.dtype)]

        normed, kept = norm(x, self.gain.weight, self.gain.bias)
        node = record("LayerNormLinear", (x,), (x, *kept), backward, outputs=2)
        total = split.gathered(normed)
        out = attach(node, multiplied(total, (*total.shape[:-1], weight.shape[0]), weight.shape[1]))
        normed = attach(node, normed)
        normed.output_nr = 1
        return out, normed


class FrozenColumn:
    """A layer whose outputs ranks share. Saves nothing."""

    def __init__(self, weight: Tensor, split: Split):
        self.weight, self.split = weight, split

    def __call__(self, x: Tensor) -> Tensor:
        weight, split = self.weight, self.split

        def backward(g: Tensor) -> Gradient:
            return split.reduced(multiplied(g, (*g.shape[:-1], weight.shape[1]), weight.shape[0]))

        node = record("Linear", (x,), (), backward)
        total = split.gathered(x)
        return attach(node, multiplied(total, (*total.shape[:-1], weight.shape[0]), weight.shape[1]))


class FrozenRow:
    """A layer whose inputs ranks share. Saves nothing."""

    def __init__(self, weight: Tensor, split: Split):
        self.weight, self.split = weight, split

    def __call__(self, x: Tensor) -> Tensor:
        weight, split, shape = self.weight, self.split, x.shape

        def backward(g: Tensor) -> Gradient:
            return multiplied(split.gathered(g), shape, weight.shape[0])

        node = record("Linear", (x,), (), backward)
        return attach(node, split.reduced(multiplied(x, (*shape[:-1], weight.shape[0]), weight.shape[1])))


def frozen_grouped(x: Tensor, weights: Tensor) -> Tensor:
    """Each expert's rows through its weight. Saves nothing."""
    (experts, outputs, inputs), shape = weights.shape, x.shape
    rows = prod(shape[:-1]) // experts

    def backward(g: Tensor) -> Gradient:
        gradient = empty(g.tape, shape, g.dtype, "grouped_gemm")
        g.tape.multiply(rows, inputs, outputs, g.dtype, experts, GROUPED)
        return gradient

    node = record("GroupedLinear", (x,), (), backward)
    x.tape.multiply(rows, outputs, inputs, x.dtype, experts, GROUPED)
    return attach(node, empty(x.tape, (shape[0], outputs), x.dtype, "grouped_gemm"))
