"""Every fact that ships: it has a unit, a source and a day, and a value that can be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date

import pytest

from estimator import estimate
from estimator.facts import catalogue
from estimator.facts.fact import Fact, MeasuredFact
from estimator.hardware.accelerator import FOLDER, accelerator
from estimator.hardware.capability import nvlinks
from estimator.pricing import energy, spot
from estimator.runtime import overheads
from estimator.serving.sglang import settings as sglang
from estimator.serving.tensorrt_llm import settings as tensorrt_llm
from estimator.serving.vllm import settings
from estimator.specs.published import model_folder, published
from estimator.timing.measured import shared
from estimator.timing.step import efficiencies

CARDS = catalogue.names(FOLDER)
UNITS = {
    "MiB",
    "GiB",
    "sequences",
    "tokens",
    "GB/s",
    "TFLOP/s",
    "W",
    "multiprocessors",
    "of each chip",
    "parameters",
    "microseconds for each token that is handed out",
    "share of dense peak",
    "share of memory bandwidth",
    "share of allocated bytes",
    "share of the framebuffer",
    "share of the time of a step's kernels",
    "microseconds of the host for each kernel of an eager step",
    "milliseconds of an engine's step",
    "share of the GPU that NCCL takes while an exchange runs beside kernels",
    "W of a node per W of its GPUs' TDP",
    "W of a site per W of its nodes",
    "gCO2e/kWh",
    "share of the network's bandwidth",
    "share of the link's bandwidth",
    "share of the bus's bandwidth",
    "microseconds",
    "seconds for each of FlashAttention-2's",
    "hours for each instance that is taken back",
    "share of derived activations",
}
OLDEST = date(2023, 1, 1)


def facts() -> Iterator[tuple[str, Fact]]:
    """Every fact of every catalogue but that of accelerators, with its address."""
    yield from ((f"{name}.parameters", fact) for name in catalogue.names(model_folder()) if (fact := published(name).parameters))
    yield from ((f"overheads.{name}", fact) for name, fact in overheads.facts().items())
    yield from ((f"vllm.{name}", fact) for name, fact in settings.facts().items())
    yield from ((f"sglang.{name}", fact) for name, fact in sglang.facts().items())
    yield from ((f"tensorrt-llm.{name}", fact) for name, fact in tensorrt_llm.facts().items())
    yield from ((f"efficiency.{name}", fact) for name, fact in efficiencies().items())
    yield from ((f"nvlink.{name}", fact) for name, fact in nvlinks().items())
    yield from ((f"shared.{name}", fact) for name, fact in shared() if isinstance(fact, Fact))
    yield from ((f"energy.{name}", fact) for name, fact in energy.facts().items())
    yield from ((f"grid.{name}", fact) for name, fact in energy.grids().items())
    yield "spot.hours_lost", spot.hours_lost()


@pytest.mark.parametrize(("where", "fact"), list(facts()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_fact_can_be_checked(where: str, fact: Fact) -> None:
    check(where, fact)


@pytest.mark.parametrize("name", CARDS)
def test_facts_of_an_accelerator_can_be_checked(name: str) -> None:
    for where, fact in accelerator(name).facts.items():
        check(f"{name}.{where}", fact)


def check(where: str, fact: Fact) -> None:
    """It has a unit, a source and a day, a value that can be, and where it is not verified, why."""
    assert fact.unit in UNITS
    assert len(fact.source) > 10
    assert fact.as_of >= OLDEST
    assert fact.value > 0 or where == "overheads.fragmentation"
    if isinstance(fact, MeasuredFact):
        assert fact.low <= fact.value <= fact.high
    if fact.unit.startswith("share"):
        assert 0 <= fact.value <= 1
    assert fact.verified or fact.note or "from memory" in fact.source, "an unverified fact says why"


def test_there_are_enough_cards() -> None:
    assert len(CARDS) >= 60
    assert {accelerator(name).vendor for name in CARDS} >= {"nvidia", "amd", "intel", "google", "aws", "apple"}


@pytest.mark.parametrize("name", CARDS)
def test_a_fact_has_two_sources_or_the_flag(name: str) -> None:
    for where, fact in accelerator(name).facts.items():
        assert fact.verified == bool(fact.second_source), f"{where}: two sources that agree, or verified: false"
        assert fact.second_source != fact.source, where
        assert not (fact.verified and "from memory" in fact.source + fact.second_source), where


@pytest.mark.parametrize("name", CARDS)
def test_a_process_gets_less_than_the_card_is_sold_with(name: str) -> None:
    card = accelerator(name)
    share = card.memory.value / card.framebuffer.value
    if card.vendor == "apple":  # what Metal recommends to use of the memory that the CPU shares
        assert 0.66 < share < 0.82
    else:
        assert 0.85 < share < 1 or (share == 1 and card.vendor in ("aws", "google"))  # not known there


@pytest.mark.parametrize("name", CARDS)
def test_a_card_is_as_large_as_its_name_says(name: str) -> None:
    for alias in (name, *accelerator(name).aliases):
        if said := re.search(r"(\d+) ?gb", alias.lower()):
            gigabytes = accelerator(name).framebuffer.value / 1024
            others = "480gb" in alias.lower() or (name == "radeon-8060s" and said[1] == "128")  # memory that the CPU shares
            assert others or 0.9 < gigabytes / int(said[1]) <= 1.03, alias


@pytest.mark.parametrize("name", CARDS)
def test_peaks_are_consistent(name: str) -> None:
    """Narrower types are never slower than half precision, which is never slower than fp32, but where a part was left out."""
    card = accelerator(name)
    peak = {kind: fact.value for kind, fact in card.peak.items()}
    assert peak
    half = peak.get("bf16", peak.get("fp16", peak.get("fp32", 0)))
    assert half >= peak.get("fp32", 0)
    assert half >= peak.get("tf32", 0)
    assert ("bf16" in peak) <= card.bf16
    for narrow in ("fp8", "fp4"):
        assert 0.99 * half <= peak.get(narrow, half) <= 10 * half, narrow
    if "int8" in peak and "blackwell" not in card.architecture:  # Blackwell Ultra has hardly any
        assert peak["int8"] >= 0.99 * half
    if card.form.startswith("sxm") and card.architecture in ("ampere", "hopper"):
        assert peak["int8"] == pytest.approx(2 * peak["bf16"], rel=0.01)
        assert peak["tf32"] == pytest.approx(peak["bf16"] / 2, rel=0.01)


@pytest.mark.parametrize("name", CARDS)
def test_facts_are_plausible(name: str) -> None:
    """Bandwidths, power and counts of what has been built: from a first M1's, or a laptop's of fifty watts, on."""
    card = accelerator(name)
    assert 60 <= card.memory_bandwidth.value <= 9000
    assert card.power is None or 45 <= card.power.value <= 1500
    assert card.multiprocessors is None or 5 <= card.multiprocessors.value <= 400
    for link in (card.interconnect, card.pcie):
        assert link is None or (link.kind and 7 < link.bandwidth.value < card.memory_bandwidth.value)
    if card.vendor == "nvidia":
        assert card.compute_capability is not None
        assert 6 <= float(card.compute_capability) < 13
        assert card.bf16 == (float(card.compute_capability) >= 8)


def test_what_a_process_gets_follows_the_framebuffer() -> None:
    """Measured cards lie near the rule by which the others are derived; drivers before 510 kept less."""
    for card in map(accelerator, CARDS):
        if card.vendor == "nvidia" and card.memory.verified:
            derived = card.framebuffer.value - 330 - 0.0022 * card.framebuffer.value
            assert card.memory.value == pytest.approx(derived, rel=0.02), card.name


@pytest.mark.parametrize("name", CARDS)
def test_any_name_finds_the_card(name: str) -> None:
    for alias in (name, *accelerator(name).aliases):
        for written in (alias, alias.upper(), alias.lower()):
            assert accelerator(written).name == name


def test_training_costs_its_tokens() -> None:
    """Twice the tokens cost twice as much; six FLOPs per parameter and token are the least that they take."""
    job = {"model": "llama-2-7b", "hardware": {"gpu": "a100-80gb", "gpus": 8}, "training": {"precision": "bf16-true"}}
    once = estimate({**job, "training": {"tokens": "100M"}})
    twice = estimate({**job, "training": {"tokens": "200M"}})
    assert once.run is not None
    assert twice.run is not None
    assert twice.run.parts["training"] == pytest.approx(2 * once.run.parts["training"], rel=0.001)
    assert once.time is not None
    tokens = 2048
    assert once.time.flops_per_step > 8 * 6.4e9 * tokens  # recomputation makes it eight
    assert once.time.flops_per_step < 10 * 6.8e9 * tokens


def test_serving_costs_its_hours() -> None:
    job = {"model": "llama-3-8b", "task": "serve", "hardware": {"gpu": "l40s", "gpus": 2}, "parallelism": {"tensor": 2}}
    found = estimate({**job, "serving": {"hours": 24}}).cost
    assert found is not None
    assert found.gpu_hours == 48
    assert found.total is not None
