"""From a simulated job to its time: every kind of stage and every length of its batches, on its card and its links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from estimator.contract.answer import ServingTime, Time
from estimator.contract.errors import NotModelled
from estimator.contract.job import Job, Serving
from estimator.contract.job.training import Bucket
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.hardware.accelerator import Accelerator
from estimator.hardware.capability import gpu
from estimator.hardware.capacity import Capacity
from estimator.parallel.strategies import NONE
from estimator.parallel.topology import Topology
from estimator.serving.engines import drafter_of, engine_of
from estimator.serving.hearing import hears_apart
from estimator.serving.llamacpp.passes import passes
from estimator.serving.llamacpp.placement import WeightTensor
from estimator.serving.tensors import stage_layers
from estimator.serving.texts import POOLING, makes_vectors
from estimator.serving.throughput import throughput
from estimator.simulation.ranks import alike
from estimator.simulation.simulation import Simulation, simulate, speed
from estimator.tape import dtypes
from estimator.tape.kernels import kernels
from estimator.tape.tape import Tape, Traffic
from estimator.timing import ggml
from estimator.timing.assumed import ASSUMED, assumed_cases, assumed_clock, assumed_pass, decode_time
from estimator.timing.calibrated import calibrated
from estimator.timing.curves import peak
from estimator.timing.engine import handing_seconds, passed
from estimator.timing.exchange import Wires
from estimator.timing.kernels import Clock, Timer, spent
from estimator.timing.links import links
from estimator.timing.measured import curves, reading
from estimator.timing.passes import Case
from estimator.timing.step import Cases, Stage, cases, spread_of, stage, training_time
from estimator.timing.times import average_time, lengthened, over_stages
from estimator.training.overrides import precision_of

HOPS = "sending to the next stage"
WRITING = "writing answers"
"""Time in which a model that learns from its own answers writes them, or an engine on the same GPU does."""


def duration(job: Job, spec: ModelSpec, place: Topology, card: Capacity, simulated: Simulation) -> Time | None:
    """The time of an optimizer step; None where there is none, the card has no name, or no peak for the job, or torch counted
    it."""
    if card.accelerator is None or simulated.counted is not None:
        return None
    if makes_vectors(job, spec.language_model):
        return _of_texts(job, spec.language_model, place, card, card.accelerator)
    if job.task == "serve":
        return _of_llamacpp(job, spec, place, card.accelerator, simulated) if engine_of(job).reads_gguf else None
    training = job.training
    times = []
    for bucket in training.lengths or [Bucket(tokens=training.sequence_length, share=1)]:
        one = _of_length(job, bucket.tokens) if training.lengths else job
        longest = bucket.tokens == training.sequence_length
        times.append((bucket.share, _step(one, spec, place, card, simulated if longest else None)))
    time, written = average_time(times), _writing(job, spec, card)
    if time is None or written is None:
        return time
    return lengthened(time, WRITING, written.request_seconds, written.range_request_seconds)


def _writing(job: Job, spec: ModelSpec, card: Capacity) -> ServingTime | None:
    """How long each GPU writes the answers that a step of it learns from, all at once; None where it writes none, or is not
    known to."""
    training, asked = job.training, job.training.objective
    if asked is None or asked.generation is None or not isinstance(spec, DecoderSpec):
        return None
    serving = Serving(
        engine=asked.generation.engine,
        context=training.sequence_length,
        prompt_length=max(1, asked.prompt_length),
        output_length=max(1, training.sequence_length - asked.prompt_length),
        concurrency=training.micro_batch_size * training.gradient_accumulation_steps,
    )
    alone = job.model_copy(update={"task": "serve", "serving": serving})
    return served(alone, spec, Topology(1, 1, 1, NONE), card)


def _of_texts(job: Job, spec: ModelSpec, place: Topology, card: Capacity, accelerator: Accelerator) -> Time | None:
    """The time of a pass over texts of which a server makes vectors; None of a model with a tower of its own for images."""
    if not hasattr(spec, "num_attention_heads"):
        return None
    return _pass(job, spec, place, accelerator, speed(job, spec, place, gpu(job, card)), POOLING)


def _of_llamacpp(job: Job, spec: ModelSpec, place: Topology, card: Accelerator, simulated: Simulation) -> Time | None:
    """The time of a token; None where the host's part takes most of it, where GPUs take turns, and of an encoder."""
    if spec.language_model.encodes or on_host(job, spec) or job.hardware.gpus > 1 or job.serving.model_draft is not None:
        return None
    return decode_time(simulated.phases.phases[-1].end_bytes, job.serving.concurrency, place.gpus, card)


