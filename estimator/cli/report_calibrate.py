"""A calibration as text for a terminal, and as the part of a job that carries it."""

from __future__ import annotations

import json

from estimator.cli.table import aligned
from estimator.measured.calibration_answer import Calibrated, Constant, Errors

_HEAD = ("constant", "value", "without it", "with it", "")
SHOWN = 5
"""Records that were not used and are named."""


def calibration_text(found: Calibrated) -> str:
    """Each constant with its errors on models that it was not fitted to, and the part of a job."""
    lines = [f"{found.records} records of {found.card}; errors on each model with what the other models' records give", ""]
    lines += [*aligned([_HEAD, *(_row(one) for one in found.constants)]), ""]
    if found.skipped:
        lines += [f"{len(found.skipped)} records not used"]
        lines += [*(f"  - {one.name}: {one.why}" for one in found.skipped[:SHOWN]), ""]
    if found.calibration is None:
        lines.append("Nothing is written: no constant makes answers nearer on models that it was not fitted to.")
    else:
        lines += ["The part of a job that uses it", *(f"  {line}" for line in part(found).splitlines())]
    return "\n".join(lines) + "\n"


def part(found: Calibrated) -> str:
    """`calibration` of a job, in YAML, with what it was made of as comments; empty where there is none."""
    if found.calibration is None:
        return ""
    software = "; ".join(f"{name} {', '.join(versions)}" for name, versions in found.software.items())
    said = [f"# willitfit calibrate, {found.as_of}, willitfit {found.versions.software} (data {found.versions.data})"]
    said += [f"# records by {software}"] if software else []
    said += [f"# {one.name}: {_change(one)}, {one.of}" for one in found.constants if one.kept]
    return (
        "\n".join([*said, "calibration:", *(f"  {name}: {json.dumps(value)}" for name, value in found.calibration.items())])
        + "\n"
    )


def _row(one: Constant) -> tuple[str, ...]:
    value = "-" if one.value is None else str(one.value)
    return one.name, value, _errors(one.before), _errors(one.after), one.why


def _errors(found: Errors | None) -> str:
    return f"{found.median:.1%}, 9 in 10 within {found.nine_tenths:.1%}" if found else "-"


def _change(one: Constant) -> str:
    return f"{_errors(one.before)} without, {_errors(one.after)} with it"
