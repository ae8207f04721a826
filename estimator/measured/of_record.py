"""Reasons that the record itself gives: what it says of fragmentation, of other processes, of an engine's own refusal."""

from __future__ import annotations

from collections.abc import Iterator

from estimator.contract.units import gib
from estimator.families import parameters
from estimator.measured.answers import Hypothesis
from estimator.measured.compare import LOOSE, SAME, Compared
from estimator.measured.oom import KIND as FAILED
from estimator.measured.record import Record
from estimator.measured.refusals import NOTHING, WEIGHTS
from estimator.parallel.strategies import strategy_of
from estimator.serving.vllm.profile import LOGITS, SORTED

OTHER_CARD = 0.2
"""Share by which two cards' memories differ that are not sold as one size."""


def said_by_record(found: Compared, record: Record) -> Iterator[Hypothesis]:
    """Reasons that need no other estimate, the likeliest first."""
    yield from _fragmentation(found, record)
    if "at_start" not in record.numbers:
        yield from _others(found, record)
    yield from _whole(found, record)


def refused(found: Compared, record: Record) -> Iterator[Hypothesis]:
    """What an engine says itself of why it does not start (`refusals`)."""
    amounts, numbers = record.amounts, record.numbers
    if "context" in numbers and ("needed" in amounts or "longest" in numbers):
        context, longest = numbers["context"], numbers.get("longest")
        said = f"a context of {context} tokens is longer than its cache holds"
        if "needed" in amounts:
            said += f": it needs {gib(amounts['needed'].bytes)}, and {gib(amounts['cache'].bytes)} are there"
        change = {"serving": {"context": longest}} if longest else {}
        said += f"; max_model_len {longest} starts" if longest else ""
        yield of_record("context", said, 0, 1.0).model_copy(update={"change": change})
    if "at_start" in numbers:
        yield from _others(found, record)
    if "sequences" in numbers:
        vocabulary = int(getattr(found.run.model.spec.language_model, "vocab_size", 0))
        sequences = numbers["sequences"]
        said = f"sampling {sequences} sequences at once, outside the share that vLLM takes: their logits are "
        said += (
            f"{gib(sequences * vocabulary * LOGITS)} in float32, and sorting them takes up to {SORTED} times that; max_num_seqs"
        )
        yield of_record("sampler", f"{said} is the number", 0, 1.0)
    if NOTHING in numbers:
        yield _without_cache(found)
    if WEIGHTS in numbers:
        weights = found.memory.engine.weights_bytes if found.memory.engine else 0
        said = f"weights of {gib(weights)} leave nothing for the cache of what mem_fraction_static lets it have"
        yield of_record("share", said, 0, 1.0)


def _without_cache(found: Compared) -> Hypothesis:
    """vLLM had no block to give: the share is too small for the job as it is written, or others hold a part of it."""
    engine, card, share = found.memory.engine, found.run.card.memory_bytes, found.run.job.serving.gpu_memory_utilization
    if engine is None or card is None:
        return of_record("share", "what gpu_memory_utilization gives is filled before there is a cache", 0, 1.0)
    filled = engine.weights_bytes + (engine.activation_bytes or 0) + (engine.non_torch_bytes or 0)
    if filled >= share * card:
        said = f"weights of {gib(engine.weights_bytes)}, and {gib(filled - engine.weights_bytes)} beside them, fill the "
        return of_record("share", f"{said}{gib(round(share * card))} that gpu_memory_utilization {share:g} gives", 0, 1.0)
    left = gib(round(share * card) - filled)
    said = f"another process on the GPU counts against the share: alone, {left} would be left for the cache"
    return of_record("another-process", said, 0, 1.0)