def on_host(job: Job, spec: ModelSpec) -> bool:
    """Whether a part of the model may lie in the host's memory, whose speed is not modelled."""
    asked = job.serving
    partly = asked.gpu_layers is not None and asked.gpu_layers <= spec.depth
    return bool(partly or asked.cpu_moe or asked.n_cpu_moe or asked.override_tensor)


def served(
    job: Job, spec: ModelSpec, place: Topology, card: Capacity, tensors: tuple[WeightTensor, ...] | None = None
) -> ServingTime | None:
    """How fast a job serves; None where the card has no name, or no peak for the job, or nothing like its cache was measured.

    `tensors`: those of a GGUF file that llama.cpp serves.
    """
    accelerator = card.accelerator
    if accelerator is None:
        return None
    if engine_of(job).reads_gguf:
        text = spec.language_model
        unknown = text.encodes or on_host(job, text) or job.serving.model_draft is not None
        found = None if unknown else ggml.timed(job, accelerator, passes(job.serving, text, tensors))
        return throughput(job, replace(place, data=1), *found) if found else None  # layers are divided, not requests
    apart = not engine_of(job).timed(job.serving, place)
    if job.serving.kv_cache not in dtypes.BY_NAME or job.serving.runner == "pooling" or apart:
        return None
    text = spec.language_model
    if not _has_kernels(job, text):
        return None
    spec = text
    if place.pipeline > 1:
        if not isinstance(spec, DecoderSpec):
            return None
        return _over_stages(job, spec, place, card, accelerator)
    tape, drafter = speed(job, spec, place, gpu(job, card)), drafter_of(job, spec)
    prefill, decode = (_pass(job, spec, place, accelerator, tape, phase) for phase in ("prefill", "decode"))
    if prefill is None or decode is None:
        return None
    guessed = drafter.tokens if drafter else 0
    return throughput(job, place, prefill, decode, guessed, handed=handing_seconds(job.serving))


def _has_kernels(job: Job, spec: ModelSpec) -> bool:
    """Whether it is known which kernels an engine runs of a model that writes texts."""
    kept = spec.cache_layers if engine_of(job).continuous else ()
    if isinstance(spec, DecoderSpec):
        return bool((spec.cached and spec.runs) or kept)
    return bool(kept) and (hears_apart(spec) or all(layer.kind == "state" for layer in kept))


