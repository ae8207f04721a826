"""Sweeps: each point is what an estimate says, whichever way it was answered."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from estimator import InvalidJob, NotModelled, estimate, sweep
from estimator.contract.job import read_job
from estimator.pipeline.judged import judged
from estimator.sweeps.arrays import BY_PROGRAM, NO, ONE_BY_ONE, REFUSED, UNKNOWN, YES
from estimator.sweeps.block import remembered
from tests.jobs import job_of, table
from tests.sweeps.__main__ import with_values

CASES: list[dict[str, Any]] = table("sweeps")  # type: ignore[assignment]
KEYS = {
    "name",
    "model",
    "layers",
    "hardware",
    "training",
    "parallelism",
    "offload",
    "task",
    "serving",
    "fields",
    "by",
    "programs",
}
SMALL = {"model": {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "vocab_size": 1000}, "hardware": {"gpu": "rtx-4090"}}  # fmt: skip
SIZES = {"training.micro_batch_size": [1, 2, 3], "training.sequence_length": [64, 100]}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_each_point_is_what_an_estimate_says(case: dict[str, Any]) -> None:
    assert set(case) <= KEYS
    job, fields = job_of(case), case["fields"]
    found = sweep(job, fields)
    expected = {"program": BY_PROGRAM, "one by one": ONE_BY_ONE}.get(case.get("by", "program"))
    for at in itertools.product(*[range(len(values)) for values in fields.values()]):
        values = {path: options[i] for (path, options), i in zip(fields.items(), at, strict=True)}
        try:
            memory = judged(with_values(job, values), reserves=False).memory
        except (InvalidJob, NotModelled):
            assert found.how[at] == REFUSED, values
            assert np.ma.is_masked(found.peak_bytes[at])
            continue
        said = found.peak_bytes[at], found.resident_bytes[at], found.least_bytes[at]
        assert said == (memory.peak_bytes, memory.resident_bytes, memory.total_bytes), values
        assert expected is None or found.how[at] == expected, values
    assert found.programs <= case.get("programs", found.programs)
    assert sum(found.refusals.values()) == int((found.how == REFUSED).sum())


def test_all_strategies_and_twenty_families_are_among_the_cases() -> None:
    from estimator.contract.job import Parallelism
    from estimator.specs.resolve import resolve

    asked = {str(case.get("parallelism", {}).get("strategy", "none")) for case in CASES}
    asked |= {one for case in CASES for one in case["fields"].get("parallelism.strategy", ())}
    known = set(Parallelism.model_fields["strategy"].annotation.__args__[0].__args__)  # type: ignore[union-attr]
    assert asked == known
    assert len({resolve(case["model"]).spec.model_type for case in CASES}) >= 15


def test_programs_are_remembered() -> None:
    remembered.clear()
    first, second = sweep(SMALL, SIZES), sweep(SMALL, {**SIZES, "training.micro_batch_size": [2, 7]})
    assert first.programs > 0
    assert remembered.nbytes > 0
    assert (second.how == BY_PROGRAM).all()


def test_fits_says_what_an_estimate_says_where_the_allocator_was_asked() -> None:
    job = {"model": "llama-3.2-1b", "hardware": {"memory": "16GB"}, "training": {"precision": "bf16-true"}}
    fields = {"training.micro_batch_size": [1, 64], "training.sequence_length": [64, 4096]}
    quick, asked = sweep(job, fields), sweep(job, fields, reserves=True)
    assert quick.fits.tolist() == [[UNKNOWN, UNKNOWN], [UNKNOWN, NO]]
    roomy = sweep(job, fields, roomy=0.1)
    assert roomy.fits[0, 0] == YES
    for at in itertools.product(range(2), range(2)):
        answer = estimate(with_values(job, {path: values[i] for (path, values), i in zip(fields.items(), at, strict=True)}))
        assert asked.fits[at] == (YES if answer.fits else NO)
        if asked.fits[at] != NO or quick.fits[at] == UNKNOWN:
            assert asked.total_bytes[at] == answer.memory.total_bytes


def test_without_hardware_nothing_is_said_of_fits() -> None:
    assert (sweep({"model": SMALL["model"]}, SIZES, reserves=True).fits == UNKNOWN).all()


def test_values_that_cannot_be_read_are_refused_and_no_others() -> None:
    found = sweep(SMALL, {"training.micro_batch_size": [0, 2, 3], "training.sequence_length": [64, 100]})
    assert found.how.tolist() == [[REFUSED] * 2, [BY_PROGRAM] * 2, [BY_PROGRAM] * 2]
    large = sweep(SMALL, {"training.micro_batch_size": [2, 3, 10**15], "training.sequence_length": [64, 100]})
    assert large.how.tolist() == [[BY_PROGRAM] * 2, [BY_PROGRAM] * 2, [REFUSED] * 2]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "at least one field"),
        ({"training.sequence_length": 3}, "several values in a list"),
        ({"training.sequence_length": "1..3"}, "several values in a list"),
        ({"training.sequence_length": []}, "at least one value"),
        ({"training.sequence_lenght": [1, 2]}, "sequence_length"),
        ({"training.precision.bits": [1, 2]}, "is 'bf16-true' in this job"),
    ],
)
def test_what_cannot_be_asked_is_said(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        sweep({**SMALL, "training": {"precision": "bf16-true"}}, fields)


def test_a_job_and_a_single_point() -> None:
    found = sweep(read_job(SMALL), {"training.sequence_length": [64]})
    assert found.peak_bytes.tolist() == [judged(with_values(SMALL, {"training.sequence_length": 64})).memory.peak_bytes]


def test_programs_are_forgotten_beyond_their_bytes() -> None:
    from estimator.sweeps.remembered import Remembered
    from estimator.sweeps.structure import Program

    one = Program([], [], [], None)
    one.guards = [None] * 10  # type: ignore[list-item]
    few = Remembered(most_bytes=2 * one.nbytes)
    for question in ("a", "b", "c"):
        few.add(question, one)
    assert [len(few.of(question)) for question in "abc"] == [0, 1, 1]
    assert few.nbytes == 2 * one.nbytes
    few.drop("b", one)
    assert few.nbytes == one.nbytes
