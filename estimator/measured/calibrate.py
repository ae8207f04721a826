"""`willitfit calibrate`: records of one's own runs in, the constants of that machine out, or why there are none."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from estimator.contract.answer import Versions
from estimator.contract.errors import InvalidJob, WillItFitError
from estimator.contract.reading import read_text
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.hardware.accelerator import accelerator
from estimator.measured.calibration import Measured, constants, measured
from estimator.measured.calibration_answer import Calibrated, Skipped
from estimator.measured.runs import FORMAT, parsed

MOST_RECORDS = 2000


def calibrate(records: str | Path, *, allow_files: bool = True) -> Calibrated:
    """The constants that records bear out: the path of a file of them, or their text, as `watch` writes them, JSON in each line.

    Raises `InvalidJob` where no record can be used, or they are of several cards.
    """
    text, where = (read_text(records), str(records)) if isinstance(records, Path) else (records, "records")
    lines = [found for line in text.splitlines() if (found := parsed(line)).get("format") == FORMAT]
    if not lines:
        raise InvalidJob(f'has no line of "format": "{FORMAT}"; watch(…, record=FILE) writes them', where)
    if len(lines) > MOST_RECORDS:
        raise InvalidJob(f"are {len(lines)}; give {MOST_RECORDS} or fewer", where)
    rows: list[Measured] = []
    skipped, cards, used = [], {}, []
    for at, line in enumerate(lines):
        name = str(line.get("name") or f"record {at + 1}")[:80]
        try:
            card, row = _row(line, allow_files)
        except (WillItFitError, _Unusable) as error:
            skipped.append(Skipped(name=name, why=str(error)[:300]))
            continue
        cards[card] = name
        rows.append(row)
        used.append(line)
    if not rows:
        raise InvalidJob(f"none of {len(lines)} can be used; the first: {skipped[0].why}", where)
    if len(cards) > 1:
        raise InvalidJob(f"are of several cards ({', '.join(sorted(cards))}): give those of one", where)
    (card,) = cards
    kept, verdicts = constants(rows, card)
    as_of = datetime.now(UTC).date().isoformat()
    return Calibrated(
        card=card,
        calibration={"card": card, **kept, "records": len(rows), "as_of": as_of} if kept else None,
        constants=verdicts,
        records=len(rows),
        skipped=skipped,
        software=_software(used),
        as_of=as_of,
        versions=Versions(software=SOFTWARE_VERSION, data=DATA_VERSION),
    )


class _Unusable(ValueError):
    """Why a record says nothing."""


def _row(line: dict[str, Any], files: bool) -> tuple[str, Measured]:
    """The card of a record, and what it says. Raises `_Unusable`, and what `estimate` raises."""
    job = line.get("job")
    if not isinstance(job, dict) or not isinstance(job.get("hardware"), dict) or not job["hardware"].get("gpu"):
        raise _Unusable("its job names no card")
    if line.get("differences"):
        raise _Unusable("its code was not its job")
    if line.get("out_of_memory"):
        raise _Unusable("it ran out of memory")
    seconds, used, reserved = (_amount(line, name) for name in ("step_seconds", "used_bytes", "peak_reserved_bytes"))
    if seconds is None and (used is None or reserved is None):
        raise _Unusable("it has neither the seconds of a step nor what is used of the GPU")
    card = accelerator(str(job["hardware"]["gpu"])).name
    whole = None if used is None else int(used)
    return card, measured(job, seconds, whole, None if reserved is None else int(reserved), files)


def _amount(line: dict[str, Any], name: str) -> float | None:
    value = line.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**50:
        raise _Unusable(f"{name} {json.dumps(value)[:40]} is no amount")
    return value


def _software(lines: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Every version of each package that records name."""
    found: dict[str, set[str]] = {}
    for line in lines:
        versions = line.get("versions")
        for name, version in versions.items() if isinstance(versions, dict) else ():
            found.setdefault(str(name)[:40], set()).add(str(version)[:40])
    return {name: sorted(several) for name, several in sorted(found.items())}
