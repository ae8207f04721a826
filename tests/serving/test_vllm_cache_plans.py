"""vLLM's groups, blocks and stages against its own planning of the catalogue's models (tests/data/vllm_cache_plans.yaml)."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.contract.job import Serving
from estimator.families.cache_layers import CacheLayer, compresses
from estimator.families.spec import ModelSpec
from estimator.serving.drafts import draft_cache
from estimator.serving.tensors import stage_layers
from estimator.serving.vllm.cache_groups import grouped, kept
from estimator.serving.vllm.packed import packed
from estimator.serving.vllm.speculation import drafter_of
from estimator.specs.resolve import resolve
from tests.jobs import TESTS, content

DATA: dict[str, Any] = content(TESTS / "data" / "vllm_cache_plans.yaml")
GUESSED, IN_FLIGHT = 3, 2 * 8192


def _layers(spec: ModelSpec, guess: str) -> tuple[CacheLayer, ...]:
    """What the model keeps, and what guesses for it."""
    given: dict[str, Any] = {"num_speculative_tokens": GUESSED}
    if guess in ("eagle3", "mtp", "ngram"):
        given["method"] = guess
    else:
        given["model"] = resolve(guess).spec.model_dump(mode="json")
    serving = Serving.model_validate({"speculative_config": given})
    return (*spec.cache_layers, *draft_cache(drafter_of(serving, spec), spec))


def _planned(row: dict[str, Any]) -> tuple[int, int, int]:
    spec, guess = resolve(row["model"]).spec, row.get("guess")
    layers = _layers(spec, guess) if guess else spec.cache_layers
    pages = kept(layers, row["tensor"], row["cached"], 2, None, GUESSED if guess else 0) if not compresses(layers) else None
    found = packed(layers) if pages is None else grouped(pages)
    return len(found.kinds), found.block_bytes, found.request_blocks(row["context"], IN_FLIGHT)


def test_groups_and_blocks_are_vllms_own() -> None:
    rows = DATA["plans"]
    differ = [row for row in rows if _planned(row) != (row["groups"], row["block_bytes"], row["request_blocks"])]
    assert differ == []
    assert len(rows) > 450
    assert len({row["groups"] for row in rows}) > 5  # of one group to eight and more
    assert sum("guess" in row for row in rows) > 10


@pytest.mark.parametrize("row", DATA["stages"], ids=lambda row: f"{row['model']} over {row['stages']}")
def test_blocks_of_the_stages_are_vllms_own(row: dict[str, Any]) -> None:
    """Also of models with two caches to a layer, and with layers that keep nothing."""
    spec, stages = resolve(row["model"]).spec, row["stages"]
    layers, depth = kept(spec.cache_layers, 1, 2, 2), spec.language_model.num_hidden_layers
    found = []
    for stage in range(stages):
        mine = stage_layers(depth, (stage, stages))
        found.append(grouped(layers, frozenset(entry for entry, at in enumerate(spec.cache_places) if at in mine)).block_bytes)
    assert found == row["block_bytes"]
