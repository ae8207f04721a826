"""The rows of tests/data/sglang_starts.yaml, and how near answers come to them: `python -m tests.serving.sglang_starts`.

Three ways, of which each takes more from the log than the one before. `job`: the job alone is known. `free`: also what was free
before loading. `rule`: also what was free after it, so that only the rules for pools are held against the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import median
from typing import Any

from estimator import estimate
from estimator.contract.answer import Answer
from estimator.contract.job import Serving
from estimator.contract.units import GIB
from estimator.families.cache_layers import CacheLayer
from estimator.families.llama import LlamaSpec
from estimator.serving.sglang.pools import Cells, Pools, cells, pools
from estimator.specs.resolve import resolve
from tests.jobs import TESTS, content

ROWS: list[dict[str, Any]] = content(TESTS / "data" / "sglang_starts.yaml")["rows"]
LARGE = 1.0
"""GiB of a pool from which its tokens are compared: of a smaller one, two decimals of what is free are too much."""
WAYS = ("job", "free", "rule")
ITS_OWN = {
    "fraction": "mem_fraction_static",
    "chunk": "chunked_prefill_size",
    "page": "page_size",
    "ratio": "swa_full_tokens_ratio",
    "weights": "weights",
    "kv_cache": "kv_cache",
}


class _Listed(LlamaSpec):
    """A model of which only the layers of the cache are known."""

    window_pool = "0.4.10"

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        return self._layers

    _layers: tuple[CacheLayer, ...] = ()


def serving(row: dict[str, Any]) -> dict[str, Any]:
    """The row's settings."""
    return {"engine": "sglang", **{ITS_OWN[key]: value for key, value in row.items() if key in ITS_OWN}}


@cache
def answer(name: str) -> Answer:
    """The row as a job."""
    row = _row(name)
    hardware = {"gpu": row.get("gpu", "gb10"), "gpus": row["gpus"]}
    parallelism = {"tensor": row["gpus"]}
    return estimate(
        {"model": row["model"], "task": "serve", "hardware": hardware, "serving": serving(row), "parallelism": parallelism}
    )


@cache
def _row(name: str) -> dict[str, Any]:
    return next(row for row in ROWS if row["name"] == name)


@cache
def cell(name: str) -> Cells:
    """What a token takes in the row's model."""
    row = _row(name)
    spec = resolve(row.get("model", "llama-3.1-8b")).spec
    if "model" not in row:
        listed = _Listed.model_validate(spec.model_dump())
        listed._layers = tuple(layer for kind in row["layers"] for layer in _layers(dict(kind)))
        spec = listed
    return cells(spec, Serving.model_validate(serving(row)), row["gpus"])


def _layers(kind: dict[str, Any]) -> list[CacheLayer]:
    name = next(name for name in ("full", "window", "latent") if name in kind)
    key = kind["key"]
    value = 0 if name == "latent" else kind.get("value", key)
    return [CacheLayer(name, kind.get("heads", 1), key, value, kind.get("tokens"))] * kind[name]


def made(row: dict[str, Any], way: str) -> Pools | None:
    """Pools in one of the ways, of `job` only their tokens and bytes; None where the row does not say enough."""
    if way == "job":
        if "gpu" not in row:
            return None
        engine = answer(row["name"]).memory.engine
        assert engine is not None
        assert engine.cache_tokens is not None
        assert engine.cache_bytes is not None
        return Pools(engine.cache_tokens, engine.window_tokens or 0, 0, 0, engine.cache_bytes)
    if "before_gib" not in row or (way == "free" and "model" not in row):
        return None
    rest = row["after_gib"] - row["before_gib"] * (1 - row["fraction"])
    if way == "free":
        engine = answer(row["name"]).memory.engine
        assert engine is not None
        rest = row["before_gib"] * row["fraction"] - engine.weights_bytes / GIB
    return pools(int(rest * GIB), cell(row["name"]), Serving.model_validate(serving(row)))


def errors(way: str, aside: bool | None = None) -> Iterator[tuple[str, float]]:
    """By how much there are more tokens, or bytes, than were logged; of the rows that are held out, of the others, or of all."""
    for row in ROWS:
        found = made(row, way) if aside in (None, row.get("aside", False)) else None
        if found is None or row.get("pool_gib", LARGE) < LARGE:
            continue
        yield row["name"], found.nbytes / (row["cache_gib"] * GIB) - 1 if "cache_gib" in row else found.tokens / row["tokens"] - 1


def differences() -> Iterator[tuple[str, float]]:
    """GiB more by the rules than the pools that were logged, however small these are."""
    for row in ROWS:
        if "pool_gib" in row and (found := made(row, "rule")) is not None:
            yield row["name"], found.nbytes / GIB - _pool(row)


def weights() -> Iterator[tuple[str, float]]:
    """By how much weights are more than were logged, on memory that is the GPU's own."""
    for row in ROWS:
        if "weights_gib" in row and "gpu" in row:
            engine = answer(row["name"]).memory.engine
            assert engine is not None
            yield row["name"], engine.weights_bytes / (row["weights_gib"] * GIB) - 1


def held() -> Iterator[tuple[str, float]]:
    """By how much the tokens that were logged take more than the pools that were."""
    for row in ROWS:
        if "pool_gib" in row and row["pool_gib"] > LARGE / 2:
            each = cell(row["name"])
            full = row["tokens"] if each.full else 0
            windowed = row.get("window_tokens", 0 if each.full else row["tokens"])
            yield row["name"], (full * each.full + windowed * each.windowed) / (_pool(row) * GIB) - 1


def _pool(row: dict[str, Any]) -> float:
    """GiB of pools: of a cache in fp4 the log counts its codes, beside which there is a scale for sixteen."""
    return float(row["pool_gib"] * (9 / 8 if row.get("kv_cache") == "fp4" else 1))


def main() -> None:
    for way in WAYS:
        for aside in (False, True):
            found = list(errors(way, aside))
            sizes = sorted((abs(error) for _, error in found), reverse=True)
            if not found:
                continue
            print(
                f"{way:8} {'held out' if aside else 'others':9} {len(found):3} rows: "
                f"median {median(sizes):.2%}, worst {sizes[0]:.2%}"
            )
            print(*(f"    {error:+.2%} {name}" for name, error in sorted(found, key=lambda one: -abs(one[1]))[:4]), sep="\n")
    for title, rows in (("weights", weights()), ("a token's bytes", held())):
        print(title, *(f"    {error:+.2%} {name}" for name, error in rows), sep="\n")
    print("pools by the rules, GiB more", *(f"    {error:+.3f} {name}" for name, error in differences()), sep="\n")


if __name__ == "__main__":
    main()
