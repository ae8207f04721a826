"""Evaluation between two steps: a forward pass without gradients, and what of earlier batches is still on the GPU.

After transformers' trainer.py (5.23), `evaluation_loop` and `prediction_step`, trainer_seq2seq.py's where the model writes, and
trainer_pt_utils.py, `EvalLoopContainer`: each batch's tensors are joined with those before in a new tensor, until all move to
the host. The count of tokens is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Lora
from estimator.contract.job.evaluation import Evaluation
from estimator.families.build import Builder
from estimator.families.heads import Batch, Model
from estimator.families.model_output import widened
from estimator.parallel.strategies import strategy_of
from estimator.tape import dtypes
from estimator.tape.autocast import autocast
from estimator.tape.dtypes import DType
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat
from estimator.training.generation import Writer

PHASE = "evaluate"


def evaluation(job: Job, build: Builder, model: Model, writer: Writer | None, cast: DType | None) -> Callable[[], None] | None:
    """What a job runs between its steps, `writer` if the model is to write something; None if it does not evaluate."""
    training, asked = job.training, job.training.evaluation
    if asked is None:
        return None
    strategy = strategy_of(job)
    if "evaluation" not in strategy.models:
        raise NotModelled(f"evaluation under {strategy} is not modelled yet; one GPU and ddp are", "training.evaluation")
    if training.objective:
        raise NotModelled(f"evaluation of {training.objective.type} is not modelled yet", "training.evaluation")
    beside = (
        (
            training.adapter and not isinstance(training.adapter, Lora),
            f"an adapter of type {training.adapter and training.adapter.type}",
        ),
        (training.attention_mask != "none", f"attention_mask {training.attention_mask}"),
        (training.loss == "chunked", "loss chunked"),
        (any(where != "none" for _, where in job.offload), "offloading"),
    )
    for unknown, what in beside:
        if unknown:
            raise NotModelled(f"evaluation with {what} is not modelled yet; leave one out", "training.evaluation")
    if asked.keeps == "logits" and asked.generates:
        raise Contradiction("what is generated is gathered in place of logits: leave keeps out", "training.evaluation.keeps")
    if asked.keeps == "logits" and training.head in ("seq2seq-lm", "speech-seq2seq-lm", "contrastive"):
        raise NotModelled(f"logits of a {training.head} are not modelled yet, its loss is", "training.evaluation.keeps")
    tokens = asked.sequence_length or training.sequence_length
    batch = Batch(asked.micro_batch_size, tokens, training.target_length or tokens)
    return partial(evaluate, build, model, writer, asked, batch, cast)


def evaluate(build: Builder, model: Model, writer: Writer | None, asked: Evaluation, batch: Batch, cast: DType | None) -> None:
    """Simulate the first batch, and the last of those that are gathered, which needs most."""
    tape = build.tape
    tape.begin(PHASE)
    tape.evaluating, before = True, tape.grad_enabled
    tape.grad_enabled = False
    latest: list[Tensor] = []
    gathered: list[Tensor] = []
    for count in {1: None, asked.batches: None}:
        if count > 2:
            gathered = [_of_batches(t, count - 1) for t in gathered]
        inputs = model.inputs(tape, batch, build.dtype)
        written = _written(writer, inputs[0], asked.generates)
        latest = _predicted(tape, model, inputs, cast, asked)
        if written is not None:
            latest += [written, inputs[-1]]
        del written
        latest[0] = empty(tape, (batch.sequences,), latest[0].dtype, "repeat")
        if count == 1:
            gathered = latest[:]
        else:
            with tape.losing():
                for i in range(len(latest)):
                    gathered[i] = cat((gathered[i], latest[i]), 0)
    del latest, gathered, inputs
    tape.evaluating, tape.grad_enabled = False, before


def _of_batches(t: Tensor, count: int) -> Tensor:
    """What so many batches like the first have been joined to."""
    with t.tape.losing():
        return empty(t.tape, (count * t.shape[0], *t.shape[1:]), t.dtype, "cat")


def _written(writer: Writer | None, ids: Tensor, answer: int | None) -> Tensor | None:
    """What the model writes after a batch, before its loss is computed (trainer_seq2seq.py, `prediction_step`)."""
    if writer is None or answer is None:
        return None
    return writer(ids, empty(ids.tape, ids.shape, dtypes.int64, "attention_mask"), answer)


def _predicted(tape: Tape, model: Model, inputs: tuple[Tensor, ...], cast: DType | None, asked: Evaluation) -> list[Tensor]:
    """A batch's loss, and the logits and labels if they are gathered, too. Accelerate widens what a model in autocast returns."""
    with autocast(tape, cast):
        loss, held = model.forward(*inputs)
    with tape.losing():
        if cast is not None:
            held = widened(held)
        loss = empty(tape, (), loss.dtype, "mean")
    if asked.keeps == "loss":
        return [loss]
    if not isinstance(held, Tensor):
        raise NotModelled("logits of models that return more beside them are not modelled yet", "training.evaluation.keeps")
    return [loss, held, inputs[-1]]
