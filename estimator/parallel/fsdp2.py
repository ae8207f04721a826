"""FSDP2 (`fully_shard`): every parameter split by rows over the ranks, gathered layer by layer.

Each layer is a group of its own; what lies outside the layers is the root group, which stays gathered from forward to
backward. With `CPUOffloadPolicy` the shards, their gradients and the optimizer live in the host's memory: a shard
comes for each gathering, a gradient goes when it is reduced.

After torch/distributed/fsdp/_fully_shard (2.13): `_fsdp_param_group.py` for the order of things, `_fsdp_collectives.py` for the
buffers, `_fsdp_param.py` for shards that are offloaded, `_fsdp_state.py` for the hooks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

from estimator.contract.errors import Contradiction
from estimator.families.layers import Edges, Layer, hidden_of
from estimator.families.parameter import Parameter
from estimator.families.sharding import Forward, Sharding
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.dtypes import DType
from estimator.tape.host import pinned
from estimator.tape.layout import Shape
from estimator.tape.pointwise import to
from estimator.tape.tape import COMMUNICATION, GRADIENT, ONCE, PARAMETER, Storage, Tape
from estimator.tape.tensor import Tensor, alias, empty


@dataclass(frozen=True, slots=True)
class Policy:
    """`MixedPrecisionPolicy`: the type of gathered parameters and of layers' inputs, and of gradients while they are reduced.

    None: as they are.
    """

    parameters: DType | None = None
    reduction: DType | None = None

    def cast(self, inputs: Iterable[Any]) -> list[Any]:
        """Inputs of a forward pass: those that are numbers with a fraction in the type of the parameters."""
        dtype = self.parameters
        return [to(t, dtype) if dtype and isinstance(t, Tensor) and t.dtype.is_floating else t for t in inputs]


class Fsdp2(Sharding):
    """Sharding over `world` ranks. The state is that of one rank's communication context.

    `replicas`: so many such groups hold the same (HSDP), and sum up what each has reduced. `syncs`: gradients are reduced after
    every micro-step; without, they stay whole until the last (`set_requires_gradient_sync(False)`).
    """

    edges = Edges(first=1, last=1)
    untied = True

    def __init__(
        self,
        tape: Tape,
        world: int,
        policy: Policy,
        reshard_after_forward: bool = True,
        replicas: int = 1,
        syncs: bool = True,
    ):
        self.tape = tape
        self.world = world
        self.replicas, self.syncs, self.reduces = replicas, syncs, True
        self.rounds = 2 if syncs else 3
        self.policy = policy
        self.input_dtype = self.weights_dtype = policy.parameters
        self.reshard_after_forward = reshard_after_forward
        self.groups: list[Group] = []
        """In the order of the model's modules: the root's is first."""
        self.forward_order: list[Group] = []
        self.gathered: Tensor | None = None
        """The last all-gather's buffer: in forward, freed only when the next group's is there."""
        self.reducing: Tensor | None = None
        """The last reduce-scatter's input: freed when the next group's gradients are ready."""

    def parameter(self, tape: Tape, shape: Shape, dtype: DType, name: str) -> tuple[Tensor, Tensor]:
        """A shard of whole rows, padded up; and the gathered parameter, which has no bytes until it is gathered."""
        if not shape:
            raise Contradiction(f"fully_shard refuses parameters without dimensions ({name}); use ddp", "parallelism.strategy")
        rows = -(-shape[0] // self.world)
        part = (rows, *shape[1:])
        local = empty(tape, part, dtype, name) if tape.host is None else pinned(tape.host, part, dtype, name)
        compute = (self.policy.parameters or dtype) if dtype.is_floating else dtype
        full = Storage(tape, rows * self.world * prod(shape[1:]) * compute.itemsize, name, (shape, compute), filled=False)
        return Tensor(full, shape, compute), local

    def unit(self, parameters: list[Parameter], layer: Layer) -> Layer:
        if not parameters:  # those that it runs lie outside of the stack
            return layer
        group = Group(self, managed([(p.name.split("."), p) for p in parameters]), self.reshard_after_forward)
        self.groups.append(group)

        def run(*given: Tensor | None) -> Any:
            inputs = self.policy.cast(given)
            group.before_forward()
            out = layer(*group.watch(inputs))
            group.after_forward(hidden_of(out))
            return out

        return run

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        group = Group(self, parameters, reshard=False)
        self.groups.insert(0, group)

        def run(*batch: Tensor) -> tuple[Tensor, Any]:
            inputs = self.policy.cast(batch)
            group.before_forward()
            loss, held = model(*inputs)
            group.after_forward(loss)
            self.gathered = None
            self.tape.backward_callbacks.append(self.finish)
            return loss, held

        return run

    def micro_step(self, last: bool) -> None:
        self.reduces = self.syncs or last

    def placed(self, p: Parameter, gradient: Tensor) -> Tensor:
        """A parameter's gradient, placed as the parameter is among other ranks than those of data."""
        return gradient

    def finish(self) -> None:
        """After backward: reduce the groups whose input needed no gradient, and let go of what was gathered for one that backward
        did not come to, and of what replicas have summed up (`_root_post_backward_final_callback`)."""
        for group in self.groups:
            self.tape.enter(group.slot)
            group.after_backward()
            group.pending = group.all_reduced = None
            group.reduced = False
        self.tape.enter(None)
        self.reducing = None
        self.forward_order.clear()


