"""ZeRO-3 with the optimizer, and parameters if the job says so, in the host's memory or on NVMe (ZeRO-Infinity).

After deepspeed/runtime/zero/stage3.py, partition_parameters.py and runtime/swap_tensor of DeepSpeed 0.19.8, with `pin_memory`,
which is its default; docs/zero.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

from estimator.contract.errors import NotModelled
from estimator.contract.job import Offload
from estimator.parallel import zero3
from estimator.parallel.zero3 import Zero3
from estimator.parallel.zero_offload import NORM, nowhere
from estimator.parallel.zeropp import ZeroPlusPlus
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.host import pinned
from estimator.tape.layout import Shape
from estimator.tape.tape import COMMUNICATION, GRADIENT, PARAMETER, TEMPORARY, Tape
from estimator.tape.tensor import Tensor, empty

SWAP_BUFFERS = 4
"""Buffers, each of the largest sub-group in float32, through which states go to NVMe and come back (`buffer_count`)."""
PARAMETER_BUFFERS, PARAMETER_BUFFER = 5, 100_000_000
"""Buffers through which parameters come from NVMe, and the elements of each (`offload_param`: `buffer_count`, `buffer_size`)."""
IN_CPU = 1_000_000_000
"""Elements of parameters that stay in the host's memory when the others are on NVMe (`max_in_cpu`)."""
NORM_CHUNK = 250_000_000
"""Elements whose norm is taken at a time (`_constant_buffered_norm2`)."""


class OffloadedZero3(Zero3):
    """`places`: where the optimizer and the parameters are: none, cpu or nvme."""

    def __init__(self, tape: Tape, host: Tape, world: int, places: Offload, plus: ZeroPlusPlus):
        super().__init__(tape, world, foreach=False, plus=plus)
        self.host = host
        self.places = places
        self.held: list[Tensor] = []

    def master(self, shape: Shape) -> Tensor:
        return nowhere(self.host, shape)

    def keep(self, part: int, dtype: DType, name: str) -> None:
        if self.places.parameters == "none":
            super().keep(part, dtype, name)
        elif self.places.parameters == "nvme" and part > PARAMETER_BUFFER:
            raise NotModelled(
                f"a part of {part:,} elements ({name}) is more than DeepSpeed's buffer_size of {PARAMETER_BUFFER:,}; "
                "a larger one is not modelled yet: use more GPUs, or cpu",
                "offload.parameters",
            )
        elif self.places.parameters == "cpu":  # pinned each for itself; freed later, but the allocator keeps the blocks
            with self.host.counting(COMMUNICATION):
                self.shards.append(pinned(self.host, (part,), dtype, "ds_tensor"))

    def hold(self) -> None:
        """What DeepSpeed allocates when it is initialized, in its order."""
        groups = list(self._sub_groups())
        self._hold_parameters(sum(groups), max(groups))
        if self.places.optimizer == "cpu":
            for size in groups:
                with self.host.counting(PARAMETER):
                    converted = empty(self.host, (size,), dtypes.float32, "to")
                    self.held.append(empty(self.host, (size,), dtypes.float32, "fp32_partitioned_groups_flat"))
                del converted
            largest = self._plain(max(groups), dtypes.float32, "gradient_buffer")
            for size in groups:
                self.held.append(self._pinned(size, dtypes.float32, "fp32_partitioned_groups_flat.grad"))
            del largest
        else:
            for _ in range(SWAP_BUFFERS):
                self.held.append(self._plain(max(groups), dtypes.float32, "swap_buffer"))
        self.held.append(self._pinned(sum(groups), self.dtype, "grad_partitions_flat_buffer"))

    def _hold_parameters(self, total: int, largest: int) -> None:
        """The flat buffer of parameters; with NVMe also its buffers, and a sub-group's that is written: locked, not rounded."""
        if self.places.parameters == "none":
            return
        resident = total if self.places.parameters == "cpu" else min(total, IN_CPU)
        with self.host.counting(PARAMETER):
            self.held.append(pinned(self.host, (resident,), self.dtype, "param_groups_fp16_flat_cpu_memory"))
        if self.places.parameters == "nvme":
            self.held.append(self._plain(PARAMETER_BUFFERS * PARAMETER_BUFFER, self.dtype, "swap_buffers"))
            if resident < total:
                self.held.append(self._plain(largest, self.dtype, "partitioned_swap_buffer"))

    def _sub_groups(self) -> Iterator[int]:
        """Elements of each sub-group: whole parameters' parts, until there are `sub_group_size` (`_create_fp16_sub_groups`)."""
        size = 0
        for part in self._in_order():
            size += part
            if size >= zero3.SUB_GROUP:
                yield size
                size = 0
        if size:
            yield size

    def _in_order(self) -> Iterator[int]:
        """The parts of all parameters, layers one after the other."""
        for slot, same in groupby(self.trained, key=lambda p: p.slot):
            parts = [p.local.numel for p in same]
            for _ in range(slot.total if slot else 1):
                yield from parts

    def _plain(self, elements: int, dtype: DType, name: str) -> Tensor:
        with self.host.counting(COMMUNICATION):
            return empty(self.host, (elements,), dtype, name)

    def _pinned(self, elements: int, dtype: DType, name: str) -> Tensor:
        with self.host.counting(GRADIENT):
            plain = empty(self.host, (elements,), dtype, name)
            made = pinned(self.host, (elements,), dtype, name)
        del plain
        return made

    def arriving(self, elements: int) -> int:
        """Elements that gathering so many takes: the buffer, and this rank's parts on their way from the host
        (`_all_gather_dtype`)."""
        return elements if self.places.parameters == "none" else elements + elements // self.world

    def reduce(self, leaf: Tensor) -> None:
        """The gradients' part goes through the GPU: a copy in half precision, and one of float64 for its norm or of float32."""
        leaf.grad = None
        copy = self.flat(self.reducing_bytes(leaf), dtypes.uint8, "cat", COMMUNICATION)
        part = -(-leaf.numel // self.world)
        back = self.flat(part, self.dtype, "to", COMMUNICATION)
        norm = self.flat(min(part, NORM_CHUNK) * NORM, dtypes.uint8, "norm", COMMUNICATION)
        del norm
        wide = self.flat(part, dtypes.float32, "to", COMMUNICATION)
        del wide, back, copy

    def gather(self, copied: bool) -> None:
        """What comes from the host is there before ranks exchange it."""
        super().gather(copied)
        if self.places.parameters != "none":
            self.tape.copy("from_host", self.total // self.world * self.dtype.itemsize)

    def finish(self) -> None:
        super().finish()
        self.tape.copy("to_host", self.partition * self.dtype.itemsize)

    def step(self, optimize: Callable[[], None]) -> None:
        """DeepSpeedCPUAdam updates in place; what goes to the GPU's parameters is first made half precision on the host."""
        if self.places.parameters == "none":
            with self.host.counting(TEMPORARY):
                empty(self.host, (max(self._sub_groups()),), self.dtype, "to")
            self.tape.copy("from_host", self.partition * self.dtype.itemsize)
        self.drop_copy()


class Files(NamedTuple):
    """Bytes of one rank's files on NVMe: float32 weights, gradients and two `states`; of `parameters` what is not kept in
    memory."""

    states: int
    parameters: int


def files(sharding: OffloadedZero3) -> Files:
    """Bytes of one rank's files on NVMe."""
    places, outside = sharding.places, max(0, sharding.partition - IN_CPU) * sharding.dtype.itemsize
    return Files(16 * sharding.partition if places.optimizer == "nvme" else 0, outside if places.parameters == "nvme" else 0)
