"""Which of a model's own parameters are trained: the others are frozen, `requires_grad_(False)`.

Nothing else is said here. Where backward stops, and what a frozen module does not keep, follows from autograd's own rules.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Training
from estimator.contract.job.trainable import Trainable, numbers
from estimator.families import parameters
from estimator.families.build import Builder
from estimator.families.spec import ModelSpec
from estimator.parallel.strategies import strategy_of
from estimator.tape.slots import Slot
from estimator.training import badam

WHERE = "training.trainable"


@dataclass(frozen=True, slots=True)
class Part:
    """`layers`: those of which something is trained, or None for each. `names`: what of them, or None for all; without `layers`
    also of what lies outside the layers. `outside`: whether all of that is trained."""

    layers: frozenset[int] | None
    names: tuple[str, ...] | None
    outside: bool
    remembers: bool = False
    """Whether the optimizer has states of all parameters: those that are frozen now were trained before."""

    def chosen(self, layer: int) -> bool:
        """Whether something of a layer is trained."""
        return layer in self.layers if self.layers is not None else self.names is not None

    def trains(self, name: str, chosen: bool | None) -> bool:
        """Whether the parameter of that name is trained, in a layer that is `chosen` or not, or (None) outside the layers."""
        if chosen is None:
            return self.outside or (self.layers is None and self.names is not None and self._named(name))
        return chosen and (self.names is None or self._named(name))

    def _named(self, name: str) -> bool:
        return any(names(part, name) for part in self.names or ())


def names(part: str, name: str) -> bool:
    """Whether a part of a name, from dot to dot, occurs in it."""
    return f".{part}." in f".{name}."


def part(training: Training, spec: ModelSpec) -> Part | None:
    """What a job trains of its model; None for all of it. Raises `InvalidJob` for layers that the model does not have."""
    asked = training.trainable
    if asked == "all":
        return None
    if not isinstance(asked, Trainable):
        return Part(None, (asked,), outside=False)
    layers = _layers(asked, spec.depth)
    if layers is not None and not layers <= {*range(spec.depth)}:
        has = f"the model has {spec.depth} layers, 0 to {spec.depth - 1}"
        raise Contradiction(f"{has}: no layers {asked.layers}" if asked.layers else f"{has}: not {asked.last}", WHERE)
    rotates = asked.lisa is not None
    names = tuple(asked.names) if asked.names else None
    return Part(layers, names, asked.outside or rotates, rotates and asked.states == "kept")


def _layers(asked: Trainable, depth: int) -> frozenset[int] | None:
    """The layers that are named, where some are."""
    if asked.layers is not None:
        return frozenset(numbers(asked.layers))
    return None if asked.last is None else frozenset(range(depth - asked.last, depth))


def variants(job: Job, spec: ModelSpec) -> list[Job]:
    """The job with those layers trained of which one choice is the worst, where LISA draws them at random, or BAdam takes turns.

    At any moment of backward so many layers are done, and so many of the trained ones among them. Each adds its gradients, and
    takes off what it had kept beyond what a frozen layer keeps: live bytes are linear in that number, and so highest where it
    is the greatest or the least that there can be. The last layers give the one, the first the other.
    """
    asked, depth = job.training.trainable, spec.depth
    if not isinstance(asked, Trainable) or asked.layers is not None:
        return [job]
    alone = asked.badam and not (asked.last or asked.names or asked.outside)
    if asked.lisa is None and not alone:
        return [job]
    count = asked.lisa or 1
    if count > depth:
        raise Contradiction(f"the model has {depth} layers: not {count}", WHERE)
    if not _alike(spec):
        said = "layers of several sizes, trained in turn, are not modelled yet; write those of the largest turn (layers: a-b)"
        raise NotModelled(said, WHERE)
    ends = f"{depth - count}-{depth - 1}", f"0-{count - 1}"
    parts = [asked.model_copy(update={"layers": layers, "outside": not alone}) for layers in ends]
    return [job.model_copy(update={"training": job.training.model_copy(update={"trainable": part})}) for part in parts]


def _alike(spec: ModelSpec) -> bool:
    """Whether all layers have as many parameters, so that the first or the last of them is the worst to train."""
    sizes: Counter[Slot] = Counter()
    for p in parameters(spec):
        if p.slot is not None:
            sizes[p.slot] += p.count
    return len(set(sizes.values())) == 1


def refuse(job: Job) -> None:
    """Raise for what goes not together with training a part."""
    training, strategy = job.training, strategy_of(job)
    if training.trainable == "all":
        return
    if training.adapter:
        raise Contradiction("an adapter freezes the model's own parameters: leave trainable out, or the adapter", WHERE)
    asked = training.trainable
    if isinstance(asked, Trainable) and (asked.lisa or asked.badam) and not strategy.alone:
        raise NotModelled(f"layers that are trained in turn are not modelled under {strategy} yet", WHERE)
    if isinstance(asked, Trainable) and asked.badam:
        badam.refuse(job)
    if "partly_trained" not in strategy.models:
        raise NotModelled(f"training a part of the model is not modelled under {strategy} yet; fsdp2 and ddp are", WHERE)
    if training.implementation != "transformers":
        raise NotModelled(f"frozen parts are not modelled with {training.implementation} yet; transformers is", WHERE)


def check(build: Builder, trained: Part) -> None:
    """Raise `InvalidJob` where a part of a name occurs in none, or nothing is left to train."""
    for name in trained.names or ():
        if not any(names(name, p.path) for p in build.parameters):
            raise Contradiction(f"no parameter has {name} in its name, from dot to dot; this model has {_known(build)}", WHERE)
    if not any(p.trainable for p in build.parameters):
        raise Contradiction("no parameter of those layers has such a name: nothing would be trained", WHERE)


def _known(build: Builder) -> str:
    """Names without what most end with."""
    return ", ".join(dict.fromkeys(p.name.removesuffix(".weight").removesuffix(".bias") for p in build.parameters))
