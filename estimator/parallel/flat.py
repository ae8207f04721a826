"""One flat tensor of FSDP1: the parameters of a layer, gathered before it runs and split again after it.

After torch/distributed/fsdp (2.13): `_flat_param.py` for what is flat and how it is padded, `_runtime_utils.py` for the hooks and
the streams.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from estimator.contract.errors import Contradiction
from estimator.families.modules import Linear
from estimator.families.parameter import Parameter
from estimator.tape.autograd import Gradient, Node, attach, record
from estimator.tape.dtypes import DType
from estimator.tape.tape import COMMUNICATION, GRADIENT, PARAMETER, Storage, Tape
from estimator.tape.tensor import Tensor, alias, empty

if TYPE_CHECKING:
    from estimator.parallel.fsdp1 import Fsdp1

ALIGNMENT = 16
"""Bytes that each parameter's place in the gathered tensor is a multiple of (`_get_aligned_numel`)."""


class Unit:
    """The parameters in one flat tensor: `full` gathered, `shard` what this rank keeps of it, `gradient` that part's gradient.

    `learns`: whether the loss depends on any of it; there is no gradient without.
    """

    def __init__(self, shared: Fsdp1, parameters: list[Parameter], reshard: bool, learns: bool = True):
        self.shared = shared
        self.parameters = parameters
        self.reshard = reshard
        self.slot = shared.tape.slot
        shared.units.append(self)
        tape, dtype, compute = shared.tape, parameters[0].local.dtype, parameters[0].tensor.dtype
        if other := next((p for p in parameters if p.local.dtype is not dtype), None):
            raise Contradiction(
                f"fsdp1 flattens what lies together into one tensor of one type, but {parameters[0].name} is {dtype.name} and "
                f"{other.name} {other.local.dtype.name}: choose one type, or fsdp2",
                "parallelism.strategy",
            )
        self.pieces = _pieces(parameters, shared.world, compute)
        numel = sum(elements for elements, _ in self.pieces)
        part = numel // shared.world
        with tape.counting(PARAMETER):
            self.shard = empty(tape, (part,), dtype, "flat_param")
        self.full = Tensor(
            Storage(tape, numel * compute.itemsize, "flat_param", ((numel,), compute), filled=False), (numel,), compute
        )
        self.frozen = [p for p in parameters if not p.trainable]
        self.full.requires_grad = len(self.frozen) < len(parameters)
        self.full.on_grad = self.after_backward
        self.held: list[Tensor] = []
        self.awaited = True
        """Whether backward comes to what it made, and gathers it for that."""
        self.gradient: Tensor | None = None
        if self.full.requires_grad and learns:
            with tape.counting(GRADIENT), tape.on_stream("post_backward"):
                self.gradient = empty(tape, (part,), dtype, "reduce_scatter")
        self._share_out(part)

    @property
    def trains(self) -> bool:
        """Whether anything of what this rank has is trained."""
        return any(p.trainable and p.local.numel for p in self.parameters)

    def _share_out(self, part: int) -> None:
        """Each parameter's part of the shard, which may be none of it."""
        start = 0
        for elements, p in self.pieces:
            if p is not None:
                p.local = alias(p.local, (max(0, min(elements, part - start)),))
            start += elements

    def gather(self) -> None:
        """All-gather the flat tensor, in the policy's type through a copy of the shard, unless it is gathered."""
        tape, dtype = self.shared.tape, self.full.dtype
        if self.full.storage.index:
            return
        with tape.counting(COMMUNICATION), tape.on_stream("pre_unshard"):
            cast = empty(tape, self.shard.shape, dtype, "_mp_shard") if dtype is not self.shard.dtype else None
        with tape.counting(PARAMETER), tape.on_stream("unshard", late=True):
            self.full.storage.refill("all_gather")
        tape.communicate("all_gather", "data", self.shared.world, self.full.nbytes)
        del cast

    def before_forward(self) -> None:
        """Gather, and make the parameters views of the flat tensor, which autograd follows: those that are frozen, too, if
        anything of it is trained (torch/distributed/fsdp/_flat_param.py, `_get_unflat_views_aligned`). What is frozen beside what
        is trained gets a part of the flat gradient, which nothing reads."""
        self.gather()
        tape, pieces, dtype = self.shared.tape, self.pieces, self.full.dtype

        def backward(*gradients: Tensor | None) -> Tensor:
            each = [empty(tape, (n,), dtype, "zeros") if g is None else g for g, (n, _) in zip(gradients, pieces, strict=True)]
            flat = empty(tape, self.full.shape, dtype, "cat")
            del each
            return flat

        node = record("SplitWithSizesBackward0", (self.full,), (), backward, len(pieces))
        for number, (_, p) in enumerate(pieces):
            if p is not None:
                attach(node, p.tensor).output_nr = number

    def let_go(self) -> None:
        """What is frozen needs no gradient outside of a forward pass."""
        for p in self.frozen:
            p.tensor.requires_grad, p.tensor.grad_fn = False, None

    def watch(self, inputs: list[Any]) -> list[Any]:
        """Where nothing of it is trained: free it when the gradients of all of its inputs have come, in hooks of those, which run
        in the order in which they were made (`_register_post_backward_reshard_only_hook`). The gradients that have come wait for
        the others (torch/autograd/graph.py, `register_multi_grad_hook`): those of a decoder's layers for the encoder's output.
        """
        wanted = [i for i, t in enumerate(inputs) if isinstance(t, Tensor) and t.requires_grad]
        if self.full.requires_grad or not wanted or not self.shared.tape.grad_enabled:
            return inputs
        made = [inputs[i].grad_fn for i in wanted]
        if (len(made) > 1 and any(made)) or (made[0] is not None and made[0].hooks):
            self._await([(node or inputs[i], inputs[i].output_nr) for node, i in zip(made, wanted, strict=True)])
            return inputs

        def passed(*gradients: Tensor) -> list[Tensor]:
            self.full.storage.release()
            return [*gradients]

        node = record("MultiGradHook", [inputs[i] for i in wanted], (), passed, len(wanted))
        if self.shared.around:
            self.held += [inputs[i] for i in wanted if inputs[i].grad_fn is None]
        for number, i in enumerate(wanted):
            inputs[i] = attach(node, alias(inputs[i], inputs[i].shape, inputs[i].strides))
            inputs[i].output_nr = number
        return inputs

    def _await(self, made: list[tuple[Node | Tensor, int]]) -> None:
        """Free it when gradients have come to all that made its inputs, or to leaves; nothing that waits refers to those."""
        waiting: list[Gradient] = []
        several = len(made)

        def come(number: int, gradients: dict[int, Gradient] | None) -> None:
            waiting.append(gradients[number] if gradients else None)
            if len(waiting) < several:
                return
            left = self.shared.tape.enter(self.slot) if several > 1 else self.shared.tape.slot
            self.full.storage.release()
            waiting.clear()
            self.shared.tape.enter(left)

        for node, number in made:
            node.hooks = (*node.hooks, partial(come, number))

    def after_forward(self, out: Tensor) -> None:
        if self.reshard:
            self.full.storage.release()
        self.shared.forward_order.append(self)
        if self.shared.tape.grad_enabled:  # a pass without gradients, as of re-entrant checkpoints, says nothing of it
            self.awaited = out.grad_fn is not None
        if out.grad_fn is not None:
            out.grad_fn.hooks = (*out.grad_fn.hooks, self.before_backward)

    def before_backward(self, _: object = None) -> None:
        """Gather again, and begin to gather the unit that ran before, if it is done ahead and backward comes to it
        (`_needs_pre_backward_unshard`, torch/distributed/fsdp/_runtime_utils.py)."""
        self.gather()
        order = self.shared.forward_order
        at = order.index(self)
        if at > 0 and self.shared.prefetches and order[at - 1].awaited:
            order[at - 1].gather()

    def after_backward(self) -> None:
        """Free the parameters; reduce-scatter the flat gradient, and add it to what there is."""
        tape, gradient = self.shared.tape, self.full.grad
        assert gradient is not None
        self.full.grad = None
        self.full.storage.release()
        reduced = gradient
        with tape.counting(COMMUNICATION), tape.on_stream("post_backward"):
            if (dtype := self.shared.policy.reduction or gradient.dtype) is not gradient.dtype:
                reduced = empty(tape, gradient.shape, dtype, "_to_copy")
        tape.communicate("reduce_scatter", "data", self.shared.world, reduced.nbytes)
        with tape.counting(GRADIENT), tape.on_stream("post_backward"):
            part = empty(tape, self.shard.shape, reduced.dtype, "reduce_scatter")
            if reduced.dtype is not self.shard.dtype:
                part = empty(tape, self.shard.shape, self.shard.dtype, "_to_copy")
        if self.gradient is None:
            self.gradient = part


