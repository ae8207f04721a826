"""Accelerators and nodes: what is known of them, how they are found, and what joins them."""

from __future__ import annotations

import pytest

from estimator import InvalidJob, UnknownName, estimate
from estimator.cli.report_hardware import facts_text, gpus_text, unverified_text
from estimator.contract.job import Hardware
from estimator.facts import catalogue
from estimator.facts.spelling import folded
from estimator.hardware import accelerator, node
from estimator.hardware.accelerator import accelerator as card_of
from estimator.timing.links import between_gpus, links
from estimator.views import listing

NODES = catalogue.names(node.FOLDER)
CARDS = catalogue.names(accelerator.FOLDER)


@pytest.mark.parametrize("name", NODES)
def test_a_node_is_what_it_says(name: str) -> None:
    """Its accelerator is known, by its own name, and joined as it can be; every fact has two sources or the flag."""
    found = node.node(name)
    assert found.name == name
    assert found.accelerator in CARDS
    assert found.link is not None or found.gpus.value == 1
    assert 1 <= found.gpus.value <= 72
    assert found.switched <= (card_of(found.accelerator).form not in ("pcie", "oam"))
    if found.gpus.value > 2 and card_of(found.accelerator).form == "pcie":
        assert found.joined_by == "pcie"
    if found.network and found.link and not found.switched:
        assert found.network.bandwidth.value < 8 * found.link.bandwidth.value
    for where, fact in found.facts.items():
        assert fact.verified == bool(fact.second_source), where
        assert fact.verified or fact.note or "from memory" in fact.source, where
        assert fact.unit in ("GPUs", "vCPUs", "GiB", "GB/s"), where


def test_names_of_nodes_are_theirs_alone() -> None:
    owners = {folded(alias): name for name in CARDS for alias in (name, *card_of(name).aliases)}
    for name in NODES:
        for alias in {folded(a) for a in (name, *node.node(name).aliases)}:
            assert owners.setdefault(alias, name) == name, alias


def test_the_usual_node_of_an_accelerator_has_it() -> None:
    usual = {name: found for name in CARDS if (found := card_of(name).usual_node)}
    assert len(usual) >= 20
    for name, of in usual.items():
        assert node.node(of).accelerator == name


@pytest.mark.parametrize(
    ("gpu", "gpus", "within", "between", "of"),
    [
        ("h100", 8, ("nvlink4", 450), ("InfiniBand NDR", 400), "dgx-h100"),
        ("a100-80gb", 4, ("nvlink3", 300), ("InfiniBand HDR", 200), "dgx-a100"),
        ("rtx-3090", 2, ("nvlink3", 56.25), None, None),
        ("rtx-3090", 4, ("PCIe 4.0 x16", 31.508), None, None),
        ("rtx-4090", 2, ("PCIe 4.0 x16", 31.508), None, None),
        ("rtx-4090", 1, None, None, None),
        ("l40s", 8, ("PCIe 4.0 x16", 31.508), ("ENA", 50), "g6e.48xlarge"),
    ],
)
def test_ranks_have_links(gpu: str, gpus: int, within: object, between: object, of: str | None) -> None:
    found = node.links(card_of(gpu), gpus)
    parts = [link and (link.kind, link.bandwidth.value) for link in (found.within, found.between)]
    assert (*parts, found.node) == (within, between, of)


def test_a_job_says_its_network() -> None:
    card, two = card_of("a100-80gb"), {"gpus": 8, "nodes": 2}
    usual, own = Hardware.model_validate(two), Hardware.model_validate({**two, "network": {"adapters": 4, "gigabits": 100}})
    assert (links(usual, card).network, links(own, card).network) == (25, 6.25)  # GB/s: 8 of 200 Gb/s, 4 of 100, over 8 GPUs
    assert links(usual, card).link == links(own, card).link
    said = ["time: 300 GB/s between GPUs of a node, as in dgx-a100 and 6.25 GB/s for each GPU between nodes"]
    assert between_gpus(own, card) == [f"{said[0]}, as hardware.network says, each way"]


