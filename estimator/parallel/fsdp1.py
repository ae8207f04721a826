"""FSDP1 (`FullyShardedDataParallel`): the parameters of each layer in one flat tensor, split evenly over the ranks.

Each layer is a unit; what lies outside the layers is the root's, which stays gathered from forward to backward. As Accelerate
sets it up: `use_orig_params`, no prefetch in forward. After torch/distributed/fsdp (2.13):
`_flat_param.py` for what is flat and how it is padded, `_runtime_utils.py` for the order of things. This rank is the first: it
holds the first part.

With `use_orig_params`, `zero_grad` drops the views that the optimizer knows; the flat gradient goes when the next forward pass
begins (`_reset_flat_param_grad_info_if_needed`), so it is alive between steps.
"""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import Contradiction
from estimator.families.layers import Edges, Layer, hidden_of
from estimator.families.modules import Linear
from estimator.families.parameter import Parameter
from estimator.families.sharding import Forward, Sharding
from estimator.parallel.flat import Leaf, Unit, whole
from estimator.parallel.fsdp2 import Policy
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.tape import Storage, Tape
from estimator.tape.tensor import Tensor


class Fsdp1(Sharding):
    """Sharding over `world` ranks (FULL_SHARD). `prefetches`: before backward (BACKWARD_PRE), or not at all.

    `ignores`: adapters are whole on every rank (`ignored_modules`). `around`: a layer's checkpoint is around its unit, as in
    transformers before 5, not within it. Then the hook that frees a frozen unit is on a leaf, the copy of the layer's input that
    re-entrant checkpointing makes, and holds it, and so its gradient, until backward ends (torch/autograd/graph.py,
    `register_multi_grad_hook`; `_finalize_params` removes it).
    """

    edges = Edges(first=1, last=1)
    flattens = True

    def __init__(
        self, tape: Tape, world: int, policy: Policy, prefetches: bool = True, ignores: bool = False, around: bool = False
    ):
        self.tape = tape
        self.world = world
        self.policy = policy
        self.weights_dtype = policy.parameters
        self.prefetches = prefetches
        self.ignores = ignores
        self.around = around
        self.encloses = not around
        self.units: list[Unit] = []
        self.forward_order: list[Unit] = []
        self.stale = True
        """Whether the gradients are those of the step before."""

    def parameter(self, tape: Tape, shape: Shape, dtype: DType, name: str) -> tuple[Tensor, Tensor]:
        """A view of a flat tensor that is made when the unit is complete; and this rank's part of it, likewise."""
        if not shape:
            raise Contradiction(f"FSDP refuses parameters without dimensions ({name}); use ddp", "parallelism.strategy")
        compute = (self.policy.parameters or dtype) if dtype.is_floating else dtype
        full = Tensor(Storage(tape, 0, name, filled=False), shape, compute)
        return full, Tensor(Storage(tape, 0, name, filled=False), shape, dtype)

    def unit(self, parameters: list[Parameter], layer: Layer) -> Layer:
        if not parameters:  # those that it runs lie outside of the stack
            return layer
        unit = Unit(self, parameters, reshard=True)

        def run(*given: Tensor | None) -> Any:
            unit.before_forward()
            out = layer(*unit.watch(list(given)))
            unit.after_forward(hidden_of(out))
            return out

        return run

    def leaf(self, module: Linear, unit: list[Parameter], adapts: bool = True, learns: bool = True) -> Linear:
        count = 1 if module.bias is None else 2
        own = unit[-count:]
        del unit[-count:]
        made = whole(self.tape, *own) if adapts and self.ignores else Leaf(Unit(self, own, reshard=True, learns=learns), module)
        for p in own:
            p.trainable = p.trainable and learns
        return made

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        root = Unit(self, parameters, reshard=False)

        def run(*batch: Tensor) -> tuple[Tensor, Any]:
            self.drop_gradients()
            inputs = self.policy.cast(batch)  # of other units' none (`cast_root_forward_inputs`, `cast_forward_inputs`)
            root.before_forward()
            loss, held = model(*inputs)
            root.after_forward(loss)
            self.tape.backward_callbacks.append(self.finish)
            return loss, held

        return run

    def drop_gradients(self) -> None:
        """What `zero_grad` left of the step before goes, and what the micro-step before left where none of the parameters in this
        rank's part is trained: a flat gradient that no parameter has a view of (`_reset_flat_param_grad_info_if_needed`)."""
        for unit in self.units:
            if self.stale or not unit.trains:
                self.tape.enter(unit.slot)
                unit.gradient = None
        self.stale = False
        self.tape.enter(None)

    def finish(self) -> None:
        """After backward: what is still gathered is freed."""
        for unit in self.units:
            self.tape.enter(unit.slot)
            unit.full.storage.release()
            unit.held.clear()
            unit.let_go()
        self.tape.enter(None)
        self.forward_order.clear()
