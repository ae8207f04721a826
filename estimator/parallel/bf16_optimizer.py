"""DeepSpeed's BF16_Optimizer, as Megatron-DeepSpeed trains in bf16: ZeRO's first stage, with gradients added up in float32.

After deepspeed/runtime/bf16_optimizer.py and deepspeed/runtime/pipe/engine.py (0.19): a weight's gradient stays in bf16 from
micro-batch to micro-batch, is filled with zeros before each (`clear_lp_grads`), and as soon as it is there its float32 copy is
added to a buffer as large as the model (`_update_hp_grad`, `immediate_grad_update`). That buffer is reduced in bf16
(`communication_data_type`), whole, as its norm is taken and clipped; a rank updates its part, and the weights are gathered.
"""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job
from estimator.families.parameter import Parameter
from estimator.families.sharding import Forward
from estimator.parallel.megatron import MainParameters
from estimator.tape import dtypes
from estimator.tape.tape import GRADIENT
from estimator.tape.tensor import Tensor, empty

PRECISION = "deepspeed-bf16"
ADDED = 3 * 4
"""Bytes that are read and written for each number by which float32 is added to float32."""


class Bf16Optimizer(MainParameters):
    """`MainParameters` whose gradients go through bf16 ones that stay."""

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        model = super().root(parameters, model)
        with self.tape.counting(GRADIENT):
            self.halves = [
                empty(self.tape, (buffer.numel,), weights, "grad")
                for (weights, *_), buffer in zip(self.groups, self.buffers, strict=True)
            ]
        return model

    def added(self, leaf: Tensor) -> None:
        """The gradient was added to the one in bf16, with as many bytes as to Megatron's buffer, of which it was filled with
        zeros; a float32 copy of it is made, and added."""
        super().added(leaf)
        with self.tape.counting(GRADIENT):
            copy = empty(self.tape, leaf.shape, dtypes.float32, "_to_copy")
        self.tape.compute("zero_", 0, leaf.nbytes)
        self.tape.compute("copy_", 0, leaf.nbytes + copy.nbytes)
        self.tape.compute("add_", 0, ADDED * leaf.numel)
        del copy

    def reduce(self) -> None:
        self._exchange("all_reduce", gathered=True)

    def read_and_write(self) -> None:
        """The norm and the clipping are of all gradients, not of this rank's."""
        super().read_and_write()
        whole = sum(buffer.nbytes for buffer in self.buffers)
        part = sum(4 * p.local.numel * p.times for p in self.trained)
        self.tape.compute("norm", 0, whole - part)
        self.tape.compute("mul_", 0, 2 * whole)


def check_bf16_optimizer(job: Job, sharded: bool) -> None:
    """Raise for what Megatron-DeepSpeed does not do in bf16, and `NotModelled`. `sharded`: by ZeRO's first stage."""
    asked = job.parallelism
    if not sharded:
        raise Contradiction(
            "Megatron-DeepSpeed's bf16 is ZeRO's first stage: write zero1, or megatron-bf16", "training.precision"
        )
    if asked.pipeline > 1 and asked.pipeline_schedule != "1f1b":
        raise Contradiction("DeepSpeed's pipeline is 1f1b: write that, or megatron-bf16", "parallelism.pipeline_schedule")
    for given, field in (
        (asked.overlap_grad_reduce, "parallelism.overlap_grad_reduce"),
        (asked.expert > 1, "parallelism.expert"),
        (asked.context > 1, "parallelism.context"),
        (job.offload.optimizer != "none", "offload.optimizer"),
        (job.training.adapter is not None, "training.adapter"),
    ):
        if given:
            raise NotModelled(f"not modelled with {PRECISION}: leave it out, or write megatron-bf16", field)