def whole(tape: Tape, weight: Parameter) -> Linear:
    """A linear layer of a weight that every rank has."""
    with tape.counting(PARAMETER):
        weight.tensor = weight.local = empty(tape, weight.tensor.shape, weight.local.dtype, weight.name)
    weight.tensor.requires_grad = True
    return Linear(weight.tensor, None)


class Leaf(Linear):
    """A linear layer that is a unit. Whoever asks for its weight while it does not run gets this rank's part of it."""

    def __init__(self, unit: Unit, module: Linear):
        super().__init__(unit.parameters[0].local, module.bias)
        self.unit, self.module = unit, module

    def __call__(self, x: Tensor) -> Tensor:
        self.unit.before_forward()
        out = self.module(x)
        self.unit.after_forward(out)
        return out


def _pieces(parameters: list[Parameter], world: int, dtype: DType) -> list[tuple[int, Parameter | None]]:
    """What is flattened, with its elements: the parameters, what aligns each, and what makes the whole divide by the ranks.

    `dtype`: that in which it is gathered.
    """
    pieces: list[tuple[int, Parameter | None]] = []
    total, aligned = 0, ALIGNMENT // dtype.itemsize

    def pad(multiple: int) -> int:
        if total % multiple:
            pieces.append((-total % multiple, None))
        return -(-total // multiple) * multiple

    for p in parameters:
        total = pad(aligned) + p.tensor.numel
        pieces.append((p.tensor.numel, p))
    pad(world)
    return pieces
