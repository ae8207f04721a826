"""What if: a job with other values of some of its fields, as rows; as JSON and as CSV."""

from __future__ import annotations

import csv
import json
from io import StringIO
from typing import Any, Literal

from estimator.contract.answer import AnswerPart, Versions, WholeAnswer


class WhatIfRow(AnswerPart):
    """A job with some of its fields changed."""

    values: dict[str, Any]
    """The value of each field that was changed, by its dotted name."""
    fits: bool | None
    """null where it is not known, or there is nothing that could."""
    verdict: Literal["fits", "tight", "does not fit", "unknown", "refused", "not modelled"]
    """refused: the model, the framework or the rest of the job does not go with these values, whatever the memory. not modelled:
    it may, and is not known here."""
    total_bytes: int | None
    """What one GPU needs; null where there is no answer."""
    peak_bytes: int | None
    """The peak of its tensors."""
    peak_phase: str
    headroom_bytes: int | None
    """What is left of the GPU's capacity, or of the engine's share of it; negative where it does not fit."""
    offered_bytes: int | None
    """The GPU's capacity, or the engine's share of it; null without hardware."""
    step_seconds: float | None
    """A training step, or a decoding step; null where the GPU's speed is not known."""
    tokens_per_second: float | None
    reason: str
    job: dict[str, Any] | None
    """The complete job, which `estimate` answers in full; null where there is no answer."""


COLUMNS = tuple(name for name in WhatIfRow.model_fields if name not in ("values", "job"))
"""Of a CSV, after those of the fields that were changed."""


class WhatIf(WholeAnswer):
    """A job with every combination of some values of some of its fields."""

    model: str
    fields: list[str]
    rows: list[WhatIfRow]
    asked: int
    """How many combinations were asked for."""
    complete: bool
    """False where it was interrupted: rows are those that were done."""
    assumptions: list[str]
    versions: Versions

    def to_csv(self) -> str:
        """The rows as CSV (RFC 4180, lines that end in a line feed): a column for each field, then `COLUMNS`; null is empty."""
        out = StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*self.fields, *COLUMNS])
        for row in self.rows:
            cells = [*(row.values[name] for name in self.fields), *(getattr(row, name) for name in COLUMNS)]
            writer.writerow([shown(cell) for cell in cells])
        return out.getvalue()


def shown(value: Any) -> str:
    """A value of a row as text: as JSON has it, but plain text without quotes, and nothing for null."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
