"""What modules that are modelled in part need of a training job: the usual value of each field."""

from __future__ import annotations

from collections.abc import Mapping

from estimator.contract.errors import NotModelled
from estimator.contract.job import Training

PLAIN: dict[str, object] = {
    "transformers_release": "5",
    "loss": "eager",
    "head": "causal-lm",
    "adapter": None,
    "quantization": None,
    "float8": None,
    "pruning": None,
    "objective": None,
    "evaluation": None,
    "trainable": "all",
    "attention_mask": "none",
    "reentrant_checkpointing": False,
    "optimizer_states": None,
    "optimizer_in_backward": False,
    "zero_grad_to_none": True,
    "autocast": False,
}
"""A model that is trained as it is, on its own loss."""


def refuse_unusual(training: Training, usual: Mapping[str, object], why: str, otherwise: str = "") -> None:
    """Raise `NotModelled` for the first field that is not the usual: `why`, what to write, and what else could be done."""
    for name, value in usual.items():
        if getattr(training, name) != value:
            said = "leave it out" if value in (None, False, True) else f"write {value}"
            raise NotModelled(f"{why}: {said}{otherwise}", f"training.{name}")