def _over_stages(job: Job, spec: DecoderSpec, place: Topology, card: Capacity, accelerator: Accelerator) -> ServingTime | None:
    """A pipeline: as many batches are on their way as there are stages, each of a part of the sequences, and a prompt's chunks
    follow each other from stage to stage (vllm/config/vllm.py, `max_concurrent_batches`; v1/core/sched/scheduler.py). With p
    stages of at most l of L layers, and a prompt in m chunks,

        decoding step = a pass of all layers over C/p sequences x p l / L + (p - 1) hops,  prompt = (m + p - 1) / (m p) of a pass
    """
    asked, stages, depth = job.serving, place.pipeline, spec.num_hidden_layers
    longest = max(len(stage_layers(depth, (stage, stages))) for stage in range(stages)) * stages / depth
    part = asked.model_copy(update={"concurrency": -(-asked.concurrency // stages)})
    one, alone = job.model_copy(update={"serving": part}), replace(place, pipeline=1)
    tape = speed(one, spec, alone, gpu(job, card))
    prefill, decode = (_pass(one, spec, place, accelerator, tape, phase) for phase in ("prefill", "decode"))
    chunks = -(-asked.lengths[0] // (asked.max_num_batched_tokens or asked.chunked_prefill_size or asked.lengths[0]))
    if prefill is None or decode is None:
        return None
    batches = min(stages, asked.concurrency)
    prefill = over_stages(prefill, (chunks + stages - 1) * longest / (chunks * stages), 1, 1 / stages)
    decode = over_stages(decode, longest if batches == stages else 1.0, batches, batches / stages)
    wires = Wires(None, links(job.hardware, accelerator), place)
    width = 2 * spec.hidden_size * 2  # hidden states and residual, in 16 bits

    def sent(found: Time, tokens: int) -> Time:
        hops = (stages - 1) * wires.seconds(Traffic("receive", "pipeline", stages, tokens * width, "", None))
        return lengthened(found, HOPS, hops, (hops, hops))

    reading, writing = sent(prefill, asked.lengths[0]), sent(decode, part.concurrency)
    return throughput(job, place, reading, writing, engaged=chunks / (chunks + stages - 1), handed=handing_seconds(job.serving))


def _pass(job: Job, spec: ModelSpec, place: Topology, card: Accelerator, tape: Tape, phase: str) -> Time | None:
    """The time of a served model's pass."""
    try:
        measured = curves(card.name)
        wires = Wires(measured, links(job.hardware, card), place)
        server = job.serving.engine if engine_of(job).continuous else ""
        mxfp8 = bool(job.serving.moe_mxfp8) or server == "sglang"
        clock = Clock(card, measured, reading=reading(card), engine=server, mxfp8=mxfp8)
        return passed(job, spec, tape, clock, wires, phase)
    except NotModelled:
        return assumed_pass(job, spec, tape, card, Wires(None, links(job.hardware, card), place), phase)


def _step(job: Job, spec: ModelSpec, place: Topology, card: Capacity, simulated: Simulation | None) -> Time | None:
    """The time of a step whose batches have one length."""
    accelerator = card.accelerator
    assert accelerator is not None
    compute = _compute(job, place, accelerator)
    places = alike(job, spec, place)
    alone = simulated if place.pipeline == 1 else None
    simulations = {one: alone or simulate(job, spec, one, gpu(job, card)) for one in dict.fromkeys(places)}
    for timed in (_measured, _assumed):
        try:
            return timed(job, place, accelerator, compute, [simulations[one] for one in places])
        except NotModelled:
            continue
    return None


def _compute(job: Job, place: Topology, card: Accelerator) -> str:
    """The type that a job's products run in."""
    return "tf32" if job.training.tf32 and "tf32" in card.peak else precision_of(job, place).compute.name


def arithmetic_seconds(job: Job, place: Topology, card: Accelerator, tape: Tape, again: bool = False) -> float | None:
    """Seconds of the products and the attention of a micro-batch on a tape, as a step's expected time has them, and of those that
    are done `again`; None where no time is known. A step takes no less, however ranks share its weights."""
    compute = _compute(job, place, card)
    for clock_of in (_clock, _assumed_clock):
        try:
            clock, case = clock_of(card, compute)
            case = calibrated(case, job.calibration)
            seconds = 0.0
            for name in ("forward", "backward"):
                once = (one for one in kernels(tape, name) if one[0].flops and (again or not one[0].repeated))
                found = spent(once, clock, tape.passes(name)).seconds
                seconds += sum(each * case.factors[kind] for kind, each in found.items())
        except NotModelled:
            continue
        return seconds * (1 + case.gaps)
    return None


def _clock(card: Accelerator, compute: str) -> tuple[Timer, Case]:
    measured = curves(card.name)
    return Clock(card, measured, compute == "tf32"), cases(measured)[1]


def _assumed_clock(card: Accelerator, compute: str) -> tuple[Timer, Case]:
    return assumed_clock(card, compute), assumed_cases()[1]


def _measured(job: Job, place: Topology, card: Accelerator, compute: str, simulations: Sequence[Simulation]) -> Time:
    """The time of a step whose pipeline's ranks are these, by curves; `NotModelled` where there are none."""
    measured = curves(card.name)
    clock = Clock(card, measured, compute == "tf32")
    wires = Wires(measured, links(job.hardware, card), place, job.parallelism.replicas or 1)
    stages = _stages(job, simulations, clock, wires)
    return training_time(job, stages, place, peak(card, compute), _own(job, cases(measured)), spread_of(measured))


def _assumed(job: Job, place: Topology, card: Accelerator, compute: str, simulations: Sequence[Simulation]) -> Time:
    """The time of a step on a card without curves, by stated shares of its peak; `NotModelled` where the peak is not known."""
    clock, wires = assumed_clock(card, compute), Wires(None, links(job.hardware, card), place, job.parallelism.replicas or 1)
    stages = _stages(job, simulations, clock, wires)
    return training_time(job, stages, place, clock.peak, _own(job, assumed_cases()), ASSUMED)


def _own(job: Job, three: Cases) -> Cases:
    """The cases of the machine that the job was calibrated on."""
    low, expected, high = (calibrated(case, job.calibration) for case in three)
    return low, expected, high


def _stages(job: Job, simulations: Sequence[Simulation], clock: Timer, wires: Wires) -> list[Stage]:
    """The stage of each rank; the simulations of most are the same one."""
    kinds = {one: stage(job, one, clock, wires) for one in dict.fromkeys(simulations)}
    return [kinds[one] for one in simulations]


def _of_length(job: Job, tokens: int) -> Job:
    """The job with all batches of one length."""
    changes = {"sequence_length": tokens, "lengths": None}
    return job.model_copy(update={"training": job.training.model_copy(update=changes)})
