"""How long a training step takes: its kernels, what ranks exchange, the pipeline's bubble, the optimizer.

    step = micro-batches · slowest stage + bubble + optimizer

A stage's pass is forward and backward of one micro-batch (timing/passes.py). The bubble is what a pipeline's schedule takes
beyond its slowest rank's passes (timing/pipeline.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from estimator.contract.answer import Time
from estimator.contract.job import Job
from estimator.facts.fact import MeasuredFact, measured
from estimator.parallel.megatron import bucket_elements
from estimator.parallel.pipeline import pipeline_of
from estimator.parallel.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Pipeline
from estimator.parallel.topology import Topology
from estimator.simulation.simulation import Simulation
from estimator.tape.kernels import flops, kernels
from estimator.tape.tape import Work
from estimator.timing.exchange import Wires
from estimator.timing.host import ON_HOST, on_host, optimizer_seconds, read_from_nvme
from estimator.timing.kernels import ATTENTION, MEMORY, PRODUCTS, Timer, spent
from estimator.timing.loader import LOADER, loading_seconds
from estimator.timing.measured import Curves, under_load
from estimator.timing.optimizer import optimizer_bytes
from estimator.timing.passes import Case, Parts, Pass, phase, total
from estimator.timing.pipeline import makespan
from estimator.timing.times import Done, answered

FILE = Path(__file__).parent / "efficiency.yaml"
OPTIMIZER, BUBBLE = "optimizer", "pipeline bubble"
RECEIVE = "receive"
Cases = tuple[Case, Case, Case]
"""Low, expected and high."""
Behind = Mapping[str, tuple[str, float]]
"""Exchanges by name: the pass beside which they run, and the share of them that nothing is left for to hide."""


def efficiencies() -> dict[str, MeasuredFact]:
    """Stated shares and constants, by name."""
    return measured(FILE)


@dataclass(frozen=True, slots=True)
class Stage:
    """One rank of a pipeline: forward and backward of a micro-batch, in all of its chunks, and what comes once in a step.

    `late`: of backward, the weights' gradients that a schedule may put off. `transfer`: seconds in which a hidden state comes
    from another rank while other passes run; 0 where a pass waits for it, and has it in its own time. `flops`: of a micro-batch.
    `behind`: exchanges of what comes once that run beside a micro-batch's pass, and the share of each that is left when it ends.
    """

    forward: Pass
    backward: Pass
    once: Pass
    late: Pass
    transfer: float
    flops: int
    repeated: int
    behind: Behind = field(default_factory=dict)

    def each(self, case: Case) -> Parts:
        return total((1, one.parts(case)) for one in (self.forward, self.backward))

    def seconds(self, case: Case, chunks: int) -> dict[str, float]:
        """Seconds of each kind of pass of one chunk, all chunks taken to be alike."""
        forward, backward, late = (_sum(one.parts(case)) / chunks for one in (self.forward, self.backward, self.late))
        return {FORWARD: forward, BACKWARD: backward, INPUT: backward - late, WEIGHT: late}

    def finishing(self, case: Case) -> Parts:
        """What comes once in a step, without what a micro-batch's pass hides."""
        found = self.once.parts(case)
        if case.taken is None:
            return found
        for name, (beside, last) in self.behind.items():
            if name in found:
                computing = _sum((self.forward if beside == FORWARD else self.backward).parts(case))
                sent = found[name]
                found[name] = max(sent, computing + case.taken * sent) - computing + last * sent
        return found


def _behind(job: Job, simulation: Simulation, place: Topology) -> Behind:
    """Gradients that Megatron-LM reduces in the last micro-batch's backward pass, but for the last bucket; and weights that it
    gathers in the next step's first forward pass, which waits for the first."""
    asked = job.parallelism
    operations = {"reduce_scatter": BACKWARD, "all_reduce": BACKWARD} if asked.overlap_grad_reduce else {}
    operations |= {"all_gather": FORWARD} if asked.overlap_param_gather else {}
    ranks = {"data": place.data * place.context, "expert_data": place.expert_data}
    elements = dict.fromkeys(ranks, 0)
    for one in simulation.build.parameters:
        elements["expert_data" if ".experts." in one.name else "data"] += one.trainable * one.tensor.numel * one.times
    return {
        f"{operation} ({group})": (beside, min(1.0, bucket_elements(ranks[group]) / elements[group]))
        for operation, beside in operations.items()
        for group in ranks
        if elements[group]
    }


