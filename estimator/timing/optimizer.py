"""How many bytes an optimizer's step reads and writes."""

from __future__ import annotations

from collections.abc import Iterable

from estimator.families.parameter import Parameter
from estimator.job import Training
from estimator.tape.tape import OPTIMIZER_STATE, Tape

PASSES: dict[tuple[str, str], float] = {
    ("adamw", "foreach"): 20 / 7,
    ("adam", "foreach"): 18 / 7,
    ("adamw", "forloop"): 20 / 7,
    ("adam", "forloop"): 18 / 7,
    ("sgd", "foreach"): 1.0,
    ("sgd-momentum", "foreach"): 8 / 5,
    ("rmsprop", "foreach"): 14 / 5,
    ("adagrad", "foreach"): 12 / 5,
}
"""How often tensors are read or written, against a kernel that does each once: counted in torch 2.13's torch/optim (of AdamW
`_multi_tensor_adam`: mul_ 2, lerp_ 3, mul_ 2, addcmul_ 3, sqrt 2, div_ 2, add_ 2, addcdiv_ 4; fused 7)."""
EAGER = 2.5
"""Of optimizers that are not counted: those above lie between 1.6 and 2.9."""
ONCE = ("fused", "bitsandbytes", "transformer-engine", "torchao", "lion-pytorch")
"""Implementations with a kernel that goes through the tensors once."""


def optimizer_bytes(training: Training, parameters: Iterable[Parameter], tape: Tape) -> float:
    """Gradients are read, parameters and states read and written; several times by what works operation by operation."""
    by = training.optimizer_implementation or ""
    times = 1.0 if by in ONCE else PASSES.get((training.optimizer, by), EAGER)
    held = sum(p.local.nbytes * p.times for p in parameters if p.trainable)
    return times * (3 * held + 2 * _states(tape))


def _states(tape: Tape) -> int:
    """Bytes of the states on the GPU."""
    before = tape.phases[1].start
    return sum(
        tape.sizes[event] * (slot.total if (slot := tape.slots[event]) else 1)
        for event in tape.events[:before]
        if event > 0 and tape.components[event] == OPTIMIZER_STATE
    )
