"""Pruning by masks, as torch 2.13 does it (torch/nn/utils/prune.py, `BasePruningMethod`).

A pruned layer has its whole weight as a parameter, a mask of the same size and type as a buffer, and their product as an
attribute, which each forward pass makes anew before it lets go of the one before: one of each layer lives between steps, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Training
from estimator.contract.job.adapter import ALL_LINEAR
from estimator.families.build import PEFT_HEADS, Builder
from estimator.families.modules import Conv1D, Linear, Module
from estimator.parallel.strategies import strategy_of
from estimator.tape.pointwise import mul
from estimator.tape.tape import PARAMETER
from estimator.tape.tensor import Tensor, empty
from estimator.training.optimizers.refusals import MATRICES
from estimator.training.targets import Targets

WHERE = "training.pruning"


@dataclass(frozen=True, slots=True)
class Pruning:
    """Puts masks on the linear layers that are targets; `pruned`: their names."""

    targets: Targets
    pruned: list[str] = field(default_factory=list)

    def __call__(self, build: Builder, name: str, module: Module) -> Module:
        """The layer, with a mask if it is a target; `all-linear` leaves the head of a classification out."""
        head = self.targets.names is None and name.partition(".")[0] in PEFT_HEADS
        if head or not self.targets.chooses(name) or not isinstance(module, Linear | Conv1D):
            return module
        if not build.made_here(module.weight):
            raise NotModelled(f"a mask on {name}, whose weight several layers share, is not modelled yet", f"{WHERE}.targets")
        self.pruned.append(name)
        return _Masked(build, name, module)


class _Masked:
    """A layer whose weight is a product (`BasePruningMethod.__call__`)."""

    def __init__(self, build: Builder, name: str, base: Linear | Conv1D):
        self.base, self.whole = base, base.weight
        build.register_last(self.whole)  # as `weight_orig`, which optimizers step after the layer's bias
        self.mask = build.buffer(name + ".weight_mask", self.whole.shape, self.whole.dtype)
        with build.tape.counting(PARAMETER):
            base.weight = empty(build.tape, self.whole.shape, self.whole.dtype, "mul")

    def __call__(self, x: Tensor) -> Tensor:
        self.base.weight = mul(self.mask, self.whole)
        return self.base(x)


def masks(training: Training) -> Callable[[Builder, str, Module], Module]:
    """What puts masks on the layers that a job names."""
    asked = training.pruning
    if asked is None:
        return lambda build, name, module: module
    named = asked.targets if isinstance(asked.targets, str) else tuple(asked.targets)
    return Pruning(Targets(None if named == ALL_LINEAR else named))


def refuse(job: Job) -> None:
    """Raise for what goes not together with masks."""
    training, strategy = job.training, strategy_of(job)
    if training.pruning is None:
        return
    if training.adapter or training.quantization:
        raise NotModelled("masks beside an adapter or quantized weights are not modelled yet", WHERE)
    if training.objective:
        raise NotModelled(f"masks beside {training.objective.type} are not modelled yet", WHERE)
    if not strategy.alone:
        raise NotModelled(f"masks are not modelled under {strategy} yet; they are on one GPU", WHERE)
    if training.implementation != "transformers":
        raise NotModelled(f"masks are not modelled with {training.implementation} yet; transformers is", WHERE)
    if training.optimizer in MATRICES:
        raise NotModelled(f"{training.optimizer} of weights under masks is not modelled yet; use adamw", "training.optimizer")


def check(build: Builder, found: Pruning) -> None:
    """Raise `InvalidJob` where nothing was found to be pruned, or a layer whose weight the model uses without calling it: the
    product is then never made anew, and torch's second backward pass fails."""
    for name in (n for n in build.bypassed if found.targets.chooses(n) and n not in found.pruned):
        layer = name.rpartition(".")[2]
        raise NotModelled(f"the weight of {layer} is used without its layer: no mask on it; name others", WHERE + ".targets")
    if not found.pruned:
        known = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in build.linears))
        raise Contradiction(f"no linear layer has such a name; this model has {known}", WHERE + ".targets")
