"""A budget as text for a terminal."""

from __future__ import annotations

from estimator.cli.table import aligned, offered
from estimator.planner.answers import Budget, BudgetRow

_HEADER = (
    "where",
    "paid",
    "region",
    "GPUs",
    "strategy",
    "micro-batch x steps",
    "hours",
    "from to",
    "money",
    "from to",
    "bound by",
)


def budget_text(found: Budget) -> str:
    """What can be done, and the ways to do it, cheapest first."""
    lines = [f"{'YES' if found.possible else 'NO'}: {found.reason}", ""]
    if found.rows:
        lines += [*aligned([_HEADER, *(_cells(row) for row in found.rows)]), ""]
    lines += [
        f"{found.compared} ways compared whose peak fits.",
        "",
        "Taken for granted",
        *(f"  {said}" for said in found.assumptions),
    ]
    if old := [row for row in found.rows if row.warning]:
        lines += ["", "Warnings", *sorted({f"  {row.provider} {row.instance}: {row.warning}" for row in old})]
    return "\n".join(lines) + "\n"


def _cells(row: BudgetRow) -> tuple[str, ...]:
    low, high = row.range_hours
    return (
        offered(row),
        row.kind,
        row.region,
        f"{row.gpus} x {row.accelerator}",
        row.strategy,
        f"{row.micro_batch_size} x {row.gradient_accumulation_steps}",
        f"{row.hours:,.1f}",
        f"{low:,.1f} to {high:,.1f}",
        f"{row.total} {row.currency}",
        " to ".join(row.range_total),
        row.bottleneck,
    )
