"""What often differs between a job as it is written down and as it ran: each is a change of the job, to be estimated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from estimator.contract.job import Job
from estimator.measured.compare import Compared
from estimator.measured.record import Record
from estimator.parallel.strategies import strategy_of
from estimator.tape import dtypes


class Reason(NamedTuple):
    """A change of a job, what it is called, and what it would mean."""

    slug: str
    text: str
    change: dict[str, Any]


PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")
PRECISION = "another precision: {}"
LOGITS = dtypes.float32.itemsize


def reasons(job: Job) -> Iterator[Reason]:
    """For a job with its defaults, those that go with it; whether a change is modelled only trying says."""
    yield from _of_training(job) if job.task == "train" else _of_serving(job)


def by_size(found: Compared, record: Record) -> Iterator[Reason]:
    """Settings that a size of the record gives: of llama.cpp's cache the tokens that it holds; of an evaluation that keeps logits
    the batches that have been gathered when the failed allocation was made, each as large as the logits of one."""
    job, spec = found.run.job, found.run.model.spec
    cache = next((row for row in found.rows if row.quantity == "cache" and row.predicted), None)
    if job.task == "serve" and found.memory.devices and cache is not None and cache.measured > 1.5 * (cache.predicted or 0):
        asked, own = job.serving.context, int(getattr(spec.language_model, "max_position_embeddings", 0))
        if own > asked:
            yield _serving("longer-context", f"the model's own context, of {own} tokens", context=own)
        requests = round(cache.measured / (cache.predicted or 1))
        said = f"a cache of {requests * asked} tokens: the context once for each of {requests} requests"
        yield _serving("longer-context", said, context=requests * asked)
    requested, training = record.amounts.get("requested"), job.training
    if job.task == "train" and training.evaluation is None and requested is not None and training.sequence_length:
        for batch in dict.fromkeys((8, training.micro_batch_size)):
            one = batch * training.sequence_length * int(getattr(spec, "vocab_size", 0)) * LOGITS
            batches = round(requested.bytes / one) if one else 0
            if batches > 1:
                said = f"evaluation between steps, logits of {batches} batches of {batch} kept on the GPU for metrics"
                evaluation = {"micro_batch_size": batch, "keeps": "logits", "batches": batches}
                yield Reason("evaluation", said, {"training": {"evaluation": evaluation}})


def _of_training(job: Job) -> Iterator[Reason]:
    asked = job.training
    for name in PRECISIONS:
        if name != asked.precision:
            yield _training("precision", PRECISION.format(name), precision=name)
    if asked.attention != "eager":
        said = f"{asked.attention} was not taken: eager attention, which holds the scores"
        yield _training("eager-attention", said, attention="eager")
    if asked.activation_checkpointing != "none":
        yield _training("checkpointing-off", "activation checkpointing was off", activation_checkpointing="none")
    if asked.activation_checkpointing != "full":
        yield _training(
            "checkpointing-on", "every layer was recomputed (gradient checkpointing)", activation_checkpointing="full"
        )
    if asked.loss != "eager":
        yield _training("logits", "the loss was not fused: logits, and their copies in float32, are held whole", loss="eager")
    elif asked.implementation == "transformers" and asked.transformers_release == "5":
        said = "an older transformers, in which the model's logits are made float32"
        yield _training("logits", said, transformers_release="4.45")
    if asked.optimizer in ("adamw", "adam"):
        if asked.optimizer_implementation != "foreach":
            said = "the optimizer's foreach implementation, which makes temporaries as large as the parameters"
            yield _training("optimizer", said, optimizer_implementation="foreach")
        else:
            said = "the optimizer's fused implementation, which makes no temporaries (or one parameter at a time)"
            yield _training("optimizer", said, optimizer_implementation="fused")
        if asked.optimizer_implementation != "forloop":
            said = "the optimizer's loop over parameters, with temporaries as large as each (foreach=False)"
            yield _training("optimizer", said, optimizer_implementation="forloop")
        yield _training("optimizer", "an 8-bit optimizer", optimizer="adamw-8bit")
    else:
        yield _training("optimizer", "AdamW in place of the job's optimizer", optimizer="adamw", optimizer_implementation=None)
    if asked.adapter is not None:
        yield _training("adapter", "all weights were trained: the adapter was not in use", adapter=None, quantization=None)
    if asked.quantization is not None:
        yield _training("quantization", "weights were not quantized", quantization=None)
        if asked.upcast_unquantized != "all":
            said = "what is not quantized was made float32 (prepare_model_for_kbit_training)"
            yield _training("upcast", said, upcast_unquantized="all")
    if asked.evaluation is None:
        for batch in dict.fromkeys((8, asked.micro_batch_size)):
            said = f"evaluation between steps, {batch} sequences at a time, its logits kept for metrics"
            yield _training("evaluation", said, evaluation={"micro_batch_size": batch, "keeps": "logits"})
    for times in (2, 4):
        if asked.sequence_length:
            said = f"sequences of {times * asked.sequence_length} tokens: they were longer than the job says"
            yield _training("longer-sequences", said, sequence_length=times * asked.sequence_length)
        said = f"{times * asked.micro_batch_size} sequences at a time"
        yield _training("larger-batch", said, micro_batch_size=times * asked.micro_batch_size)
    if asked.sequence_length and asked.sequence_length >= 256:
        said = f"sequences of {asked.sequence_length // 2} tokens: they were shorter than the job says"
        yield _training("shorter-sequences", said, sequence_length=asked.sequence_length // 2)
    if not strategy_of(job).alone and strategy_of(job).name != "ddp":
        change = {"parallelism": {"strategy": "ddp", "replicas": None}}
        yield Reason("not-sharded", f"{strategy_of(job)} was not in use: each GPU holds everything", change)


def _training(slug: str, text: str, **settings: Any) -> Reason:
    return Reason(slug, text, {"training": settings})


def _of_serving(job: Job) -> Iterator[Reason]:
    asked = job.serving
    for weights in ("bf16", "fp8", "awq-int4", "fp32"):
        if weights != asked.weights:
            yield _serving("weights", f"weights in another type: {weights}", weights=weights)
    for kept in ("bf16", "fp8"):
        if kept != asked.kv_cache:
            yield _serving("cache", f"the cache in another type: {kept}", kv_cache=kept)
    if asked.enforce_eager:
        yield _serving("graph-pool", "CUDA graphs were captured, and have a pool of their own", enforce_eager=False)
    else:
        yield _serving("graph-pool", "no CUDA graphs were captured (enforce_eager)", enforce_eager=True)
    for share in (0.8, 0.85, 0.9, 0.95):
        if share != asked.gpu_memory_utilization:
            yield _serving("share", f"another share of the GPU: gpu_memory_utilization {share}", gpu_memory_utilization=share)
    if asked.engine == "llama.cpp":
        for times in (2, 4, 8, 16, 32):
            said = f"a context of {times * asked.context} tokens: the server was given a longer one, or took the model's own"
            yield _serving("longer-context", said, context=times * asked.context)
    if not job.parallelism.tensor or job.parallelism.tensor > 1:
        yield Reason("not-split", "layers were not split over the GPUs", {"parallelism": {"tensor": 1}})


def _serving(slug: str, text: str, **settings: Any) -> Reason:
    return Reason(slug, text, {"serving": settings})
