"""What people write is understood, or refused, and never taken for something else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from api.app import app
from estimator import UnknownName, WillItFitError, estimate, fit
from estimator.cli.main import main
from estimator.contract.errors import UnknownModel
from estimator.contract.job import Hardware
from estimator.contract.reading import load_yaml
from estimator.facts import catalogue
from estimator.facts.spelling import folded, joined, words
from estimator.hardware import accelerator, naming, node
from estimator.hardware.parse import read_hardware
from estimator.pricing import prices
from estimator.specs import unbuilt
from estimator.specs.published import VARIABLE, folders, model_folder, read
from estimator.specs.resolve import resolve
from estimator.views import listing
from tests.jobs import cases

HARDWARE = cases("hardware_names")
MODELS = cases("model_names")
client = TestClient(app, raise_server_exceptions=False)


def shape(hardware: Hardware) -> str:
    """Hardware as the table writes it."""
    count = f"{hardware.gpus} x " if hardware.gpus > 1 else ""
    nodes = f"{hardware.nodes} nodes of " if hardware.nodes > 1 else ""
    return nodes + count + " and ".join(filter(None, (hardware.gpu, hardware.memory, hardware.ram and f"{hardware.ram} of RAM")))


@pytest.mark.parametrize("case", HARDWARE, ids=lambda case: repr(case["written"]))
def test_hardware_means_what_the_table_says(case: dict[str, Any]) -> None:
    assert set(case) <= {"written", "means", "said", "refused"}
    if "refused" in case:
        with pytest.raises(WillItFitError) as error:
            read_hardware(case["written"])
        assert case["refused"] in str(error.value)
        assert "\n" not in str(error.value)
        return
    found = read_hardware(case["written"])
    assert shape(found.hardware) == case["means"]
    assert case.get("said", "; ".join(found.said)) == "; ".join(found.said)


@pytest.mark.parametrize("case", MODELS, ids=lambda case: repr(case["written"]))
def test_a_model_means_what_the_table_says(case: dict[str, Any]) -> None:
    assert set(case) <= {"written", "means", "called", "read", "stored", "whole", "mlx", "refused"}
    if "refused" in case:
        with pytest.raises(WillItFitError) as error:
            resolve(case["written"], allow_files=False)
        assert case["refused"] in str(error.value)
        assert "\n" not in str(error.value)
        return
    found = resolve(case["written"], allow_files=False)
    said = "; ".join(found.assumptions)
    described = read(model_folder() / f"{case['means']}.yaml").architecture
    assert found.spec.model_copy(update={"countable": True}) == described.model_copy(update={"countable": True})
    assert found.name == case.get("called", case["means"])
    assert "stored" not in case or (found.stored and found.stored.format == case["stored"])
    assert found.mlx == case.get("mlx", "")
    assert "whole" not in case or (found.stored and list(found.stored.whole) == case["whole"])
    assert not found.stored or "stored" in case or not found.stored.named
    assert (f"the same architecture and sizes as {case['means']}" in said) == ("called" in case)
    assert (f"{case['written']} read as {found.name}" in said or "taken for" in said) == case.get("read", False)


UNBUILT = catalogue.shipped(unbuilt.FILE)["models"]


@pytest.mark.parametrize("row", UNBUILT, ids=lambda row: str(row["names"][0]))
def test_what_transformers_has_no_class_for_is_said(row: dict[str, Any]) -> None:
    assert set(row) <= {"names", "model_type"}
    for name in row["names"]:
        with pytest.raises(UnknownModel, match="has no class for it, and the code of its checkpoint is never run"):
            resolve(name, allow_files=False)


@pytest.mark.parametrize(
    ("of", "said"), [("closed", "there is nothing to run"), ("diffusion", "by diffusion, which is not modelled")]
)
def test_what_is_no_model_of_transformers_is_said(of: str, said: str) -> None:
    for name in catalogue.shipped(unbuilt.FILE)[of]:
        with pytest.raises(UnknownModel, match=said):
            resolve(name, allow_files=False)


@pytest.mark.parametrize("row", catalogue.shipped(unbuilt.FILE)["towers"], ids=lambda row: str(row["instead"]))
def test_the_part_that_is_modelled_is_named(row: dict[str, Any]) -> None:
    assert set(row) == {"names", "instead"}
    assert resolve(row["instead"], allow_files=False).spec.forward_modelled
    for name in row["names"]:
        with pytest.raises(UnknownModel, match=re.escape(f"Did you mean {row['instead']}?")):
            resolve(name, allow_files=False)


@pytest.mark.torch
def test_transformers_has_none_of_these_types() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    assert not {row["model_type"] for row in UNBUILT if "model_type" in row} & set(CONFIG_MAPPING)


def test_there_are_enough_spellings() -> None:
    for table, least in ((HARDWARE, 80), (MODELS, 700)):
        assert len({case["written"] for case in table}) == len(table) >= least


NAMES = {"models": model_folder(), "accelerators": accelerator.FOLDER, "nodes": node.FOLDER}


@pytest.mark.parametrize("what", NAMES)
def test_a_name_is_of_one_thing(what: str) -> None:
    """Of no two files, and none is empty, however it is compared; lists are read without parsing as parsing reads them."""
    owners: dict[str, Path] = {}
    for one in catalogue.entries(NAMES[what]):
        for written in {one.name, one.name.rpartition("/")[2]}:
            assert folded(written)
            assert owners.setdefault(folded(written), one.path) == one.path, one
    listed = {(one.name, one.path.stem, one.other) for one in catalogue.entries(NAMES[what])}
    parsed: set[tuple[str, str, bool]] = set()
    for name in catalogue.names(NAMES[what]):
        content = load_yaml(NAMES[what] / f"{name}.yaml")
        parsed |= {(str(alias), name, False) for alias in (name, *content["aliases"])}
        parsed |= {(alias, name, True) for alias in content.get("same_architecture", ())}
    assert listed == parsed


def test_makers_make_no_two_names_one() -> None:
    owners: dict[str, str] = {}
    for directory in (accelerator.FOLDER, node.FOLDER):
        for one in catalogue.entries(directory):
            bare = joined([word for word in naming.with_units(words(one.name)) if word not in naming.MAKERS])
            assert owners.setdefault(bare, one.path.stem) == one.path.stem, one
            assert words(one.name)[1:2] != ["x"]
            assert directory == accelerator.FOLDER or not words(one.name)[0].isdecimal()


@pytest.mark.parametrize("name", catalogue.names(accelerator.FOLDER))
def test_a_card_is_found_by_what_nvidia_smi_prints_and_what_it_is_sold_with(name: str) -> None:
    card = accelerator.accelerator(name)
    for said in (name, *card.aliases):
        alias = f"{said[:-1]}S" if said.endswith("s") else said  # which in the plural could be those without it
        found = read_hardware(f"2x {alias}").hardware
        assert (found.gpu, found.gpus * found.nodes) == (name, 2), alias  # a node of some has one
        three = read_hardware(f"{alias} x3").hardware
        assert three.gpus * three.nodes == 3
    sold = next(iter(naming.sold(name)))
    assert accelerator.accelerator(f"{name.removesuffix(f'-{sold.lower()}')} {sold}").name == name


def test_another_models_facts_are_not_told_as_its_own() -> None:
    theirs, ours = resolve("deepseek-r1").published, resolve("deepseek-v3").published
    assert theirs
    assert ours
    assert ours.licence
    assert (theirs.name, theirs.licence, theirs.released, theirs.aliases) == ("DeepSeek-R1", None, None, [])
    answer = estimate({"model": "llama 3.3 70b", "task": "serve", "hardware": {"gpu": "h200"}})
    assert "llama-3.3-70b: the same architecture and sizes as llama-3.1-70b" in answer.assumptions


SMALL = (
    "{model_type: llama, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4, vocab_size: 100}"
)


@pytest.mark.parametrize(
    "aliases",
    [
        "aliases:\n  - our-model\n  - 'Our Other: One'",
        "aliases:\n- our-model\n- Our Other One\n",
        "aliases: [our-model, 'our, other one']",
        "aliases: [our-model,  # as we call it\n  our other one]",
        '"aliases": ["our-model", "our other one"]',
        "# aliases: []\naliases:\n  # two\n  - our-model\n  - our-other-one",
    ],
)
def test_a_users_names_are_read_in_any_style(aliases: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{aliases}\nsame_architecture:\n  - their-model\narchitecture: {SMALL}\n"
    (tmp_path / "ours.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "broken.yaml").write_text("aliases:\n - [", encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    catalogue.entries.cache_clear()
    assert resolve("our-model").name == resolve("Our Other One").name == "ours"
    assert resolve("their model").name == "their-model"
    assert resolve("their model").assumptions == ("their-model: the same architecture and sizes as ours",)
    assert folders()[0] == tmp_path


HOSTILE = ["!!!", "💥", "显卡", "---", "\0", "a\0b", "²x½", "ﷺ" * 150, "x1" * 90]
HOSTILE += ["x" * 60_000, "2x" * 30_000, "8 " * 30_000, "1" * 60_000]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:8]))
def test_nonsense_is_refused_at_every_door_in_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = {"model": "gpt2", "hardware": {"gpu": text}}
    for ask in (
        lambda: read_hardware(text),
        lambda: resolve(text, allow_files=False),
        lambda: fit("gpt2", text),
        lambda: fit(text, "t4", allow_files=False),
        lambda: estimate(job),
        lambda: accelerator.accelerator(text),
        lambda: node.node(text),
        lambda: listing.gpus(text),
        lambda: listing.nodes(text),
        lambda: listing.models(text),
        lambda: prices.search(text),
        lambda: estimate({"model": "gpt2", "hardware": {"gpu": "t4", "grid": text}, "training": {"tokens": "1M"}}),
    ):
        with pytest.raises(WillItFitError) as error:
            ask()
        assert len(str(error.value)) < 600
        assert "\n" not in str(error.value)
    asked = [("fit", {"model": "gpt2", "on": text}), ("fit", {"model": text, "on": "t4"})]
    asked.append(("estimate", {"model": "gpt2", "on": text}))
    for path, query in asked:
        assert client.get(f"/v1/{path}", params=query).status_code in (404, 414, 422)
    capsys.readouterr()
    for arguments in (["gpt2", "--on", text], ["gpus", text], ["nodes", text], ["models", text], ["prices", text]):
        if not text.startswith("-"):
            assert main(arguments) in (2, 3)
            assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["gpt2", "--on=--"], ["gpt2", "--on", "t4", "--specs=--"], ["budget", "job.yaml", "--gpu=--"]]
)
def test_what_argparse_cannot_take_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "'--' is no value" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ("2x4090", "write gpu: rtx-4090 and gpus: 2"),
        ("24GB", "write memory: 24GB"),
        ("dgx h100", "is a node, not a GPU: write gpu: h100 and gpus: 8"),
        ("2 nodes of 8xH100", "write gpu: h100 and gpus: 8 and nodes: 2"),
        ("", "gpu is empty"),
    ],
)
def test_a_gpu_of_a_job_is_a_name_and_nothing_more(gpu: str, said: str) -> None:
    with pytest.raises(WillItFitError, match=said):
        estimate({"model": "gpt2", "hardware": {"gpu": gpu}})


def test_a_gpu_of_a_job_is_named_as_people_name_it() -> None:
    answer = estimate({"model": "gpt2", "hardware": {"gpu": "NVIDIA GeForce RTX 4090 24GB"}})
    assert "NVIDIA GeForce RTX 4090 24GB read as rtx-4090" in answer.assumptions


@pytest.mark.parametrize(
    ("ask", "found"),
    [
        (lambda: listing.gpus("MacBook Pro M3 Max 64GB"), "m3-max-64gb"),
        (lambda: listing.models("llama 3 8b chat"), "llama-3-8b"),
        (lambda: listing.models("deepseek v3 0324"), "deepseek-v3"),
        (lambda: listing.nodes("azure nd96isr_h100_v5"), "nd96isr_h100_v5"),
    ],
)
def test_listings_understand_what_is_understood_elsewhere(ask: Any, found: str) -> None:
    assert [row["name"] for row in ask()] == [found]


PARTS = ["8", "2", "x", "x2", "8x", "h100", "a100", "40gb", "80", "gb", "nodes", "of", "two", "4090s", "24GB", "tpu", "v4"]
PARTS += ["m3 max", "p4d", "and", "+", ",", "ti"]


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=8), st.sampled_from(["", " ", "-"]))
def test_any_phrase_is_read_or_refused(parts: list[str], between: str) -> None:
    """What is read is a card or a node of ours, or an amount of memory, as often as some number of the phrase."""
    try:
        found = read_hardware(between.join(parts)).hardware
    except WillItFitError:
        return
    assert found.gpu is None or accelerator.accelerator(found.gpu).name == found.gpu
    assert found.memory is None or any(character.isdigit() for character in found.memory)


@pytest.mark.slow
def test_a_near_miss_is_never_taken() -> None:
    """A name with a letter more or less is another name, or none."""
    for name in catalogue.names(accelerator.FOLDER):
        for wrong in (f"{name}q", name.removesuffix("gb")[:-1], f"q{name}"):
            try:
                found = accelerator.accelerator(wrong)
            except UnknownName:
                continue
            assert found.name != name or folded(wrong) in map(folded, found.aliases)
