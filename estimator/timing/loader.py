"""Whether a rank's batches come in time: rows of tokens that are read, collated and handed over."""

from __future__ import annotations

from pathlib import Path

from estimator.contract.job import Job
from estimator.facts.fact import measured

FILE = Path(__file__).parent / "loader.yaml"
LOADER = "data loader"
"""Time in which a rank waits for its batch."""
OF_TOKENS = ("causal-lm", "masked-lm", "seq2seq-lm", "sequence-classification")
"""Heads of models that read tokens: how fast images and sound are decoded is not known here."""


def loading_seconds(job: Job) -> tuple[float, float, float]:
    """Seconds to load a micro-batch, at least, expected and at most: by one process, or by all workers side by side.

    Zero for Megatron-LM, whose tokens are mapped from a file as they are, and for models that do not read tokens.
    """
    training, workers = job.training, job.host.data_loader_workers
    if training.head not in OF_TOKENS or training.implementation == "megatron":
        return 0.0, 0.0, 0.0
    rate = measured(FILE)["worker" if workers else "in_process"]
    return rate.taken(training.tokens_per_pass / max(1, workers))