def test_a_slower_network_takes_longer_only_between_nodes() -> None:
    def seconds(nodes: int, network: dict[str, int] | None) -> float:
        hardware = {"gpu": "a100-80gb", "gpus": 8, "nodes": nodes, "network": network}
        job = {"model": "gpt2", "hardware": hardware, "parallelism": {"strategy": "zero1"}}
        time = estimate({**job, "training": {"precision": "deepspeed-bf16"}}).time
        assert time
        return time.step_seconds

    four, eight = {"adapters": 4, "gigabits": 100}, {"adapters": 8, "gigabits": 200}
    assert seconds(2, four) > seconds(2, eight) == seconds(2, None)
    assert seconds(1, four) == seconds(1, None)


def test_a_job_that_names_a_node_is_told_its_gpus() -> None:
    with pytest.raises(InvalidJob, match=r"p5.48xlarge is a node, not a GPU: write gpu: h100 and gpus: 8"):
        estimate({"model": "gpt2", "hardware": {"gpu": "p5.48xlarge"}})


@pytest.mark.parametrize(
    ("gpu", "runs"), [("mi300x", "ROCm"), ("tpu-v5e", "XLA"), ("m2-ultra-192gb", "Metal"), ("gaudi2", "its maker")]
)
def test_cards_without_cuda_are_counted_as_if(gpu: str, runs: str) -> None:
    answer = estimate({"model": "gpt2", "hardware": {"gpu": gpu}, "training": {"precision": "32-true"}})
    assert any(runs in warning and "as on CUDA" in warning for warning in answer.warnings)
    assert any("compute capability 8.0" in assumption for assumption in answer.assumptions)


@pytest.mark.parametrize(
    ("search", "found", "not_found"),
    [
        ("", "rtx-4090", "nothing"),
        ("24GB ada", "rtx-4090", "rtx-3090"),
        ("24gb", "rtx-3090", "rtx-3060"),
        ("ampere sxm4", "a100-80gb", "a100-pcie-80gb"),
        ("amd", "mi300x", "h100"),
        ("RTX 30", "rtx-3070", "rtx-4070"),
        ("nvlink5", "gb200", "h200"),
    ],
)
def test_accelerators_are_searched(search: str, found: str, not_found: str) -> None:
    names = [row["name"] for row in listing.gpus(search)]
    assert found in names
    assert not_found not in names
    assert search or names == sorted(names, key=lambda name: (card_of(name).memory_bytes, name))


@pytest.mark.parametrize(
    ("search", "found", "not_found"), [("aws h100", "p5.48xlarge", "dgx-h100"), ("8x azure", "nd96asr_v4", "g5.48xlarge")]
)
def test_nodes_are_searched(search: str, found: str, not_found: str) -> None:
    names = [row["name"] for row in listing.nodes(search)]
    assert found in names
    assert not_found not in names


def test_what_nothing_is_called_is_said() -> None:
    with pytest.raises(UnknownName, match=r"no gpu has 'rtx-4099' in its name or among its kinds. Did you mean rtx-4090"):
        listing.gpus("rtx-4099")
    with pytest.raises(UnknownName, match="`willitfit nodes` lists them all"):
        listing.nodes("qqqqqq")
    with pytest.raises(UnknownName, match="Did you mean m4-max"):
        card_of("m4-max")


@pytest.mark.parametrize("about", [card_of("b200"), node.node("trn2.48xlarge")], ids=["accelerator", "node"])
def test_all_about_one_names_both_sources_of_every_fact(about: accelerator.Accelerator | node.Node) -> None:
    said = facts_text(about)
    for where, fact in about.facts.items():
        told = said.split(f"\n{where}: ")[1].split("as of")[0]
        assert fact.source in told
        assert fact.second_source in told
        assert ("(unverified)" in told) == (not fact.verified)


def test_the_flag_is_in_the_table() -> None:
    rows = listing.gpus("ampere")
    header, *lines = gpus_text(rows).splitlines()
    assert header.split()[-1] == "unverified"
    for row, line in zip(rows, lines, strict=True):
        assert line.endswith(unverified_text(row["unverified"]))
        assert ("memory" in row["unverified"]) == (not row["memory_verified"])
    assert len({row["memory_verified"] for row in rows}) == 2
