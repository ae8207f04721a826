"""BAdam: one part of a model is trained at a time, in float32 copies that the optimizer has of it alone.

badam 1.4 (block_optim.py, `BlockOptimizer`). A turn ends with new copies before the old ones and their states go: 16
bytes for each number of a part, as many as the step before it has with its gradients in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job
from estimator.contract.job.trainable import Trainable
from estimator.families.layers import Layer
from estimator.families.model_output import PerLayer
from estimator.families.parameter import Parameter
from estimator.families.sharding import Forward, Sharding
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.tape import GRADIENT, PARAMETER, Storage, Tape
from estimator.tape.tensor import Tensor, empty
from estimator.training.optimizers import Optimizer
from estimator.training.optimizers.refusals import MATRICES

WHERE = "training.trainable.badam"


def asks(job: Job) -> bool:
    """Whether a job trains with BAdam."""
    return isinstance(job.training.trainable, Trainable) and job.training.trainable.badam


def refuse(job: Job) -> None:
    """Raise for what goes not together with BAdam."""
    training = job.training
    if training.optimizer in MATRICES:
        raise Contradiction(f"BAdam makes two groups of weights and biases, of which {training.optimizer} knows nothing", WHERE)
    if training.optimizer_in_backward:
        raise Contradiction(
            "BAdam's copies have gradients at the end of backward only: leave it out", "training.optimizer_in_backward"
        )
    if not training.zero_grad_to_none:
        raise Contradiction("BAdam drops each gradient: leave zero_grad_to_none out", "training.zero_grad_to_none")
    if training.precision == "16-mixed":
        raise Contradiction(
            "torch's scaler finds no gradients on BAdam's copies: write bf16-mixed, or bf16-true", "training.precision"
        )
    if training.precision.startswith(("megatron", "deepspeed")) or training.dtypes is not None:
        raise NotModelled(f"BAdam beside copies of {training.precision} is not modelled; write bf16-true", "training.precision")
    if job.offload.optimizer != "none" or job.offload.parameters != "none":
        raise NotModelled("BAdam beside what is offloaded is not modelled yet", "offload")


class BlockCopies(Sharding):
    """Float32 copies of what is trained, of float32 weights, too (`_switch_trainable_params_single_gpu`)."""

    def __init__(self, tape: Tape):
        self.tape = tape
        self.trained: list[Parameter] = []

    def parameter(self, tape: Tape, shape: Shape, dtype: DType, name: str) -> tuple[Tensor, Tensor]:
        """The copy's bytes come when it is known whether the parameter is trained."""
        tensor = empty(tape, shape, dtype, name)
        copy = Storage(tape, dtypes.float32.itemsize * tensor.numel, "param_hp", (shape, dtypes.float32), filled=False)
        return tensor, Tensor(copy, shape, dtypes.float32)

    def unit(self, parameters: list[Parameter], layer: Layer) -> Layer:
        self._adopt(parameters)
        return layer

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        self._adopt(parameters)
        return model

    def _adopt(self, parameters: list[Parameter]) -> None:
        with self.tape.counting(PARAMETER):
            for p in parameters:
                if p.trainable:
                    p.local.storage.refill("param_hp")
                    self.trained.append(p)

    def step(self, optimize: Callable[[], None]) -> None:
        """`step_single_gpu`: gradients become float32 one by one, and updated copies go back to the weights so."""
        gradients = PerLayer(self.tape)
        with self.tape.counting(GRADIENT):
            for p in self.trained:
                self.tape.enter(p.slot)
                assert p.tensor.grad is not None
                half = p.tensor.dtype is not dtypes.float32
                gradients.append(empty(self.tape, p.tensor.shape, dtypes.float32, "_to_copy") if half else p.tensor.grad)
                p.tensor.grad = None
        self.tape.enter(None)
        optimize()
        for p in self.trained:
            self.tape.enter(p.slot)
            if p.tensor.dtype is not dtypes.float32:
                narrow = empty(self.tape, p.tensor.shape, p.tensor.dtype, "_to_copy")
                del narrow
        self.tape.enter(None)
        del gradients


def in_groups(optimizer: Optimizer) -> Optimizer:
    """The optimizer as it steps over two groups: biases come after all else."""

    def step(tape: Tape, parameters: list[Parameter]) -> None:
        for biases in (False, True):
            if members := [p for p in parameters if ("bias" in p.name) is biases]:
                optimizer.step(tape, members)

    return replace(optimizer, step=step)
