"""Every shipped model: its count as published, as transformers builds it, and as the tape builds it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from jsonschema import Draft202012Validator
from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel

from estimator import InvalidJob, NotModelled, UnknownName
from estimator.contract.reading import load_yaml
from estimator.contract.version import DATA_VERSION
from estimator.facts import catalogue
from estimator.families import FAMILIES, count, heads, spec_class
from estimator.families.other import OtherSpec
from estimator.families.spec import DecoderSpec
from estimator.simulation.counting import counted_parameters
from estimator.specs.published import PublishedModel, model_folder, published
from estimator.specs.resolve import resolve
from estimator.verify.counter import check_class
from estimator.verify.model import config, defaulting_to, plain
from estimator.views.inspection import counts
from tests.jobs import ROOT

MODELS = catalogue.names(model_folder())
SCHEMA = Draft202012Validator(json.loads((ROOT / "docs" / "schema" / "model.json").read_text(encoding="utf-8")))
COUNTED = [name for name in MODELS if isinstance(published(name).architecture, OtherSpec)]
"""Of no family here."""
DERIVED = [name for name in MODELS if name not in COUNTED]
FIRST = {spec.model_type: spec for spec in (published(name).architecture for name in reversed(DERIVED))}
PICTURES = ("vit", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "wav2vec2", "hubert", "wavlm", "parakeet_ctc")
"""Whose input embedding is of no tokens, or that have none."""
BODIES = {"step3p5": Step3p7TextModel}
"""Language models that transformers has a body of, and no class with an output layer."""


def test_there_are_enough() -> None:
    assert len(MODELS) >= 200


@pytest.mark.share(8)
@pytest.mark.parametrize("name", DERIVED)
def test_a_spec_counts_as_torch_does_and_as_published(name: str) -> None:
    model = published(name)
    spec, found = model.architecture, counts(model.architecture)
    if spec.model_type in BODIES:
        with torch.device("meta"), defaulting_to(torch.bfloat16):
            body = BODIES[spec.model_type](config(spec, "eager"))
        assert isinstance(spec, DecoderSpec)
        head = spec.vocab_size * spec.hidden_size
        assert model.parameters
        assert found.total == sum(p.numel() for p in body.parameters()) + head == model.parameters.value
        return
    with torch.device("meta"):
        real = plain(spec, next(iter(heads(spec.model_type))), torch.bfloat16, "eager")
    assert model.parameters
    assert found.total == sum(p.numel() for p in real.parameters()) == model.parameters.value
    assert found.as_built_bytes == sum(p.numel() * p.element_size() for p in real.parameters())
    # LongRoPE's second table, and the coordinates of DINOv3's patches, are made in the first forward pass
    if getattr(spec, "rope_type", "") != "longrope" and spec.model_type != "dinov3_vit":
        assert found.buffer_bytes == sum(b.numel() * b.element_size() for b in real.buffers())
    if spec.model_type in PICTURES:
        assert found.embedding == 0
        return
    tokens = (
        real.text_model.embeddings.token_embedding if spec.model_type in ("clip", "metaclip_2") else real.get_input_embeddings()
    )
    assert found.embedding == tokens.weight.numel()


@pytest.mark.share(4)
@pytest.mark.parametrize("name", COUNTED)
def test_what_a_file_lists_of_no_family_is_what_transformers_builds(name: str) -> None:
    model = published(name)
    spec, listed = model.architecture, model.counted
    assert isinstance(spec, OtherSpec)
    assert listed
    assert listed.by == f"transformers {transformers.__version__}"
    kind = check_class(spec, spec.head)
    with torch.device("meta"):
        real = plain(spec, spec.head, torch.bfloat16, "eager")
    assert type(real) is kind
    assert sum(p.numel() for p in real.parameters()) == listed.total == counted_parameters(spec)
    assert real.get_input_embeddings().weight.numel() == listed.embedding
    assert model.parameters
    assert model.parameters.value == listed.total


def test_only_what_no_family_describes_lists_a_count() -> None:
    assert [name for name in MODELS if published(name).counted] == COUNTED


@pytest.mark.share(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_file_says_everything(name: str) -> None:
    content = load_yaml(model_folder() / f"{name}.yaml")
    SCHEMA.validate(json.loads(json.dumps(content, default=str)))
    said = published(name)
    assert said.aliases
    assert all((said.dtype, said.licence, said.released, said.as_of))
    assert said.source != PublishedModel.model_fields["source"].default


def test_no_fact_is_newer_than_the_data_say() -> None:
    """`versions.data` of an answer is the day of the newest fact."""
    days = [
        day
        for folder in (model_folder(), ROOT / "estimator")
        for file in folder.rglob("*.yaml")
        for day in re.findall(r"\bas_of: '?(\d{4}-\d\d-\d\d)", file.read_text(encoding="utf-8"))
    ]
    assert max(days) == DATA_VERSION


UNPUBLISHED = dict.fromkeys(
    ("deepseek_vl", "t5gemma2"), "no copy of a checkpoint's config.json was found in public, and none can be written from memory"
)
"""Families without a published model, and why."""


@pytest.mark.parametrize("model_type", [t for t in FAMILIES if spec_class(t).runs and t not in UNPUBLISHED])
def test_every_family_has_a_published_model(model_type: str) -> None:
    assert model_type in FIRST


def test_no_two_models_are_one() -> None:
    owners: dict[str, str] = {}
    for name in MODELS:
        written = published(name).architecture.model_dump_json()
        assert owners.setdefault(written, name) == name


@pytest.mark.parametrize("name", MODELS)
def test_any_name_finds_it(name: str) -> None:
    for alias in published(name).aliases:
        for written in (alias, alias.upper(), alias.rpartition("/")[2], alias.replace("-", " ")):
            assert resolve(written).name == name


@pytest.mark.share(4)
@pytest.mark.parametrize("model_type", FIRST)
def test_a_config_json_is_read_as_its_model(model_type: str, tmp_path: Path) -> None:
    spec = FIRST[model_type]
    written = config(spec, spec.attentions[0]).to_dict() | spec.config()  # T5's class forgets that its embedding is not tied
    (tmp_path / "config.json").write_text(json.dumps(written, default=str), encoding="utf-8")
    for path in (tmp_path, tmp_path / "config.json"):
        assert counts(resolve(str(path)).spec) == counts(spec)


def test_a_type_of_anothers_classes_is_read_as_that() -> None:
    spec = published("kimi-k2").architecture
    assert resolve({**spec.config(), "model_type": "kimi_k2"}).spec == spec


@pytest.mark.parametrize(("size", "like"), [("6.7B", "llama-2-7b"), ("13B", "llama-2-13b"), ("70b", "llama-2-70b")])
def test_a_bare_size_is_a_usual_shape(size: str, like: str) -> None:
    model, usual = resolve(size), published(like).architecture
    assert model.spec.num_hidden_layers == pytest.approx(usual.num_hidden_layers, rel=0.05)
    assert model.spec.hidden_size == pytest.approx(usual.hidden_size, rel=0.15)
    assert "taken as a decoder of the Llama kind" in model.assumptions[0]


@pytest.mark.parametrize("size", ["20M", "350m", "1B", "3B", "8B", "34B", "65B", "180B", "405B", "2000B"])
def test_any_size_has_a_shape(size: str) -> None:
    wanted = float(size[:-1]) * (1e6 if size[-1] in "mM" else 1e9)
    assert count(resolve(size).spec) == pytest.approx(wanted, rel=0.02)


T5 = {"model_type": "t5", "d_model": 256, "d_ff": 512, "num_layers": 2, "num_heads": 4, "vocab_size": 100}


def test_a_config_of_another_family_is_kept_as_it_is() -> None:
    given = {"model_type": "rwkv", "hidden_size": 64, "auto_map": {"AutoModel": "code.Model"}}
    spec = resolve(given).spec
    assert not spec.runs
    assert spec.config() == {"model_type": "rwkv", "hidden_size": 64}
    with pytest.raises(NotModelled, match="rwkv"):
        resolve(given, allow_files=False)


def test_a_setting_may_have_both_of_its_names() -> None:
    assert resolve({**T5, "hidden_size": 256, "num_hidden_layers": 2}).spec == resolve(T5).spec
    with pytest.raises(InvalidJob, match="hidden_size 128 and d_model 256"):
        resolve({**T5, "hidden_size": 128})


UNREADABLE: dict[str, tuple[Any, type[Exception], str]] = {
    "no model_type": ({"hidden_size": 64}, InvalidJob, "model_type"),
    "a list": ([1, 2], InvalidJob, "no JSON object"),
    "few fields": ({"model_type": "llama", "hidden_size": "wide"}, InvalidJob, "num_attention_heads"),
    "negative": ({**config(published("llama-7b").architecture, "sdpa").to_dict(), "num_hidden_layers": -3}, InvalidJob, "layers"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_config_that_is_none_is_refused(case: str, tmp_path: Path) -> None:
    content, kind, said = UNREADABLE[case]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(kind, match=said):
        resolve(str(path))


@pytest.mark.parametrize(("name", "near"), [("lama-2-7b", "llama-2-7b"), ("qwen3-9b", "qwen3-8b"), ("mistral-8b", "mistral-7b")])
def test_a_misspelt_name_brings_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownName, match=near):
        resolve(name)
