"""What llama.cpp's kernels reach, fitted to published tokens per second: `python -m tests.fit_llamacpp` prints it.

Least absolute errors of the logarithms, each card with the same weight, by steps along one number at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import log
from typing import Any, NamedTuple

import numpy as np

from estimator.families.spec import DecoderSpec
from estimator.hardware.accelerator import Accelerator, accelerator
from estimator.pipeline.run import played
from estimator.serving.llamacpp.passes import Passes, passes
from estimator.timing.ggml import Rates, longest, prompt_parts, step_parts
from tests.held_out import held_out
from tests.served_speeds import OLD, job_of, published, unfused

TABLES = {"nvidia": "llamacpp_speeds", "apple": "llamacpp_speeds", "amd": "radeon_speeds"}
FREE = {
    "decode": {"nvidia": ("kernel_us", "share", "core_gb", "split_us"), "amd": ("kernel_us", "share"), "apple": ("share",)},
    "prefill": {"nvidia": ("products", "core_tflops"), "amd": ("products",), "apple": ("products",)},
}
"""Numbers that are fitted to tokens of answers, and then to those of prompts."""
FIRST = {"nvidia": Rates(3, 0.9, 0.8, 10, 1.6, 1), "amd": Rates(5, 0.9, 0.3), "apple": Rates(3.1, 0.7, 0.6)}
"""Where the steps begin. One of Apple's cards alone cannot tell kernels from bandwidth: they take as long as CUDA's."""
FINEST = 0.002
ENDS = {"decode": 0.05, "prefill": 0.1}
"""The share of rows beyond each end of a range."""


class Measured(NamedTuple):
    """A published row, and what llama.cpp does in it."""

    row: dict[str, Any]
    card: Accelerator
    found: Passes
    longest: float


@cache
def rows(vendor: str, kind: str, held: bool = False) -> tuple[Measured, ...]:
    """Those of a vendor's cards that a number may be fitted to, or those held out. Prompts on several GPUs are left out: whether
    these worked at once is not said; and those of rocBLAS without hipBLASLt, which no build reads so any more."""
    found, known = [], {}
    for row in published()["runs"]:
        if row["engine"] != "llama.cpp" or row["kind"] != kind:
            continue
        card = accelerator(row["gpu"])
        if card.vendor != vendor or held_out(TABLES[vendor], row["row"]) != held or (kind == "prefill" and row["gpus"] > 1):
            continue
        if "hipblaslt" in row:
            continue
        job = job_of(row) | {"hardware": {"gpu": "mi300x"}}
        if (asked := f"{job}{row['gpus']}") not in known:
            run = played(job, False)
            assert isinstance(run.model.spec, DecoderSpec)
            every = passes(run.job.serving, run.model.spec, None)
            every = unfused(every) if row.get("version") == OLD else every
            known[asked] = every, longest(run.job.serving, every.layers, row["gpus"])
        found.append(Measured(row, card, *known[asked]))
    return tuple(found)


def error(rates: Rates, one: Measured) -> float:
    """Logarithm of our seconds over those measured."""
    if one.row["kind"] == "prefill":
        ours = sum(prompt_parts(rates, one.card, one.found, one.row["gpus"], one.longest).values())
        return log(ours * one.row["tokens_per_second"] / one.row["prompt"])
    return log(sum(step_parts(rates, one.card, one.found.step, one.row["gpus"]).values()) * one.row["tokens_per_second"])


def loss(rates: Rates, measured: Sequence[Measured]) -> float:
    """Mean of the sizes of errors, each card with the same weight."""
    many = Counter(one.row["gpu"] for one in measured)
    weights = [1 / many[one.row["gpu"]] for one in measured]
    return float(np.average([abs(error(rates, one)) for one in measured], weights=weights))


def fitted(vendor: str, to: Mapping[str, Sequence[Measured]] | None = None) -> Rates:
    """The numbers of a vendor's backend, with as many digits as its file has; fitted `to` some rows, unsaid to all."""
    best = FIRST[vendor]
    for kind, free in FREE.items():
        measured, step = to[kind] if to else rows(vendor, kind), 0.3
        least = loss(best, measured)
        while step > FINEST:
            tried = [
                replace(best, **{name: getattr(best, name) * by}) for name in free[vendor] for by in (1 + step, 1 / (1 + step))
            ]
            nearest = min(tried, key=lambda one: loss(one, measured))
            found = loss(nearest, measured)
            if found < least - 1e-7:
                best, least = nearest, found
            else:
                step /= 1.5
    return replace(best, **{name: float(f"{getattr(best, name):.3g}") for name in Rates.__slots__})


@cache
def _of_others(vendor: str, left: str) -> Rates:
    """The numbers as they are without the rows of one group."""
    return fitted(vendor, {kind: [one for one in rows(vendor, kind) if _group(vendor, one) != left] for kind in FREE})


def _group(vendor: str, one: Measured) -> str:
    """A row's card, or on AMD's one card its model."""
    return str(one.row["model" if vendor == "amd" else "gpu"])


def spread(vendor: str, kind: str) -> tuple[float, float]:
    """What was measured over what the rows of all other cards say, or on one card those of all other models: twentieths at both
    ends of answers' tokens; of prompts tenths, since an eighth of NVIDIA's took up to ten times as long without a known cause."""
    found = [float(np.exp(-error(_of_others(vendor, _group(vendor, one)), one))) for one in rows(vendor, kind)]
    low, high = np.quantile(found, (ENDS[kind], 1 - ENDS[kind]))
    return round(float(low), 2), round(float(high), 2)


def main() -> None:
    """Print every vendor's numbers, and how far off both sides are."""
    for vendor in TABLES:
        found = fitted(vendor)
        print(vendor, found)
        for kind in FREE:
            for held in (False, True):
                sizes = [abs(np.expm1(-error(found, one))) for one in rows(vendor, kind, held)]
                if sizes:
                    near = np.mean(np.array(sizes) <= 0.3)
                    print(
                        kind, "held out" if held else "used", len(sizes), f"median {np.median(sizes):.1%}, within 30 % {near:.0%}"
                    )
            print(kind, "spread", spread(vendor, kind))


if __name__ == "__main__":
    main()
