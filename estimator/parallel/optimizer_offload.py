"""One GPU whose optimizer works in the host's memory: torchao's `CPUOffloadOptimizer`.

After torchao/optim/cpu_offload.py (0.18): of every parameter but the small ones a copy and a gradient in pinned memory, an
optimizer of its own there, and a hook that copies its gradient as soon as it has come.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from estimator.families.parameter import Parameter
from estimator.families.sharding import Sharding
from estimator.tape.host import pinned
from estimator.tape.tape import GRADIENT, PARAMETER, Tape
from estimator.tape.tensor import Tensor

SMALL = 4096
"""Elements below which a parameter is updated on the GPU (`minimal_size`)."""


class OffloadedOptimizer(Sharding):
    """`frees`: gradients are let go once they are copied (`offload_gradients`).

    A freed gradient's bytes count as free at once (`record_stream` only delays their use for something else).
    """

    def __init__(self, tape: Tape, host: Tape, frees: bool):
        self.tape = tape
        self.host = host
        self.frees = frees
        self.gradients: list[tuple[Tensor, int]] = []
        """Each with how many such parameters there are."""

    def prepare(self, trained: list[Parameter]) -> None:
        for p in trained:
            if p.tensor.numel < SMALL:
                continue
            self.tape.enter(p.slot)
            with self.tape.counting(PARAMETER):
                p.local = pinned(self.host, p.tensor.shape, p.tensor.dtype, "param_d2h_map")
            with self.tape.counting(GRADIENT):
                self.gradients.append((pinned(self.host, p.tensor.shape, p.tensor.dtype, "param_d2h_map.grad"), p.times))
            p.tensor.on_grad = partial(self._came, p.tensor)
        self.tape.enter(None)

    def _came(self, leaf: Tensor) -> None:
        self.tape.copy("to_host", leaf.nbytes)
        if self.frees:
            leaf.grad = None

    def step(self, optimize: Callable[[], None]) -> None:
        optimize()
        self.tape.copy("from_host", sum(gradient.nbytes * times for gradient, times in self.gradients))
