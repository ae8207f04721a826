"""Fit what steps take beyond their kernels' curves, and the other numbers that were fitted to tables which are here.

`python -m tests.fit_steps` prints each number and its range as they follow from the rows that its `fitted_to` names, beside what
its file has. tests/timing/test_fits.py holds them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest import mock

import numpy as np

from estimator import estimate
from estimator.contract.job import read_job
from estimator.contract.units import MIB
from estimator.facts.fact import MeasuredFact
from estimator.pipeline.run import played
from estimator.pipeline.step_time import _step
from estimator.runtime import overheads
from estimator.timing import step
from estimator.timing.measured import UnderLoad, load, shared
from tests.held_out import LLM_FOUNDRY, fitted_rows, held_out
from tests.jobs import content
from tests.measured_runs import a100_runs, megatron_runs, megatron_steps, more_megatron_runs
from tests.published import Run, published

HERE = Path(__file__).parent
Fitted = tuple[float, tuple[float, float] | None]
"""A number and its range; None where that is not fitted."""
TENTHS = (0.1, 0.9)
CE_PASSES = 4 / 6
"""Of the passes over the logits that we count for Transformer Engine's cross-entropy, what its measurement counts."""


def _read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = content(HERE / path)
    return found


def _ends(values: list[float]) -> tuple[float, float]:
    low, high = np.quantile(values, TENTHS)
    return float(low), float(high)


def gaps() -> dict[str, float]:
    """What each step on B200 took beyond the sum of its parts, as a share of it, by name."""
    return {
        name: run["iteration_ms"][count] / run["parts_ms"][count] - 1
        for run in (*megatron_runs(), *more_megatron_runs())
        for name, count in megatron_steps(run).items()
    }


def between_kernels() -> Fitted:
    """The median over the steps that are not held out, and the tenths at both ends."""
    rows = fitted_rows(step.efficiencies()["between_kernels"].fitted_to, "b200_steps")
    found = [gaps()[name] for name in rows]
    return median(found), _ends(found)


def loaded_runs() -> Iterator[Run]:
    """The H100 runs that `under_load` was fitted to."""
    rows = fitted_rows(shared().under_load[0].fitted_to, "llm_foundry_h100")
    return (run for run in published() if run.group == LLM_FOUNDRY and run.name in rows)


def seconds_under_load(run: Run) -> Callable[[float], float]:
    """Seconds of a run's step by how much longer its products take than alone, with all else as it is modelled."""
    known = played(read_job(run.job), True)

    def seconds(ratio: float) -> float:
        fact: UnderLoad = shared().under_load[0].model_copy(update={"value": ratio})
        with mock.patch.object(step, "under_load", return_value=fact):
            time = _step(known.job, known.model.spec, known.place, known.card, known.simulation)
        assert time is not None
        return time.step_seconds

    return seconds


def measured_seconds(run: Run) -> float:
    """Seconds of a step of a run that was published by its tokens."""
    time = run.time()
    assert run.tokens_per_second_per_gpu is not None
    return time.step_seconds * time.tokens_per_second_per_gpu / run.tokens_per_second_per_gpu


def load_of(run: Run) -> float:
    """How much longer a run's products took than alone: by secants, since exchanges beside them make it bend."""
    seconds, found = seconds_under_load(run), measured_seconds(run)
    before, at = 1.0, 1.2
    missed, miss = seconds(before) - found, seconds(at) - found
    while abs(miss) > 1e-5 * found:
        before, at = at, at - miss * (at - before) / (miss - missed)
        missed, miss = miss, seconds(at) - found
    return at


def under_load() -> Fitted:
    """The median over the runs that are not held out, and the tenths at both ends."""
    found = [load_of(run) for run in loaded_runs()]
    return median(found), _ends(found)


