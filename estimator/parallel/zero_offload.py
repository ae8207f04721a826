"""ZeRO-Offload: stages 1 and 2 with float32 weights, gradients and Adam's states in the host's memory.

The GPU keeps the model in half precision, the bucket that gradients are reduced in, and one buffer of the largest parameter's
size. After deepspeed/runtime/zero/stage_1_and_2.py and ops/adam/cpu_adam.py of DeepSpeed 0.19.8, with `pin_memory`, which
is its default; docs/zero.md.
"""

from __future__ import annotations

from collections.abc import Callable

from estimator.families.parameter import Parameter
from estimator.families.sharding import Forward
from estimator.parallel.zero import Zero12
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.host import pinned, pinned_bytes
from estimator.tape.layout import Shape
from estimator.tape.tape import COMMUNICATION, GRADIENT, PARAMETER, Storage, Tape
from estimator.tape.tensor import Tensor, empty

NORM = 8
"""Bytes per element of the float64 copy whose norm is taken of each gradient that goes to the host (`get_norm_dtype`)."""


def nowhere(host: Tape, shape: Shape) -> Tensor:
    """A part of something larger on the host: the optimizer's states are as large as it, and itself it takes nothing."""
    return Tensor(Storage(host, 0, "part", filled=False), shape, dtypes.float32)


class OffloadedZero12(Zero12):
    """`accumulated`: whether gradients of several micro-steps are added: in stage 2 on the host, in half precision."""

    def __init__(self, tape: Tape, host: Tape, world: int, stage: int, accumulated: bool):
        super().__init__(tape, world, stage)
        self.host = host
        self.accumulated = accumulated
        self.held: list[Tensor] = []

    def master(self, shape: Shape) -> Tensor:
        return nowhere(self.host, shape)

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        run = super().root(parameters, model)
        self._hold()
        return run

    def _hold(self) -> None:
        """What is made with the optimizer: flat parts of float32 weights, their gradients and their half-precision copy, each
        made in plain memory and copied to pinned; and buffers of the largest parameter's size."""
        largest = max(p.tensor.numel for p in self.trained)
        for dtype, component, name in (
            (dtypes.float32, PARAMETER, "single_partition_of_fp32_groups"),
            (self.dtype, PARAMETER, "param_buffer_of_bit16_for_cpu_offload_groups"),
            (self.dtype, COMMUNICATION, "temp_grad_buffer_for_cpu_offload"),
            (dtypes.float32, GRADIENT, "single_partition_of_fp32_groups.grad"),
        ):
            size = largest if component == COMMUNICATION else self.partition
            self.held.append(self._pinned(size, dtype, name, component))
        self.held.append(self.flat(largest, self.dtype, "temp_grad_buffer_for_gpu_offload", COMMUNICATION))
        if self.accumulated and self.stage == 2:
            self._hold_accumulated()

    def _pinned(self, elements: int, dtype: DType, name: str, component: str) -> Tensor:
        with self.host.counting(component):
            plain = empty(self.host, (elements,), dtype, name)
            made = pinned(self.host, (elements,), dtype, name)
        del plain
        return made

    def _hold_accumulated(self) -> None:
        """A pinned buffer for the accumulated gradient of each parameter in this rank's part (`accumulated_grads_in_cpu`).

        Parameters lie whole in one part, but for those at its ends: each rank is counted an equal share of all buffers.
        """
        with self.host.counting(GRADIENT):
            for p in self.trained:
                self.tape.enter(p.slot)
                nbytes = -(-pinned_bytes(p.tensor.numel * p.tensor.dtype.itemsize) // self.world)
                self.held.append(Tensor(Storage(self.host, nbytes, "accumulated_grads_in_cpu"), p.tensor.shape, p.tensor.dtype))
        self.tape.enter(None)

    def reduce(self, leaf: Tensor) -> None:
        self.open_bucket()
        if self.stage == 1 or leaf.grad is None:
            return
        if self.large is not None:
            self._send(self.large.numel)
        self.large = leaf.grad if self.tape.slot is None and leaf.numel > self.bucket_size else None
        leaf.grad = None
        self.reduce_bucket()
        if self.large is None:
            self._send(leaf.numel)

    def _send(self, elements: int) -> None:
        """Take a reduced gradient's norm, and copy it to the host."""
        norm = self.flat(elements * NORM, dtypes.uint8, "norm", COMMUNICATION)
        del norm

    def finish(self) -> None:
        if self.stage == 1 and not self.last:
            return
        self.exchange("reduce_scatter")
        self.tape.copy("to_host", self.partition * self.dtype.itemsize)
        if self.stage == 1:
            self.reduce_bucket()
            self._send(max(p.tensor.numel for p in self.trained))
            if self.accumulated:
                return
            self._clear()
        self.bucket = self.large = None

    def _clear(self) -> None:
        for p in self.trained:
            self.tape.enter(p.slot)
            p.tensor.grad = None
        self.tape.enter(None)

    def step(self, optimize: Callable[[], None]) -> None:
        """DeepSpeedCPUAdam updates in place, on the host.

        Until then stage 1's accumulated gradients and the bucket live: seen in a run, not yet found in the source.
        """
        if self.stage == 1:
            self._clear()
            self.bucket = None
        self.tape.copy("from_host", self.partition * self.dtype.itemsize)
        self.exchange("all_gather")