def managed(named: list[tuple[list[str], Parameter]]) -> list[Parameter]:
    """A layer's parameters, given with the parts of their names, in the order of `fully_shard`: a module's own come after those
    of the modules in it (_fsdp_init.py, `_get_managed_modules`). A layer's weight and bias stay before an adapter that is put
    on it, beside which PEFT makes a module of them."""
    own = [p for name, p in named if len(name) == 1]
    inner: dict[str, list[tuple[list[str], Parameter]]] = {}
    for name, p in named:
        if len(name) > 1:
            inner.setdefault(name[0], []).append((name[1:], p))
    nested = [p for module in inner.values() for p in managed(module)]
    return own + nested if any(name in (["weight"], ["bias"]) for name, _ in named) else nested + own


def _check_one_type(parameters: list[Parameter]) -> None:
    """Raise `InvalidJob` where what is trained in a group is of several types (`_init_mp_dtypes`), whether a gradient reaches it
    or not: torch asks what requires one."""
    trained = [p for p in parameters if p.wanted]
    if other := next((p for p in trained if p.local.dtype is not trained[0].local.dtype), None):
        raise Contradiction(
            f"fully_shard refuses a layer in which {trained[0].name} of {trained[0].local.dtype.name} and {other.name} of "
            f"{other.local.dtype.name} are trained: choose one type",
            "parallelism.strategy",
        )


