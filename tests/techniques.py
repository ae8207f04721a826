"""The figures of docs/techniques.md: what each technique saves and costs, and what folklore says of it, by our own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from estimator import Answer, estimate
from estimator.contract.units import GIB, MIB
from tests.accuracy import table
from tests.jobs import table as cases_of

Part = Mapping[str, Any]


def merged(base: Part, *changes: Part) -> dict[str, Any]:
    """A job with fields of its parts replaced."""
    made = dict(base)
    for change in changes:
        made |= {name: {**made.get(name, {}), **fields} for name, fields in change.items()}
    return made


@cache
def _table() -> dict[str, Any]:
    return cases_of("techniques")


def answer(tokens: int, change: Part) -> Answer:
    """The answer to the base job with a change, at a sequence length."""
    return estimate(merged(_table()["base"], change, {"training": {"sequence_length": tokens}}))


def savings() -> str:
    """A row per technique: the peak before and after at each length, what is saved, and the arithmetic that it costs."""
    rows = []
    for row in _table()["rows"]:
        pairs = [(answer(tokens, row.get("from", {})), answer(tokens, row["to"])) for tokens in _table()["lengths"]]
        cells = [_change(before.memory.peak_bytes, after.memory.peak_bytes) for before, after in pairs]
        rows.append([f"[{row['name']}](techniques/{row['page']})", *cells, _cost(*pairs[1])])
    return table(["technique", *(f"{n:,} tokens" for n in _table()["lengths"]), "arithmetic"], rows)


def _change(before: int, after: int) -> str:
    return f"{before / GIB:.1f} → {after / GIB:.1f} ({_share(after, before)})"


def _share(after: int, before: int) -> str:
    return f"{after / before - 1:+.0%}" if round(100 * after / before) != 100 else "none"


def _cost(before: Answer, after: Answer) -> str:
    assert before.time
    assert after.time
    return _share(after.time.flops_per_step, before.time.flops_per_step)


def activations(found: Answer) -> int:
    """Bytes that forward leaves for backward: activations, logits and loss."""
    return found.memory.forward_end_bytes - found.memory.resident_bytes


def folklore() -> str:
    """What each claim comes to: of the peak, of what forward leaves for backward, of what is alive between steps; its cost."""
    rows = []
    for row in _table()["folklore"]:
        for tokens in _table()["lengths"]:
            before, after = answer(tokens, row.get("from", {})), answer(tokens, row["to"])
            rows.append(
                [
                    row["claim"] if tokens == _table()["lengths"][0] else "",
                    f"{tokens:,}",
                    _share(after.memory.peak_bytes, before.memory.peak_bytes),
                    _share(activations(after), activations(before)),
                    _share(after.memory.resident_bytes, before.memory.resident_bytes),
                    _cost(before, after),
                ]
            )
    return table(["claim", "tokens", "peak", "left by forward", "between steps", "arithmetic"], rows)


PUBLISHED = {
    "base model in 4 bits": ("3.5 GB", ("parameters",)),
    "adapters": ("50 MB", ()),
    "optimizer states": ("100 MB", ("optimizer_states",)),
    "gradients": ("50 MB", ("gradients",)),
    "activations": ("1 to 2 GB", ("activations", "temporaries")),
    "input batch": ("0.5 to 1 GB", ()),
    "logits and loss": ("not named", ("logits_and_loss",)),
}
"""The lines of a published breakdown, and the components of ours that each stands for."""


def phi() -> str:
    """Ours beside the published breakdown, line by line."""
    job = _table()["phi"]
    memory, trainable = estimate(job).memory, estimate(job).parameters.trainable
    adapters = 4 * trainable
    ids = 3 * 8 * job["training"]["micro_batch_size"] * job["training"]["sequence_length"]
    sizes = {name: sum(memory.at_peak.get(part, 0) for part in parts) for name, (_, parts) in PUBLISHED.items()}
    sizes |= {"adapters": adapters, "input batch": ids, "base model in 4 bits": sizes["base model in 4 bits"] - adapters}
    rows = [[name, said, _size(sizes[name])] for name, (said, _) in PUBLISHED.items()]
    rows += [["peak of allocated bytes", "", _size(memory.peak_bytes)], ["in all", "6 to 7 GB", _size(memory.total_bytes)]]
    return table(["", "published", "ours"], rows)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= MIB * 100 else f"{nbytes / 1e6:.2f} MB"


def page() -> dict[str, str]:
    """The parts of the page that are made, by the name of their place in it."""
    return {"savings": savings(), "folklore": folklore(), "phi": phi()}
