"""Fixes of a file as text for a terminal: the first as a patch, the others in a line each."""

from __future__ import annotations

from estimator.cli.table import aligned
from estimator.contract.units import gib
from estimator.planner.answers import Change, Fix, Fixes, shown_value


def fixes_text(found: Fixes) -> str:
    """What each edit saves and costs, then the patch, which `patch -p0` takes with all that stands before it."""
    if found.fits:
        return f"it fits as it is: {found.reason}\n"
    lines = [found.reason, ""]
    if not found.fixes:
        return "\n".join([*lines, f"no fix: {found.problem}"]) + "\n"
    first, *others = found.fixes
    rows: list[tuple[str, ...]] = [row for change in first.changes for row in _rows(change)]
    lines += aligned([("line", "edit", "saves", "a token takes", "result"), *rows])
    lines += ["", f"then it {'fits' if first.verdict == 'fits' else 'fits, tightly'}: {first.reason}", ""]
    if others:
        lines += ["or", *(f"  {_in_a_line(one)}" for one in others), ""]
    return "\n".join(lines) + "\n" + first.patch


def _rows(change: Change) -> list[tuple[str, ...]]:
    first = True
    rows: list[tuple[str, ...]] = []
    for edit in change.edits:
        said = edit.setting
        if edit.before is not None:
            said = f"{edit.key}: {shown_value(edit.before)} -> {shown_value(edit.after)}"
        beside = (gib(change.saved_bytes), _slower(change.slower), "the same" if change.same_result else "another")
        rows.append((str(edit.line or "new"), said, *(beside if first else ("", "", ""))))
        first = False
    return rows


def _in_a_line(fix: Fix) -> str:
    edits = ", ".join(edit.setting for change in fix.changes for edit in change.edits)
    return f"{edits} ({gib(fix.total_bytes)} needed, {'the same' if fix.same_result else 'another'} result)"


def _slower(share: float | None) -> str:
    if share is None:
        return "not known"
    return "as long" if abs(share) < 0.005 else f"{share:+.0%}"