def stage(job: Job, simulation: Simulation, clock: Timer, wires: Wires) -> Stage:
    """The times of a rank's passes, from its simulation."""
    tape, strategy = simulation.build.tape, wires.place.strategy
    hidden = frozenset() if job.training.implementation == "megatron" else strategy.overlapped
    forward, backward = (
        phase(tape, clock, wires, hidden, name, job.parallelism.tp_comm_overlap).fetching(read_from_nvme(job, simulation, name))
        for name in ("forward", "backward")
    )
    transfer = 0.0
    if job.parallelism.pipeline_schedule == "interleaved":  # receives one pass ahead (`overlap_p2p_comm`)
        transfer = next((wires.seconds(one) for one in tape.traffic if one.operation == RECEIVE), 0.0)
        forward, backward = (one.without(RECEIVE) for one in (forward, backward))
    once = phase(tape, clock, wires, frozenset(), "optimizer_step")
    if on_host(job):
        once = replace(once, waited={**once.waited, ON_HOST: optimizer_seconds(job, simulation)})
    else:
        moved = optimizer_bytes(job.training, simulation.build.parameters, tape)
        kind, step = clock.kernel(Work(OPTIMIZER, 0, round(moved), None, "optimizer_step", None, False))
        once = replace(once, kernels={**once.kernels, kind: once.kernels.get(kind, 0.0) + step})
    put_off = spent((one for one in kernels(tape, "backward") if one[0].late), clock, tape.passes("backward"))
    late = Pass(put_off.seconds, 0, {}, {}, 0)
    done = [flops(tape, name) for name in ("forward", "backward")]
    counts = sum(one.total for one in done), sum(one.repeated for one in done)
    return Stage(forward, backward, once, late, transfer, *counts, _behind(job, simulation, wires.place))


def spread(stages: Sequence[Stage], pipeline: Pipeline, micro_batches: int, case: Case) -> Parts:
    """Seconds of a step, by what they go to: those of the slowest stage, and the bubble in which it waits for others."""
    kinds = {id(one): one for one in stages}  # most stages are alike
    slowest = max((one.each(case) for one in kinds.values()), key=_sum)
    last = max((one.finishing(case) for one in kinds.values()), key=_sum)
    found = total([(micro_batches, slowest)])
    if len(stages) > 1:
        chunks = 1 if pipeline.schedule == "dualpipe" else pipeline.chunks  # a micro-batch passes one of a rank's
        seconds = {key: one.seconds(case, chunks) for key, one in kinds.items()}
        transfer = max(one.transfer for one in kinds.values()) * case.exchange
        found[BUBBLE] = makespan(pipeline, [seconds[id(one)] for one in stages], transfer) - _sum(found)
    for name, seconds_once in last.items():
        kind = OPTIMIZER if name in (PRODUCTS, ATTENTION, MEMORY) else name
        found[kind] = found.get(kind, 0.0) + seconds_once
    return {name: seconds for name, seconds in found.items() if seconds > 0}


def _sum(parts: Parts) -> float:
    return sum(parts.values())


def cases(curves: Curves) -> Cases:
    """Low: kernels as fast as the fastest tenth of those measured, exchanges hidden as far as they can;
    high: as slow as the slowest, and nothing hidden. Curves of another card are widened."""
    known = efficiencies()
    products = curves.matmul["bfloat16"].training_spread.factor
    attention, memory = curves.attention_range, curves.memory.factor
    exchanges = curves.collectives["all_gather"].spread.factor
    load = under_load(curves.name)
    slower = (load.low, load.value, load.high) if load else (1.0, 1.0, 1.0)

    def case(at: int, taken: float | None, gaps: float, launch: float) -> Case:
        wide = curves.widen[at]
        hot = wide * slower[2 * at]
        factors = {PRODUCTS: products[at] * hot, ATTENTION: attention[at] * wide, MEMORY: memory[at] * wide}
        return Case(factors, exchanges[at] * wide, gaps, launch * 1e-6, taken, 2 * at)

    launch, taken, gaps = known["launch"], known["taken_by_exchange"], known["between_kernels"]
    plain = {PRODUCTS: slower[1], ATTENTION: 1.0, MEMORY: 1.0}
    return (
        case(0, taken.low, gaps.low, launch.low),
        Case(plain, 1.0, gaps.value, launch.value * 1e-6, taken.value, 1),
        case(1, None, gaps.high, launch.high),
    )


def training_time(job: Job, stages: Sequence[Stage], place: Topology, peak: float, three: Cases, reason: str) -> Time:
    """The time of one optimizer step of a job whose stages are these, on cards of so many FLOP/s; `reason` of its range."""
    steps = job.training.gradient_accumulation_steps
    pipeline = pipeline_of(job)
    low, expected, high = (
        _loaded(spread(stages, pipeline, steps, case), steps * loading)
        for case, loading in zip(three, loading_seconds(job), strict=True)
    )
    tokens = job.training.tokens_per_pass * steps * place.data
    done, again = (sum(counts) * steps / len(stages) for counts in zip(*[(s.flops, s.repeated) for s in stages], strict=True))
    host = "; the optimizer on a quick server's host, or on a slow one's" if on_host(job) else ""
    return answered(expected, (_sum(low), _sum(high)), Done(tokens, place.gpus, done, again, peak), f"{reason}{host}")


def _loaded(parts: Parts, loading: float) -> Parts:
    """With the time in which ranks wait for batches that take longer than what is computed with them."""
    wait = loading - _sum(parts)
    return parts | {LOADER: wait} if wait > 0 else parts


def spread_of(curves: Curves) -> str:
    """Why a time by these curves has a range, in words."""
    where = f"measured on {curves.borrowed_from}, not on this card, " if curves.borrowed_from else ""
    load = under_load(curves.name)
    slowed = f"products take {load.value:g} times as long in training as alone; " if load else ""
    return (
        f"{slowed}kernels {where}as fast as the fastest tenth of what was measured or as slow as the slowest; exchanges hidden "
        "as far as they can be, or not at all"
    )
