"""How long a served model's passes take: a prompt read (prefill), and a step in which every sequence gets a token (decode).

    pass = products + attention + memory-bound kernels + all-reduces + what the GPU waits for the host

Kernels are those of the tape, by the curves (timing/kernels.py). An engine replays a decoding step as a CUDA graph, if it has
captured one of as many sequences, and waits once for its scheduler; transformers' eager modules are launched one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from estimator.contract.answer import Time
from estimator.contract.job import Job, Serving
from estimator.facts import catalogue
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.parallel.topology import Topology
from estimator.serving.engine import texts_at_once
from estimator.serving.engines import drafter_of, engine_of
from estimator.serving.hearing import blocks, frames, hears_apart
from estimator.serving.speed import CHUNK, prompts
from estimator.serving.texts import POOLING
from estimator.tape.kernels import KEPT, counted, flops, kernels
from estimator.tape.tape import EXPERTS, GROUPED, Tape, Work
from estimator.timing.curves import DTYPES, memory_seconds, peak, quantize_seconds
from estimator.timing.exchange import Wires
from estimator.timing.kernels import ATTENTION, CACHED, KERNELS, MEMORY, PRODUCTS, Clock
from estimator.timing.measured import shared
from estimator.timing.passes import LAUNCHES, Parts
from estimator.timing.step import efficiencies
from estimator.timing.times import Done, answered

SQUARES = 8
"""Bytes of a token: the sums of the squares of its queries and of its keys, in float32."""
ALL_REDUCE = Path(__file__).parent / "all_reduce.yaml"
WEIGHTS, CACHE, REDUCED, SCHEDULING = "reading weights", "reading the cache", "all-reduce (tensor)", "scheduling"
JOINED, NORM = "add", "rms_norm"
"""Kernels that an engine runs as part of the norm after them (vLLM's `fused_add_rms_norm`), and norms."""


def merged(works: Iterable[Work]) -> Iterator[Work]:
    """Kernels, with linear layers that multiply the same numbers as one product: vLLM's `QKVParallelLinear` and
    `MergedColumnParallelLinear`."""
    alike: dict[tuple[object, ...], list[Work]] = defaultdict(list)
    for number, work in enumerate(works):
        mine = (work.phase, work.slot, work.source, work.operation) if work.source else number
        alike[mine,].append(work)
    for first, *others in alike.values():
        if not others:
            yield first
            continue
        assert first.form
        (count, m, _, k), dtype = first.form
        again = len(others) * m * k * dtype.itemsize
        together = [first, *others]
        wide = sum(work.form[0][2] for work in together if work.form)
        yield first._replace(
            flops=sum(work.flops for work in together),
            nbytes=sum(work.nbytes for work in together) - again,
            form=((count, m, wide, k), dtype),
        )


def seconds_of(job: Job, spec: ModelSpec, place: Topology, tape: Tape, clock: Clock, phase: str) -> tuple[Parts, float]:
    """Seconds of a phase's kernels on one GPU, by what they go to, and how many there are."""
    found: Parts = defaultdict(float)
    many, engine = 0.0, engine_of(job).continuous
    begun, fused = memory_seconds(clock.curves, clock.card, 0), engine_of(job).fused
    decoder = spec if isinstance(spec, DecoderSpec) else None
    within = (JOINED, NORM) if phase == "decode" and decoder is not None and fused.norms(decoder, place) else (JOINED,)
    for work, times in joined(tape, phase) if engine else kernels(tape, phase):
        kind, seconds = clock.kernel(work)
        if engine and work.operation in within:
            seconds -= begun
        if work.form and (name := clock.quantizes(work)):
            (_, m, n, k), _ = work.form
            if decoder is not None and fused.quantized(decoder, place, job.serving.weights, n, k):
                seconds -= quantize_seconds(clock.curves, clock.card, m, k, name)
        if kind == PRODUCTS and _reads(work, clock):
            kind = WEIGHTS
        if kind == ATTENTION and phase == "decode":
            kind = CACHE
        found[kind] += seconds * times
        many += times
    return found, many


@lru_cache(maxsize=KEPT)
def joined(tape: Tape, phase: str) -> list[tuple[Work, int]]:
    """The kernels of an engine's phase."""
    return counted(merged(work for work in tape.work if work.phase == phase))


def _reads(work: Work, clock: Clock) -> bool:
    """Whether a product waits for the memory, not for its arithmetic."""
    return work.nbytes / (clock.card.memory_bandwidth.value * 1e9) > work.flops / peak(clock.card, clock.arithmetic(work))


def reduced_seconds(wires: Wires, ranks: int, nbytes: int) -> float:
    """One all-reduce of an engine: the faster of NCCL's and, in a node with fast links, its own kernel for few bytes."""
    _, nodes = wires.span("tensor", ranks)
    usual = wires.collective("all_reduce", nbytes, "tensor", ranks)
    data = catalogue.shipped(ALL_REDUCE)
    whose = wires.curves and (wires.curves.borrowed_from or wires.curves.name)
    times = data["microseconds"].get(whose, {}).get(ranks)
    sizes = data["bytes"]
    if times is None or nodes > 1 or wires.links.link <= shared().fastest_pcie.value or nbytes > sizes[-1]:
        return usual
    for (low, fast), (high, slow) in pairwise(zip(sizes, times, strict=True)):
        if nbytes <= high:
            own: float = 1e-6 * (fast + max(0, nbytes - low) / (high - low) * (slow - fast))
            return min(usual, own)
    return usual


def batch(job: Job, phase: str, each: int = 1) -> tuple[int, int]:
    """Tokens of a pass that have logits, and all: the last of each prompt and whole prompts, or so many of each sequence. Texts
    that are made vectors have none."""
    serving = job.serving
    if phase == POOLING:
        return 0, texts_at_once(serving) * serving.context
    if phase == "prefill":
        return prompts(serving), prompts(serving) * serving.lengths[0]
    tokens = serving.concurrency * each
    return tokens, tokens


def exchanged(job: Job, spec: ModelSpec, wires: Wires, phase: str, itemsize: int) -> float:
    """What tensor-parallel ranks exchange in a pass, and in those of what guesses tokens ahead."""
    drafter = drafter_of(job, spec) if isinstance(spec, DecoderSpec) else None
    tokens, all_tokens = batch(job, phase, drafter.checked if drafter else 1)
    found = between_ranks(spec, wires, all_tokens, tokens, itemsize)
    if phase == "prefill" and wires.place.tensor > 1 and hears_apart(spec):
        encoded = tokens * frames(spec) * spec.hidden_size * itemsize
        found += blocks(spec)[0] * reduced_seconds(wires, wires.place.tensor, encoded)
    if drafter is None or not drafter.passes:
        return found
    own = drafter.spec.language_model if drafter.spec is not None else spec.model_copy(update={"num_hidden_layers": 1})
    each, whole = batch(job, phase, drafter.branches)
    return found + (drafter.passes if phase == "decode" else 1) * between_ranks(own, wires, whole, each, itemsize)


def between_ranks(spec: ModelSpec, wires: Wires, tokens: int, sequences: int, itemsize: int) -> float:
    """What tensor-parallel ranks exchange in a pass: embeddings and, twice in each layer, hidden states are reduced (vLLM's
    `VocabParallelEmbedding` and `RowParallelLinear`), the logits gathered, and what a norm over all heads needs of each."""
    ranks, layers = wires.place.tensor, spec.depth
    if ranks == 1:
        return 0.0
    hidden = reduced_seconds(wires, ranks, tokens * spec.hidden_size * itemsize)
    found = (1 + (blocks(spec)[1] if hears_apart(spec) else 2 * layers)) * hidden
    if sequences:
        logits = sequences * int(getattr(spec, "vocab_size")) * itemsize  # noqa: B009 (a field of all that write texts)
        found += wires.collective("all_gather", logits, "tensor", ranks)
    if not isinstance(spec, DecoderSpec):
        return found
    if spec.heads_normed_together == "reduced":
        found += layers * reduced_seconds(wires, ranks, tokens * SQUARES)
    elif spec.heads_normed_together == "gathered":
        for heads in (spec.num_attention_heads, spec.num_key_value_heads):
            found += layers * wires.collective("all_gather", tokens * heads * spec.head_dim * itemsize, "tensor", ranks)
    return found


def steps_of(tokens: int, phase: str) -> int:
    """Times that a server schedules something in a pass."""
    return -(-tokens // CHUNK) if phase == "prefill" else 1


def handing_seconds(serving: Serving) -> tuple[float, float, float]:
    """What handing out a token takes at least, is expected to, and takes at most, where that was measured of an engine."""
    fact = efficiencies().get(f"{serving.engine}_token")
    return (1e-6 * fact.low, 1e-6 * fact.value, 1e-6 * fact.high) if fact else (0.0, 0.0, 0.0)


def launches(job: Job, phase: str) -> bool:
    """Whether the host launches each kernel of a pass; those of a prompt it does well ahead of a server's GPU."""
    engine = engine_of(job)
    return not engine.continuous or (phase == "decode" and not engine.captures(job.serving))


def passed(job: Job, spec: ModelSpec, tape: Tape, clock: Clock, wires: Wires, phase: str) -> Time:
    """The time of a prefill pass, or of a decoding step."""
    engine, eager, known = engine_of(job).continuous, launches(job, phase), efficiencies()
    _, tokens = batch(job, phase)
    itemsize = next(work.form[1].itemsize for work in tape.work if work.form)
    parts, launched = seconds_of(job, spec, wires.place, tape, clock, phase)
    if among := exchanged(job, spec, wires, phase, itemsize):
        parts[REDUCED] = among
    steps = steps_of(tokens, phase)
    step, launch = known["serving_step"], known["launch_generating"]

    def case(factors: dict[str, tuple[float, float]] | None, at: int, wait: float, each: float) -> Parts:
        found = {kind: seconds * (factors[kind][at] if factors else 1.0) for kind, seconds in parts.items()}
        if eager:
            found[LAUNCHES] = max(0.0, launched * each * 1e-6 - sum(found.values()))
        return {**found, SCHEDULING: steps * wait * 1e-3} if engine else found

    product = next(work for work in tape.work if work.form and not _attends(work) and not _of_experts(work))
    kind = clock.arithmetic(product)
    wide = _factors(clock, wires, product)
    low, high = case(wide, 0, step.low, launch.low), case(wide, 1, step.high, launch.high)
    done = Done(tokens * wires.place.data, wires.place.gpus, flops(tape, phase).total, 0, peak(clock.card, kind))
    where = f"measured on {clock.curves.borrowed_from}, not on this card, " if clock.curves.borrowed_from else ""
    reason = f"kernels {where}as fast as the fastest tenth of what was measured or as slow as the slowest; waiting for the host"
    return answered(
        case(None, 0, step.value, launch.value), (sum(low.values()), sum(high.values())), done, f"{reason} less or more"
    )


def _attends(work: Work) -> bool:
    return work.operation in KERNELS


def _of_experts(work: Work) -> bool:
    return work.operation == GROUPED or work.operation.endswith(EXPERTS)


def _factors(clock: Clock, wires: Wires, product: Work) -> dict[str, tuple[float, float]]:
    """What each part may be multiplied with, at least and at most, where most products are like this one."""
    curves = clock.curves
    products = curves.matmul[DTYPES[clock.arithmetic(product)][1]].spread.factor
    found = {PRODUCTS: products, WEIGHTS: products, ATTENTION: curves.attention_range}
    found |= {MEMORY: curves.memory.factor, CACHE: curves.decode.factor}
    for part, kind in ((WEIGHTS, clock.read_as(product)), (CACHE, CACHED)):
        if fact := clock.reading.get(kind):
            found[part] = fact.value / fact.high, fact.value / fact.low
    found[REDUCED] = curves.collectives["all_reduce"].spread.factor
    low, high = curves.widen
    return {kind: (least * low, most * high) for kind, (least, most) in found.items()}