class Group:
    """The parameters that are gathered and reduced together."""

    def __init__(self, shared: Fsdp2, parameters: list[Parameter], reshard: bool):
        _check_one_type(parameters)
        self.shared = shared
        self.parameters = parameters
        self.reshard = reshard
        self.slot = shared.tape.slot
        self.pending: Tensor | None = None
        self.complete = False
        self.reduced = False
        self.accumulated: dict[int, Tensor] = {}
        """Whole gradients that wait for the last micro-step, in the type in which they are reduced: by the parameter's number."""
        self.all_reduced: Tensor | None = None
        """What replicas have summed up, held until backward is over (`_all_reduce_state`)."""

    def gather(self) -> None:
        """Start the all-gather: a flat copy of the shards if they must be cast, and the flat buffer for all ranks."""
        if self.complete or self.pending is not None or not self.parameters:
            return
        tape, first = self.shared.tape, self.parameters[0]
        count = sum(p.local.numel for p in self.parameters)
        dtypes = {p.tensor.dtype for p in self.parameters}
        with tape.counting(COMMUNICATION), tape.on_stream("all_gather_copy_in"):
            inputs = self._flattened() if tape.host is None else [_arrived(tape, p) for p in self.parameters]
            if len(dtypes) == 1:
                self.pending = empty(tape, (count * self.shared.world,), first.tensor.dtype, "all_gather_output")
            else:  # types differ: gathered as bytes
                nbytes = sum(p.tensor.storage.nbytes for p in self.parameters)
                self.pending = Tensor(Storage(tape, nbytes, "all_gather_output"), (nbytes,), first.tensor.dtype)
        tape.communicate("all_gather", "data", self.shared.world, self.pending.storage.nbytes)
        del inputs

    def _flattened(self) -> list[Tensor]:
        """A flat copy of the shards that must be cast."""
        casts = [p for p in self.parameters if p.local.dtype is not p.tensor.dtype]
        count, dtype = sum(p.local.numel for p in casts), self.parameters[0].tensor.dtype
        return [empty(self.shared.tape, (count,), dtype, "all_gather_input")] if casts else []

    def copy_out(self, in_forward: bool) -> None:
        """Wait for the all-gather and copy its buffer to the parameters."""
        if self.pending is None:
            return
        before = self.shared.gathered if in_forward else None  # a local of `wait_for_unshard` holds it to the end
        with self.shared.tape.counting(PARAMETER):
            for p in self.parameters:
                p.tensor.storage.refill("all_gather_copy_out")
        self.complete = True
        if in_forward:
            self.shared.gathered = self.pending
        self.pending = None
        del before

    def free(self) -> None:
        """Give back the gathered parameters."""
        if self.complete:
            for p in self.parameters:
                p.tensor.storage.release()
            self.complete = False

    def before_forward(self) -> None:
        self.gather()
        self.copy_out(in_forward=True)

    def watch(self, inputs: list[Any]) -> list[Any]:
        """Reduce this group's gradients when backward has passed all of its inputs. One that the layer does not use gets a
        gradient of zeros, as every output of a `torch.autograd.Function` does."""

        def passed(*gradients: Gradient) -> list[Tensor]:
            zeros = [None if g is not None else empty(tape, *made, "zeros") for g, made in zip(gradients, forms, strict=True)]
            self.after_backward()
            return [zero if g is None else g for g, zero in zip(gradients, zeros, strict=True)]  # type: ignore[misc]

        tape = self.shared.tape
        wanted = [i for i, t in enumerate(inputs) if isinstance(t, Tensor) and t.requires_grad]
        forms = [(inputs[i].shape, inputs[i].dtype) for i in wanted]
        node = record("RegisterPostBackwardFunction", [inputs[i] for i in wanted], (), passed, len(wanted)) if wanted else None
        if node is None:
            return inputs
        watched = [*inputs]
        for number, i in enumerate(wanted):
            watched[i] = attach(node, alias(inputs[i], inputs[i].shape, inputs[i].strides))
            watched[i].output_nr = number
        return watched

    def after_forward(self, out: Tensor) -> None:
        if self.reshard:
            self.free()
        self.shared.forward_order.append(self)
        if out.grad_fn is not None:
            out.grad_fn.hooks = (self.before_backward,)

    def before_backward(self, _: object = None) -> None:
        """Gather again, and start gathering the group that backward comes to next."""
        self.gather()
        self.copy_out(in_forward=False)
        order = self.shared.forward_order
        at = order.index(self)
        if at > 0:
            order[at - 1].gather()

    def after_backward(self) -> None:
        """Free the parameters; reduce-scatter the gradients, of which the optimizer keeps views."""
        if self.reduced:
            return
        self.reduced = True
        shared, tape = self.shared, self.shared.tape
        for i in self.accumulated:  # what waits gets this micro-step's added
            self.parameters[i].tensor.grad = None
        if not shared.reduces:
            self._keep()
            return
        owners, gradients = self._taken()
        self.free()
        shared.reducing = None
        if not owners:
            return
        dtype = shared.policy.reduction or gradients[0].dtype
        count = sum(p.local.numel for p in owners)
        with tape.counting(COMMUNICATION):
            shared.reducing = empty(tape, (count * shared.world,), dtype, "reduce_scatter_input")
        once = None if shared.syncs else ONCE
        tape.communicate("reduce_scatter", "data", shared.world, shared.reducing.nbytes, once)
        last = gradients[-1] if shared.world > 1 else None  # a loop variable of `foreach_reduce` holds it to the end
        gradients.clear()
        with tape.counting(GRADIENT), tape.on_stream("reduce_scatter"):
            output = empty(tape, (count,), dtype, "reduce_scatter_output")
            if shared.replicas > 1:
                self.all_reduced = output
                tape.communicate("all_reduce", "replicas", shared.replicas, output.nbytes, once)
            if owners[0].local.dtype is not dtype:
                output = empty(tape, (count,), owners[0].local.dtype, "_to_copy")
            for p in owners:
                if tape.host is not None:
                    _send(p, tape.host, dtype=owners[0].local.dtype)
                elif p.local.grad is None:
                    p.local.grad = alias(output, p.local.shape)
        del last

    def _taken(self) -> tuple[list[Parameter], list[Tensor]]:
        """The gradients that there are, off the parameters that have them, or what has waited."""
        owners, gradients = [], []
        for i, p in enumerate(self.parameters):
            gradient = self.accumulated.pop(i, p.tensor.grad)
            if gradient is not None:
                owners.append(p)
                gradients.append(self.shared.placed(p, gradient))
                p.tensor.grad = None
        return owners, gradients

    def _keep(self) -> None:
        """Free the parameters; gradients wait, each converted to the type in which it will be reduced, where that is another
        (`to_accumulated_grad_if_needed`)."""
        self.free()
        dtype, tape = self.shared.policy.reduction, self.shared.tape
        for i, p in enumerate(self.parameters):
            gradient = p.tensor.grad
            if gradient is not None and dtype is not None and gradient.dtype is not dtype:
                p.tensor.grad = None
                with tape.counting(GRADIENT):
                    self.accumulated[i] = empty(tape, gradient.shape, dtype, "_to_copy")
            del gradient


def _arrived(tape: Tape, p: Parameter) -> Tensor:
    """A shard copied from the host, and cast (`FSDPParam.all_gather_inputs`)."""
    arrived = empty(tape, p.local.shape, p.local.dtype, "_to_copy")
    tape.copy("from_host", p.local.nbytes)
    return arrived if p.local.dtype is p.tensor.dtype else empty(tape, p.local.shape, p.tensor.dtype, "_to_copy")


def _send(p: Parameter, host: Tape, dtype: DType) -> None:
    """Copy a reduced gradient to the host (`foreach_reduce`): to pinned memory, to stay, or to be added to what is there."""
    p.tensor.tape.copy("to_host", p.local.numel * dtype.itemsize)
    if p.local.grad is None:
        p.local.grad = pinned(host, p.local.shape, dtype, "_to_copy")
    else:
        empty(host, p.local.shape, dtype, "_to_copy")
