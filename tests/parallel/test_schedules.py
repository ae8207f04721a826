"""What ranks of a pipeline run, against torch's own schedules, and how many micro-batches they hold, against published forms."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from estimator.parallel.schedules import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Pipeline, in_flight, waiting

THEIRS = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "gpipe": "GPipe",
    "looped-bfs": "LoopedBFS",
    "zero-bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
CHUNKS = {"1f1b": [1], "gpipe": [1], "interleaved": [2, 3, 4], "looped-bfs": [1, 2, 3], "zero-bubble": [1, 2, 3]}
SIZES = [(p, m) for p in (1, 2, 3, 4, 8) for m in sorted({1, 2, p, 2 * p, 2 * p + 1, 3 * p, 5 * p // 2, 4 * p})]


def pipelines(schedule: str) -> list[Pipeline]:
    """Those that torch allows."""
    least = {"1f1b": 1, "dualpipev": 2}.get(schedule, 0)
    found = []
    for ranks, count in SIZES:
        rounds = max(1, count // ranks)
        if count >= least * ranks and (schedule not in ("interleaved", "zero-bubble") or count % rounds == 0):
            found += [Pipeline(schedule, ranks, chunks, count, count // rounds) for chunks in CHUNKS.get(schedule, [2])]
    return found


class OneStage:
    """A stage that writes down what torch's schedule asks of it."""

    stage_index, is_last = 0, False

    def __init__(self) -> None:
        self.asked: list[Action] = []

    def forward_one_chunk(self, number: int, *_: Any, **__: Any) -> None:
        self.asked.append(Action(FORWARD, 0, number))

    def backward_one_chunk(self, number: int, **_: Any) -> None:
        self.asked.append(Action(BACKWARD, 0, number))

    def __getattr__(self, name: str) -> Any:
        return lambda *_: []


