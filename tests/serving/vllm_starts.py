"""The rows of tests/data/vllm_starts.yaml, and how near answers come to them: `python -m tests.serving.vllm_starts`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import median
from typing import Any

from estimator import estimate
from estimator.contract.answer import EngineMemory
from estimator.specs.resolve import resolve
from tests.jobs import TESTS, content

ROWS: list[dict[str, Any]] = content(TESTS / "data" / "vllm_starts.yaml")["rows"]
LOGGED = {
    "weights_gib": "weights_bytes",
    "activation_gib": "activation_bytes",
    "cache_gib": "cache_bytes",
    "blocks": "cache_blocks",
    "cache_tokens": "cache_tokens",
    "requests": "concurrency",
}
"""What a log has, and the answer's field."""
ITS_OWN = {
    "utilization": "gpu_memory_utilization",
    "sequences": "max_num_seqs",
    "tokens": "max_num_batched_tokens",
    "release": "engine_version",
    "context": "context",
    "weights": "weights",
    "kv_cache": "kv_cache",
}


def asked(row: dict[str, Any]) -> dict[str, Any]:
    """The row as a job."""
    model: Any = row["model"]
    if "positions" in row:
        model = {**resolve(model).spec.model_dump(mode="json"), "max_position_embeddings": row["positions"]}
    card = {"gpu": row["gpu"]} if "gpu" in row else {"memory": row.get("sold", "80GB")}
    return {
        "model": model,
        "task": "serve",
        "hardware": {**card, "gpus": row["gpus"]},
        "serving": {ITS_OWN[key]: value for key, value in row.items() if key in ITS_OWN},
        "parallelism": {"tensor": row["gpus"]},
    }


@cache
def _engine(name: str) -> EngineMemory:
    found = estimate(asked(next(row for row in ROWS if row["name"] == name))).memory.engine
    assert found is not None
    return found


def errors(field: str, aside: bool | None = None) -> Iterator[tuple[str, float]]:
    """By how much, of what was logged, answers are more; of the rows that are held out, of the others, or of all."""
    for row in ROWS:
        on_a_card = "gpu" in row or "sold" in row or field == "weights_gib"
        if field in row and on_a_card and aside in (None, row.get("aside", False)):
            found = getattr(_engine(row["name"]), LOGGED[field])
            yield row["name"], found / (row[field] * (2**30 if field.endswith("_gib") else 1)) - 1


def main() -> None:
    for field in LOGGED:
        for aside in (False, True):
            found = list(errors(field, aside))
            sizes = sorted((abs(error) for _, error in found), reverse=True)
            worst = sorted(found, key=lambda one: -abs(one[1]))[:4]
            print(
                f"{field:16} {'held out' if aside else 'others':9} {len(found):3} rows: "
                f"median {median(sizes):.2%}, worst {sizes[0]:.2%}"
            )
            print(*(f"    {error:+.2%} {name}" for name, error in worst), sep="\n")


if __name__ == "__main__":
    main()
