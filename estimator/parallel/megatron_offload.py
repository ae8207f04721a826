"""Megatron-Core's optimizer in the host's memory: `--optimizer-cpu-offload` with a fraction of 1.

After Megatron-LM at 0d41ecd, core/optimizer/cpu_offloading/hybrid_optimizer.py (`HybridDeviceOptimizer`): of every part that a
rank updates a float32 copy and a gradient in pinned memory, and an optimizer of torch's there. It asks for
`--use-precision-aware-optimizer`, by which the GPU holds no float32 copy; the buffer of gradients stays on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable

from estimator.families.parameter import Parameter
from estimator.parallel.megatron import ALONE, MainParameters, Ranks
from estimator.tape import dtypes
from estimator.tape.collectives import Group
from estimator.tape.dtypes import DType
from estimator.tape.host import pinned
from estimator.tape.tape import GRADIENT, PARAMETER, Tape


class OffloadedMainParameters(MainParameters):
    """The float32 copies, and so the optimizer's states, are on `host`."""

    def __init__(self, tape: Tape, host: Tape, gradients: DType, ranks: Ranks, distributed: bool, copies: Group = ALONE):
        super().__init__(tape, gradients, ranks, distributed, copies)
        self.host = host

    def _copied(self, parameter: Parameter) -> None:
        """Nothing on the GPU."""

    def prepare(self, trained: list[Parameter]) -> None:
        self.sent = []
        for p in trained:
            self.tape.enter(p.slot)
            shape = p.local.shape
            with self.host.counting(PARAMETER):
                p.local = pinned(self.host, shape, dtypes.float32, "param_to_fp32_param")
            with self.host.counting(GRADIENT):
                self.sent.append((pinned(self.host, shape, dtypes.float32, "cpu_copy_map_grad"), p))
        self.tape.enter(None)

    def step(self, optimize: Callable[[], None]) -> None:
        self.tape.copy("to_host", sum(p.local.numel * self._summed(p).itemsize * p.times for _, p in self.sent))
        super().step(optimize)
        self.tape.copy("from_host", sum(p.local.numel * p.tensor.dtype.itemsize * p.times for _, p in self.sent))