def sustained_beside_training() -> tuple[float, float, str, dict[str, Any]]:
    """Of a B200's products beside Megatron-LM: the median and the lower quarter of those that are not held out, where they were
    read, and which they are."""
    products = _read("data/b200_kernels.yaml")["products"]
    used = [share for name, share in products.items() if not held_out("b200_products", name)]
    where = (
        f"MooreThreads/SimuMax (4dcaae5, Apache-2.0), configs/system/b200_bf16_ceperm.json: median of {len(used)} products "
        "measured on eight B200 beside Megatron-LM, and their lower quarter; shorter benchmarks reach more: "
    )
    low = float(np.quantile(used, 0.25))
    return median(used), low, where, {"table": "b200_products", "rows": ["*"], "how": "median"}


def cuda_context() -> Fitted:
    """MiB that nvidia-smi showed beyond what the replayed allocator reserves: the median."""
    rows = fitted_rows(overheads.facts()["cuda_context"].fitted_to, "fine_tuning_a100")
    found = []
    for run in a100_runs():
        if run["name"] in rows:
            reserved = estimate(run["job"]).memory.reserved_bytes
            assert reserved is not None
            found.append(run["nvidia_smi_mib"] - reserved / MIB)
    assert len(found) == len(rows)
    return median(found), None


def network_share() -> Fitted:
    """What each of a node's cards carries of its bandwidth, at the plateau of an all-reduce over four nodes of eight."""
    table = _read("cases/kernels.yaml")
    (row,) = fitted_rows(shared().network_share.fitted_to, "nodes")
    bus = next(one["bus"] for one in table["nodes"] if str(one["payload"]) == row)
    nodes, gpus, card = 4, 8, 50
    return bus * (nodes - 1) / nodes / gpus / ((nodes * gpus - 1) / (nodes * gpus)) / card, None


def link_share() -> Fitted:
    """The middle between the ends of what peer-to-peer copies reached."""
    reached = {"A100": 274 / 300, "H100": 376 / 450, "GB200": 746 / 900}
    found = [reached[name] for name in fitted_rows(shared().link_share.fitted_to, "links")]
    return fmean((min(found), max(found))), (min(found), max(found))


def _slow(rows: list[str]) -> float:
    """Seconds of Triton's kernels for each of plain ones, on a B200, by the bytes that their measurement counts."""
    reached, plain = _read("data/b200_kernels.yaml")["memory"], load("b200").memory.share * 7.672
    return plain / (8 * fmean(reached[name] for name in rows))


def permuting() -> Fitted:
    return _slow(fitted_rows(shared().slow_kernels[0].fitted_to, "b200_memory")), None


def cross_entropy() -> Fitted:
    return CE_PASSES * _slow(fitted_rows(shared().slow_kernels[1].fitted_to, "b200_memory")), None


def sglang_token() -> Fitted:
    """Microseconds for each token: whole requests over all that is written at a time."""
    runs = {run["row"]: run for run in _read("data/sglang_tokens.yaml")["runs"]}
    found = []
    for name in fitted_rows(step.efficiencies()["sglang_token"].fitted_to, "sglang_tokens"):
        run = runs[name]
        took = run["first_token_ms"] + (run["output"] - 1) * run["output_token_ms"]
        found.append(1000 * took / (run["concurrency"] * run["output"]))
    return median(found), None


def facts() -> dict[str, MeasuredFact]:
    """Every number that is fitted here, by the function that does it."""
    return {
        "between_kernels": step.efficiencies()["between_kernels"],
        "cuda_context": overheads.facts()["cuda_context"],
        "network_share": shared().network_share,
        "link_share": shared().link_share,
        "permuting": shared().slow_kernels[0],
        "cross_entropy": shared().slow_kernels[1],
        "under_load": shared().under_load[0],
        "sglang_token": step.efficiencies()["sglang_token"],
    }


FITS: dict[str, Callable[[], Fitted]] = {
    one.__name__: one
    for one in (between_kernels, cuda_context, network_share, link_share, permuting, cross_entropy, under_load, sglang_token)
}


def main() -> None:
    """Print what follows from the rows beside what the files have."""
    for name, fact in facts().items():
        value, ends = FITS[name]()
        fitted = f"{value:.4f}" + (f" ({ends[0]:.4f} to {ends[1]:.4f})" if ends else "")
        print(f"{name}: {fitted}; in its file {fact.value:g} ({fact.low:g} to {fact.high:g})")


if __name__ == "__main__":
    main()
