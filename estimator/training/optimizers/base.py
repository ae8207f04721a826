"""What all optimizers have in common: what they keep per parameter, and how their temporaries live during a step.

A step's events depend only on the parameters' shapes, so it is simulated on the tape directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from estimator.families.multi_tensor import Lists
from estimator.families.parameter import Parameter
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.slots import Slot
from estimator.tape.tape import OPTIMIZER_STATE, Form, Storage, Tape
from estimator.tape.tensor import Tensor, empty

State = list[Tensor]
Step = Callable[[Tape, list[Parameter]], None]
Kept = Callable[[Parameter], list[Form]]
"""What is kept for a parameter on the GPU, as shapes and types."""

SCALAR: Form = ((), dtypes.float32)


@dataclass(frozen=True, slots=True)
class Optimizer:
    """`kept` for each parameter; `shared` by all that one object updates; `paged`: bytes in managed memory."""

    name: str
    kept: Kept
    step: Step
    shared: Callable[[list[Parameter]], list[Form]] = lambda parameters: []
    paged: Callable[[Parameter], int] = lambda parameter: 0
    first: bool = False
    """Whether states are made with the optimizer, of parameters that never get a gradient, too."""
    remark: str = ""
    """What a caller should know of it."""

    def states(self, tape: Tape, parameters: Iterable[Parameter], alone: bool = False) -> list[State]:
        """Allocate what is kept between steps, where the parameters lie. `alone`: each has an optimizer object of its own."""
        every = list(parameters)
        tape.remarks |= dict.fromkeys(self._remarks(every))
        with tape.counting(OPTIMIZER_STATE):
            states = [] if alone else [self._allocate(tape, self.shared(every))]
            for parameter in every:
                tape.enter(parameter.slot)
                own = self.shared([parameter]) if alone else []
                states.append(self._allocate(parameter.local.tape, [*own, *self.kept(parameter)]))
            tape.enter(None)
        return states

    def _remarks(self, parameters: list[Parameter]) -> Iterator[str]:
        if self.remark:
            yield self.remark
        if paged := sum(self.paged(p) * p.times for p in parameters):
            yield (
                f"{paged / 10**9:.2f} GB of paged optimizer states lie in CUDA's managed memory, which is not in these bytes: "
                "on the GPU as far as there is room, else on the host"
            )

    def _allocate(self, tape: Tape, forms: list[Form]) -> State:
        return [empty(tape, shape, dtype, self.name) for shape, dtype in forms]


def alike(count: int, counter: bool = False) -> Kept:
    """So many tensors of the parameter's size and type; `counter`: and a count of the steps on the GPU."""

    def kept(parameter: Parameter) -> list[Form]:
        local = parameter.local
        return [(local.shape, local.dtype)] * count + [SCALAR] * counter

    return kept


def in_place(tape: Tape, parameters: list[Parameter]) -> None:
    """Everything is updated in place: fused kernels, and SGD in every implementation."""


def like(parameter: Parameter, operation: str, dtype: DType | None = None) -> Tensor:
    """A temporary of a parameter's size, and of its type unless another is given."""
    return empty(parameter.local.tape, parameter.local.shape, dtype or parameter.local.dtype, operation)


def by_type(parameters: list[Parameter]) -> Iterator[list[Parameter]]:
    """The groups that multi-tensor steps work on, one after the other."""
    for _, group in groupby(sorted(parameters, key=_dtype_name), key=_dtype_name):
        yield list(group)


def neighbours(parameters: list[Parameter]) -> Iterator[Parameter]:
    """All parameters in order, of what is folded the first two: then every two that follow each other in the model do so here."""
    for outer, inside in groupby(parameters, key=lambda p: p.slot and (p.slot.parent or p.slot)):
        members: list[Parameter] = []
        for slot, same in groupby(inside, key=lambda p: p.slot):
            members += [*same] * (min(2, slot.repeat) if slot else 1)
        yield from members * (min(2, outer.repeat) if outer is not None and outer is not members[-1].slot else 1)


def multi_tensor(*operations: str) -> Step:
    """A step that makes a list per operation for each type of parameters, all kept until the next type's are there."""

    def step(tape: Tape, parameters: list[Parameter]) -> None:
        lists = Lists(tape)
        held: list[list[tuple[Slot | None, Tensor]]] = [[] for _ in operations]
        for group in by_type(parameters):
            for i, operation in enumerate(operations):
                made = lists.new(operation, group)
                lists.free(held[i])
                held[i] = made
        for last in held:
            lists.free(last)

    return step


def flattened(step: Step) -> Step:
    """The step over one flat tensor of this rank's parts of all parameters, which is what DeepSpeed gives an optimizer
    (runtime/zero/stage_1_and_2.py, `single_partition_of_fp32_groups`; stage3.py, `fp32_partitioned_groups_flat`)."""

    def flat(tape: Tape, parameters: list[Parameter]) -> None:
        if not parameters:
            return
        first = parameters[0]
        elements = sum(p.local.numel * p.times for p in parameters)
        local = Tensor(Storage(first.local.tape, 0, "partition", filled=False), (elements,), first.local.dtype)
        step(tape, [replace(first, name="partition", local=local, slot=None)])

    return flat


def _dtype_name(parameter: Parameter) -> str:
    return parameter.local.dtype.name
