"""The rows of tests/data/llamacpp_starts.yaml, and how near answers come to them: `python -m tests.serving.llamacpp_starts`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import median
from typing import Any

from estimator.contract.job import Serving
from estimator.serving.llamacpp.placement import placed
from estimator.specs.resolve import resolve
from tests.jobs import TESTS, content

MIB = 2**20
ROWS: list[dict[str, Any]] = content(TESTS / "data" / "llamacpp_starts.yaml")
LOGGED = ("kv_mib", "weights_mib")


@cache
def _sizes(name: str) -> dict[str, float]:
    row = next(row for row in ROWS if row["name"] == name)
    asked = {key: value for key, value in row.items() if key in Serving.model_fields}
    serving = Serving.model_validate({"weights": "q4_k_m", **asked, "engine": "llama.cpp", "outputs": 1})
    found = placed(serving, resolve(row["model"]).spec)
    gpu = found.fullest
    return {
        "kv_mib": (gpu.cache + found.host["kv_cache"]) / MIB,
        "weights_mib": (gpu.weights + found.host["weights"]) / MIB,
    }


def errors(field: str, aside: bool) -> Iterator[tuple[str, float]]:
    """By how much, of what was logged, answers are more; of the rows that are held out, or of the others."""
    for row in ROWS:
        if field in row and row.get("aside", False) is aside:
            yield row["name"], _sizes(row["name"])[field] / row[field] - 1


def main() -> None:
    for field in LOGGED:
        for aside in (False, True):
            found = sorted(errors(field, aside), key=lambda one: -abs(one[1]))
            sizes = [abs(error) for _, error in found]
            said = "held out" if aside else "others"
            print(f"{field:12} {said:9} {len(found):3} rows: median {median(sizes):.3%}, worst {sizes[0]:.3%}")
            print(*(f"    {error:+.3%} {name}" for name, error in found[:3]), sep="\n")


if __name__ == "__main__":
    main()
