"""Files and records: a framework's file as a job, what to edit so that it fits, what explains a measurement."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from estimator.exchange import Surroundings, read
from estimator.exchange.found import Found
from estimator.hardware.parse import read_hardware
from estimator.measured import explain as measured_explain
from estimator.planner import fix as planner_fix

from .server import AJob, On, tool

MOST = 2**18
"""Letters of a file, or of a record."""


class Mended(BaseModel):
    """Edits of a file with which its job fits."""

    settings: list[str] = Field(description="the file's own keys, as they are to be")
    verdict: str
    total_bytes: int = Field(description="needed of one GPU then")
    same_result: bool = Field(description="whether the same is computed, up to rounding")
    slower: float | None = Field(description="the share by which a token takes longer")
    patch: str


class Fixes(BaseModel):
    """Whether a file's job fits, and the smallest edits that make it."""

    fits: bool | None
    reason: str
    problem: str = Field(description="why nothing is proposed; empty where something is, or need not be")
    fixes: list[Mended]


class Explained(BaseModel):
    """What was measured beside what is predicted."""

    verdict: str = Field(description="as predicted, explained, partly explained or not explained")
    text: str
    reasons: list[str]
    would_avoid_it: list[str] = Field(description="of a job that ran out of memory")


@tool
def read_config(
    text: Annotated[
        str, Field(max_length=2**18, description="a file of axolotl, TRL, DeepSpeed …, or a command line of an engine")
    ],
    model: Annotated[str | None, Field(description="where the file names none")] = None,
    on: On | None = None,
    release: Annotated[str | None, Field(max_length=40, description="the framework's release, by its number or a day")] = None,
) -> Found:
    """What a framework's configuration or command says, as a job that `estimate` answers, with what was left out and assumed."""
    hardware = read_hardware(on).hardware if on else None
    return read(text, None, model=model, around=Surroundings(hardware=hardware, release=release))


@tool
def fix(
    text: Annotated[str, Field(max_length=MOST, description="a file of axolotl, TRL …, or a command, in YAML, JSON or shell")],
    on: On,
    model: Annotated[str | None, Field(description="where the file names none")] = None,
    release: Annotated[str | None, Field(max_length=40, description="the framework's release, by its number or a day")] = None,
) -> Fixes:
    """The smallest edits that make a file's job fit, in the file's own keys, each tried, with a patch; nothing is written."""
    found = planner_fix.fix(text.encode("utf-8", "replace"), on, model, release=release)
    mended = [
        Mended(
            settings=[edit.setting for change in one.changes for edit in change.edits],
            verdict=one.verdict,
            total_bytes=one.total_bytes,
            same_result=one.same_result,
            slower=one.slower,
            patch=one.patch,
        )
        for one in found.fixes
    ]
    return Fixes(fits=found.fits, reason=found.reason, problem=found.problem, fixes=mended)


@tool
def explain(
    job: AJob,
    measured: Annotated[str, Field(max_length=MOST, description="an out-of-memory message, a log, nvidia-smi, a memory summary")],
    on: On | None = None,
) -> Explained:
    """Why a run took other memory than predicted, or ran out of it, and what would avoid that."""
    found = measured_explain.explain(job, measured, on=on, allow_files=False)
    reasons = [one.text for one in found.hypotheses]
    return Explained(verdict=found.verdict, text=found.text, reasons=reasons, would_avoid_it=found.changes)
