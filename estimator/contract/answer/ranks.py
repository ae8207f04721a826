"""What the ranks of a job hold, exchange and repeat."""

from __future__ import annotations

from estimator.contract.answer.part import AnswerPart


class Rank(AnswerPart):
    """The GPUs of one pipeline stage, which all hold the same layers."""

    stage: int
    gpus: int
    layers: tuple[int, int] | None
    """The first and the last layer of the stage's first chunk; null where that has none."""
    chunks: list[tuple[int, int] | None]
    """The first and the last layer of each chunk of the model that the stage holds; null for a chunk without layers."""
    embedding: bool
    output: bool
    """Whether the stage has the output layer and the loss; `embedding`: whether it has the input embedding."""
    micro_batches: int
    """Micro-batches whose activations the stage holds at once, each counted for every chunk in which it waits."""
    peak_bytes: int
    peak_phase: str
    resident_bytes: int


class Traffic(AnswerPart):
    """Collectives and transfers of one kind that a GPU takes part in during an optimizer step."""

    operation: str
    """all_gather | reduce_scatter | all_reduce | all_to_all | receive."""
    group: str
    """The group of ranks that exchange: data, tensor, context, expert, expert_tensor, expert_data or pipeline."""
    ranks: int
    phase: str
    count: int
    bytes: int
    """Bytes of all `count` exchanges together: of the whole tensors, which an all-gather makes and a reduce-scatter starts
    from."""


class Recomputation(AnswerPart):
    """What activation checkpointing costs and saves, per GPU."""

    flops: int
    """Operations of an optimizer step that repeat what forward did."""
    share: float
    """`flops` over the operations that a step has without recomputation."""
    saved_bytes: int
    """Bytes by which the peak is lower than without recomputation; negative if it is higher."""
