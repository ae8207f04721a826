"""Evaluation on fake tensors, with the containers of transformers' Trainer."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import convert_to_fp32
from torch import nn
from transformers.trainer_pt_utils import EvalLoopContainer, nested_detach

from estimator.contract.job import Job
from estimator.contract.job.evaluation import Evaluation
from estimator.verify.batch import batch
from estimator.verify.generation import written
from estimator.verify.live import Live
from estimator.verify.model import autocast, prepare


def evaluate(job: Job, spec: Any, model: nn.Module, live: Live, logs: Any = None) -> dict[str, int]:
    """The peak of an evaluation, batch after batch, until the tensors would move to the host (trainer.py, `evaluation_loop`)."""
    asked = job.training.evaluation
    assert asked is not None
    length = asked.sequence_length or job.training.sequence_length
    sizes = {"micro_batch_size": asked.micro_batch_size, "sequence_length": length}
    shaped = job.model_copy(update={"training": job.training.model_copy(update=sizes)})
    containers = [EvalLoopContainer(True, padding_index=-100) for _ in range(3)]
    start = len(live.log)
    model.eval()
    for _ in range(asked.batches):
        inputs = batch(shaped, spec, model)
        sequences = answered(job, model, inputs, asked.generates, live) if asked.generates else None
        losses, logits, labels = predicted(job, model, inputs, asked)
        if sequences is not None:
            logits, labels = sequences, inputs["labels"]
        losses = losses.repeat(asked.micro_batch_size)
        for container, found in zip(containers, (losses, logits, labels), strict=True):
            if found is not None:
                container.add(found)
        del found, sequences
    model.train()
    if logs is not None:
        logs["evaluate"] = live.log[start:]
    return {"evaluate": live.highest(start)}


def answered(job: Job, model: Any, inputs: Any, answer: int, live: Live) -> torch.Tensor:
    """What a model that accelerate has prepared writes after a batch (trainer_seq2seq.py, `prediction_step`)."""
    plain = model.forward
    prepare(job, model)
    mask = torch.ones_like(inputs["input_ids"])
    sequences = written(model, {**inputs, "attention_mask": mask}, answer, live)
    model.forward = plain
    return sequences


def predicted(job: Job, model: nn.Module, inputs: Any, asked: Evaluation) -> tuple[torch.Tensor, Any, Any]:
    """`prediction_step` of a model that accelerate has prepared."""
    labels = nested_detach(inputs["labels"]) if "labels" in inputs else None  # a contrastive model has none
    with torch.no_grad():
        with autocast(job):
            outputs = model(**inputs)
        if job.training.precision in ("bf16-mixed", "16-mixed"):
            outputs = convert_to_fp32(outputs)
        loss = outputs["loss"].detach().mean()
        logits = tuple(value for name, value in outputs.items() if name != "loss")
    if asked.keeps == "loss":
        return loss, None, None
    logits = nested_detach(logits)
    return loss, logits[0] if len(logits) == 1 else logits, labels