def torchs(pipeline: Pipeline, rank: int) -> list[Action]:
    """torch's schedule of a rank: run on a stage that does nothing, or read from its table."""
    kind = schedules.get_schedule_class(THEIRS[pipeline.schedule])
    made: Any = object.__new__(kind)
    made._n_microbatches, made._num_stages, made.num_stages = pipeline.micro_batches, pipeline.stages, pipeline.stages
    if issubclass(kind, schedules.PipelineScheduleSingle):
        stage = OneStage()
        stage.stage_index = rank
        made._stage, made.scale_grads = stage, False
        made._check_inputs = lambda *_: ([None] * pipeline.micro_batches,) * 2
        made._initialize_stage = made._maybe_compute_loss = made._maybe_get_loss = made._update_losses = lambda *_: None
        made._step_microbatches()
        return stage.asked
    made.pp_group_size, made._stages, made.n_local_stages = pipeline.ranks, [None] * pipeline.chunks, pipeline.chunks
    made.number_of_rounds = max(1, pipeline.micro_batches // pipeline.ranks)
    made.microbatches_per_round = pipeline.micro_batches // made.number_of_rounds
    table = [each for action in made._calculate_single_rank_operations(rank) if action for each in action.sub_actions or [action]]
    held = pipeline.held(rank)
    return [Action(each.computation_type.value, held.index(each.stage_index), each.microbatch_index) for each in table]


@pytest.mark.parametrize("schedule", THEIRS)
def test_torchs_order(schedule: str) -> None:
    for pipeline in pipelines(schedule):
        for rank in range(pipeline.ranks):
            assert pipeline.actions(rank) == torchs(pipeline, rank), (pipeline, rank)


def test_dualpipe_is_dualpipev_of_half_as_many() -> None:
    """As DeepSeek cut it in half: a rank and its opposite hold the same two stages and do the same."""
    for ranks, count in ((2, 4), (4, 8), (4, 14), (8, 20)):
        pipeline = Pipeline("dualpipe", ranks, 2, count)
        for rank in range(ranks):
            half = min(rank, ranks - 1 - rank)
            assert pipeline.held(rank) == (half, ranks - 1 - half)
            assert pipeline.actions(rank) == torchs(Pipeline("dualpipev", ranks // 2, 2, count // 2), half)


def test_more_rounds_hold_no_more() -> None:
    """What waits at some time, of each chunk and for either pass, is the same in a shorter step of the same schedule."""
    for schedule in (*THEIRS, "dualpipe"):
        for ranks, count, group in ((2, 64, 2), (4, 96, 4), (4, 90, 6)):
            chunks = CHUNKS.get(schedule, [2])[-1]
            pipeline = Pipeline(schedule, ranks, chunks, count, group if schedule == "interleaved" else ranks)
            short = pipeline.shortened()
            assert short.micro_batches < count or schedule in ("gpipe", "looped-bfs")
            for rank in range(ranks):
                states = [{frozenset((+each).items()) for each in waiting(one.actions(rank))} for one in (pipeline, short)]
                assert states[0] == states[1], (pipeline, rank)


ALL = [pipeline for schedule in THEIRS for pipeline in pipelines(schedule)] + [Pipeline("dualpipe", 4, 2, 12)]


def test_each_pass_is_run_once_and_in_order() -> None:
    """Of every chunk and micro-batch: forward, then backward, or that of the inputs and then that of the weights."""
    for pipeline in ALL:
        once = pipeline.micro_batches // (2 if pipeline.schedule == "dualpipe" else 1)
        for rank in range(pipeline.ranks):
            seen: dict[tuple[int, int], str] = {}
            for kind, chunk, number in pipeline.actions(rank):
                seen[chunk, number] = seen.get((chunk, number), "") + kind
            assert set(seen) == {(chunk, number) for chunk in range(pipeline.chunks) for number in range(once)}
            assert set(seen.values()) <= {FORWARD + BACKWARD, FORWARD + INPUT + WEIGHT}
            *_, last = waiting(pipeline.actions(rank))
            assert not any(last.values())


def test_no_rank_waits_for_ever() -> None:
    """Played side by side, each pass has what it needs from the stages beside it at some time."""
    for pipeline in ALL:
        if pipeline.schedule == "dualpipe":  # whose two directions are not told apart
            continue
        lists = [pipeline.actions(rank) for rank in range(pipeline.ranks)]
        done: set[tuple[str, int, int]] = set()
        at, last = [0] * pipeline.ranks, pipeline.stages - 1
        moved = True
        while moved:
            moved = False
            for rank, actions in enumerate(lists):
                while at[rank] < len(actions) and _ready(actions[at[rank]], pipeline.held(rank), done, last):
                    kind, chunk, number = actions[at[rank]]
                    done.add((FORWARD if kind == FORWARD else BACKWARD, pipeline.held(rank)[chunk], number))
                    at[rank] += 1
                    moved = True
        assert at == [len(actions) for actions in lists], pipeline


def _ready(action: Action, held: tuple[int, ...], done: set[tuple[str, int, int]], last: int) -> bool:
    kind, chunk, number = action
    stage = held[chunk]
    if kind == FORWARD:
        return stage == 0 or (FORWARD, stage - 1, number) in done
    return kind == WEIGHT or stage == last or (BACKWARD, stage + 1, number) in done


FORMS = [
    # as many of all chunks as a rank holds at once, with m micro-batches on p ranks of v chunks
    ("1f1b", lambda p, r, v, m: min(p - r, m)),
    ("gpipe", lambda p, r, v, m: m),
    ("looped-bfs", lambda p, r, v, m: m * v),
    ("interleaved", lambda p, r, v, m: min(p * (v - 1) + 2 * (p - r - 1) + 1, m * v)),  # Narayanan et al. (2021)
    ("zbv", lambda p, r, v, m: 2 * p),  # Qi et al. (2024): as 1F1B's first rank, in halves
    ("dualpipev", lambda p, r, v, m: 2 * p + 1),  # DeepSeek's table: p + 1 of whole stages where DualPipe has 2 p ranks
]


@pytest.mark.parametrize(("schedule", "form"), FORMS, ids=[schedule for schedule, _ in FORMS])
def test_micro_batches_in_flight(schedule: str, form: Any) -> None:
    for p, v, m in ((2, 2, 8), (4, 2, 16), (4, 4, 16), (8, 2, 32)):
        v = v if schedule in ("looped-bfs", "interleaved") else 2 if schedule in ("zbv", "dualpipev") else 1
        pipeline = Pipeline(schedule, p, v, m, p)
        assert [in_flight(pipeline.actions(r)) for r in range(p)] == [form(p, r, v, m) for r in range(p)]


def test_dualpipe_holds_one_more_than_ranks() -> None:
    """DeepSeek-V3's report, table 2."""
    for p in (2, 4, 8, 16):
        assert {in_flight(Pipeline("dualpipe", p, 2, 4 * p).actions(r)) for r in range(p)} == {p + 1}


def test_zero_bubble_puts_off_as_many_as_ranks_before() -> None:
    """ZB-H1 (Qi et al., 2023): what waits for either pass is as on the first rank of 1F1B, and the one whose turn it is."""
    for p, m in ((2, 4), (4, 8), (8, 24)):
        for r in range(p):
            found = [Counter(now) for now in waiting(Pipeline("zero-bubble", p, 1, m, p).actions(r))]
            assert max(now[INPUT, 0] for now in found) == min(r + 1, m)
            assert max(now[FORWARD, 0] + now[INPUT, 0] for now in found) <= p + 1