def _fragmentation(found: Compared, record: Record) -> Iterator[Hypothesis]:
    """What was reserved and not allocated would have held what was asked for, had it been in one piece; or is the difference."""
    amounts = record.amounts
    if "reserved" not in amounts or "allocated" not in amounts:
        return
    idle = amounts["reserved"].bytes - amounts["allocated"].bytes
    requested = amounts.get("requested")
    if requested is not None and idle >= requested.bytes:
        text = f"fragmentation: {gib(idle)} were reserved and not allocated, and no piece of them had {gib(requested.bytes)}"
        yield of_record("fragmentation", text, -idle, 1.0 if found.same else 0.0)
        return
    expected = (found.memory.reserved_bytes or found.memory.peak_bytes) - found.memory.peak_bytes
    if requested is None and idle - expected > LOOSE * amounts["reserved"].bytes:
        text = f"fragmentation: {gib(idle)} were reserved and not allocated, where {gib(expected)} are expected"
        yield of_record("fragmentation", text, idle - expected, 0.0)


def too_large(found: Compared, record: Record, what: str = "the job as it is written") -> Iterator[Hypothesis]:
    """The job as it is written needs more than the card has: nothing has to differ for an allocation to fail. `what`: another."""
    capacity, memory = record.amounts.get("capacity"), found.memory
    if record.kind != FAILED or capacity is None:
        return
    if memory.engine:
        weights = memory.engine.weights_bytes
        if weights > capacity.bytes:
            text = f"the weights alone need {gib(weights)} of {gib(capacity.bytes)}"
            yield of_record("too-large", text, weights - capacity.bytes, 1.0)
        return
    needed = memory.total_bytes
    if needed <= capacity.bytes:
        return
    parts = sorted(memory.at_peak.items(), key=lambda part: -part[1])[:2]
    said = " and ".join(f"{gib(size)} of {name.replace('_', ' ')}" for name, size in parts)
    text = f"{what} needs {gib(needed)} of {gib(capacity.bytes)}, with {said} at its peak"
    yield of_record("too-large", text, needed - capacity.bytes, 1.0)


def of_another_card(found: Compared, record: Record) -> str:
    """What is said where the record is of a GPU with other memory than the job's."""
    capacity, own = record.amounts.get("capacity"), found.memory.capacity_bytes
    if capacity is None or not own or abs(capacity.bytes - own) <= OTHER_CARD * own:
        return ""
    return f"; the record is of a GPU of {gib(capacity.bytes)}, the job's has {gib(own)}"


def _whole(found: Compared, record: Record) -> Iterator[Hypothesis]:
    """Where ranks share the parameters: each held the whole model while it was loaded (ZeRO-3 not active at init)."""
    level, job = record.amounts.get("allocated"), found.run.job
    if level is None or found.same or job.task != "train" or strategy_of(job).alone or strategy_of(job).name == "ddp":
        return
    numbers = sum(one.total for one in parameters(found.run.model.spec))
    for kind, width in (("half precision", 2), ("float32", 4)):
        whole = numbers * width
        if abs(level.bytes - whole) <= level.within + SAME * level.bytes:
            text = f"each rank held the whole model, {gib(whole)} in {kind}, before it was shared"
            yield of_record("whole-model", text, level.bytes - whole, 1.0)


def _others(found: Compared, record: Record) -> Iterator[Hypothesis]:
    """What of the GPU neither this process has nor is free. Older messages do not say what the process has: beside what torch
    reserved it is what is reckoned for context and libraries."""
    amounts = record.amounts
    held = amounts["others"].bytes if "others" in amounts else 0
    if "at_start" in record.numbers:
        held = amounts["capacity"].bytes - amounts["free"].bytes
    if not held and {"capacity", "free"} <= amounts.keys() and amounts.keys() & {"used", "reserved"}:
        overhead = sum(found.memory.overhead.values())
        own = amounts["used"].bytes if "used" in amounts else amounts["reserved"].bytes + overhead
        held = amounts["capacity"].bytes - amounts["free"].bytes - own
    capacity = amounts.get("capacity")
    if capacity is None or held <= LOOSE * capacity.bytes:
        return
    alone = found.memory.total_bytes <= capacity.bytes
    yield of_record("another-process", f"another process holds {gib(held)} of the GPU", held, 1.0 if alone else 0.0)


def of_record(slug: str, text: str, difference: int, removed: float) -> Hypothesis:
    return Hypothesis(
        slug=slug,
        text=text,
        change={},
        predicted_bytes=None,
        difference_bytes=difference,
        removed=removed,
        explains=removed == 1.0,
        culprit=None,
    )
