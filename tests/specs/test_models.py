"""Finding models, counting one, and reading what a user has: own folders, the hub, modules in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from torch import nn

from estimator import (
    InvalidJob,
    NotModelled,
    UnknownName,
    architecture_of,
    count_module,
    estimate,
    inspect_model,
)
from estimator.cli.main import main
from estimator.families import count
from estimator.specs import hub
from estimator.specs.generic import generic_mixture
from estimator.specs.published import VARIABLE, every
from estimator.specs.resolve import resolve
from estimator.views import listing
from estimator.views.inspection import Counts
from estimator.weights import read

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def counted(name: str | dict[str, Any]) -> Counts:
    counts = inspect_model(name).counts
    assert counts
    return counts


def found(search: str, **sizes: float) -> list[str]:
    return [row["name"] for row in listing.models(search, **sizes)]


@pytest.mark.parametrize("search", ["llama 3 8b", "Llama-3-8B", "META-LLAMA/meta-llama-3-8b", "8b llama", "llama3 8B instruct"])
def test_words_find_a_model_however_they_are_written(search: str) -> None:
    assert "llama-3-8b" in found(search)


def test_a_search_is_by_size_and_within_sizes() -> None:
    sizes = [row["parameters"] for row in listing.models("", 1e9, 8e9)]
    assert sizes == sorted(sizes)
    assert sizes[0] >= 1e9
    assert sizes[-1] <= 8e9
    assert not found("llama", most=1e6)


def test_a_search_without_a_hit_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"Did you mean .*llama-2-7b"):
        listing.models("lamma 2 7b")
    with pytest.raises(UnknownName, match="lists them all"):
        listing.models("%%%%")


def test_the_parts_of_a_model_are_the_model() -> None:
    for name in ("llama-3-8b", "deepseek-v3", "whisper-tiny", "granite-4.0-h-1b", "clip-vit-base-patch32"):
        counts = counted(name)
        assert sum(group.times * group.parameters for group in counts.modules) == counts.total
        assert sum(group.times * group.active for group in counts.modules) == counts.active
        outside = [g for g in counts.modules if not any(g.name.startswith(layers.name + ".") for layers in counts.layers)]
        layers = sum(group.times * group.parameters for group in counts.layers)
        assert layers + sum(group.times * group.parameters for group in outside) == counts.total
    assert [g.times for g in counted("deepseek-v3").layers] == [3, 58]


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("llama-3-8b", 2 * 32 * 8 * 128), ("deepseek-v3", 61 * (512 + 64)), ("bert-base-uncased", None), ("mamba-130m", None)],
)
def test_a_token_in_the_cache(name: str, numbers: int | None) -> None:
    cached = counted(name).kv_bytes_per_token
    assert cached == (numbers and {"bfloat16": 2 * numbers, "float8": numbers})


def test_a_model_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "show", "Mixtral-8x7B"]) == 0
    text = capsys.readouterr().out
    for said in ("46,702,792,704", "active for one token", "12,879,", "layers.mlp", "also called"):
        assert said in text
    assert main(["models", "show", "llama-3-8b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["total"] == 8_030_261_248


def test_a_mixture_of_a_size_is_the_dense_model_of_that_size_many_times() -> None:
    one, two = (generic_mixture(experts, 7, "")[0] for experts in (2, 3))
    expert = 3 * one.hidden_size * one.config()["intermediate_size"]
    assert count(two) - count(one) == one.num_hidden_layers * (expert + one.hidden_size)
    model = resolve("8x7B MoE")
    assert f"{count(model.spec):,}" in model.assumptions[0]
    assert count(model.spec) == pytest.approx(46.7e9, rel=0.05)
    with pytest.raises(InvalidJob, match="experts"):
        resolve("1x7B")


def test_dense_may_be_said() -> None:
    assert resolve("70B dense").spec == resolve("70b").spec


def test_an_own_folder_adds_and_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours.yaml").write_text(f"aliases: [Our Model]\narchitecture: {json.dumps(SMALL)}\n", encoding="utf-8")
    (tmp_path / "gpt2.yaml").write_text(json.dumps({**SMALL, "torch_dtype": "float32"}), encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert resolve("our model").spec == resolve("gpt2").spec == resolve(SMALL).spec
    assert resolve("llama-3-8b").spec.hidden_size == 4096
    assert estimate({"model": "ours", "training": {"sequence_length": 64}}).parameters.total == count(resolve(SMALL).spec)
    assert {"ours", "gpt2"} <= set(found("", most=1e6))


def test_the_option_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(VARIABLE, "")
    (tmp_path / "ours.yaml").write_text(json.dumps(SMALL), encoding="utf-8")
    assert main(["models", "show", "ours", "--specs", str(tmp_path)]) == 0
    assert main(["ours", "--on", "24GB", "--specs", str(tmp_path)]) == 0
    assert "ours" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("- a list", "holds no mapping"),
        ("hidden_size: 3", "model_type"),
        ("architecture: {model_type: llama", "not valid YAML"),
        (json.dumps({"name": "other", "architecture": SMALL}), "called 'other' within"),
        (json.dumps({"architecture": SMALL, "license": "MIT"}), "licence"),
        (json.dumps({"architecture": {**SMALL, "hidden_size": -1}}), "hidden_size"),
    ],
)
def test_a_broken_file_is_reported_and_takes_nothing_down(
    content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.yaml").write_text(content, encoding="utf-8")
    (tmp_path / "ours.yaml").write_text(json.dumps(SMALL), encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert said in str(every()[1][0])
    assert main(["models", "ours"]) == 0
    captured = capsys.readouterr()
    assert "ours" in captured.out
    assert "left out" in captured.err
    assert said in captured.err
    with pytest.raises((InvalidJob, NotModelled), match=r"broken\.yaml"):
        resolve("broken")


def test_a_folder_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(InvalidJob, match="is no folder"):
        resolve("gpt2")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq 4 bits in groups of 128"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes 4 bits"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
    ],
)
def test_a_quantized_checkpoint_is_read_and_said(asked: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "quantization_config": asked}), encoding="utf-8")
    model = resolve(str(tmp_path))
    assert model.spec == resolve(SMALL).spec
    assert said in model.assumptions[0]


def test_the_hub_is_read_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "models--some--model" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text("0123", encoding="utf-8")
    (snapshot / "config.json").write_text(json.dumps(SMALL), encoding="utf-8")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert resolve("some/model").spec == resolve(SMALL).spec
    with pytest.raises(UnknownName, match="some/model"):
        resolve("some/model", allow_files=False)


def test_what_the_hub_does_not_give_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*args: Any, **kwargs: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", silent)
    with pytest.raises(UnknownName, match=r"cannot be reached \(TimeoutError\). Did you mean llama-2-7b"):
        resolve("nobody/llama-2-7b-x")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(hub.Unreachable, match="pip install"):
        hub.fetched("nobody/nothing")


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_module_in_memory_is_counted(device: str) -> None:
    config = transformers.AutoConfig.for_model(**SMALL, tie_word_embeddings=True)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.lm_head.weight.requires_grad_(False)
    held, spec = count_module(model), resolve(architecture_of(model)).spec
    assert held.total == count(spec)
    assert held.total - held.trainable == 100 * 64
    assert held.bytes == held.bytes_by_dtype["bfloat16"] == 2 * held.total
    assert held.buffers == counted(architecture_of(model)).buffers


def saved(folder: Path, **changes: Any) -> Path:
    """A small model's folder: config.json, changed, and weights in shards with an index."""
    config = transformers.AutoConfig.for_model(**SMALL)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder, max_shard_size="50KB")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")
    return folder


def test_a_folder_with_weights_is_counted_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path)
    for name in (folder, folder / "model.safetensors.index.json"):
        card = inspect_model(str(name))
        assert card.stored
        assert card.counts
        assert card.stored.numbers == card.counts.total == count(resolve(SMALL).spec)
        assert card.stored.bytes == 2 * card.counts.total
    assert main(["models", "show", str(folder)]) == 0
    assert "In the files" in capsys.readouterr().out


def test_an_unknown_architecture_is_counted_by_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, total = saved(tmp_path, model_type="rwkv7"), f"{count(resolve(SMALL).spec):,}"
    with pytest.raises(NotModelled, match=r"rwkv7.*CONTRIBUTING"):
        estimate({"model": str(folder)})
    assert main(["models", "show", str(folder)]) == 0
    text = capsys.readouterr().out
    assert total in text
    assert "Why no more" in text
    (folder / "config.json").unlink()
    for name in (folder, folder / "model.safetensors.index.json"):
        with pytest.raises(InvalidJob, match=r"put its config.json beside it. .*" + total):
            resolve(str(name))


def test_headers_are_read_once_and_their_names_in_either_case(tmp_path: Path) -> None:
    folder = saved(tmp_path, model_type="llama")
    index = (folder / "model.safetensors.index.json").rename(folder / "MODEL.SAFETENSORS.INDEX.JSON")
    with mock.patch.object(read, "read_checkpoint", wraps=read.read_checkpoint) as reading:
        card = inspect_model(str(index))
    assert reading.call_count == 1
    assert card.stored
    assert card.counts
    assert card.stored.numbers == card.counts.total


def test_what_is_no_module_is_refused() -> None:
    for thing in (nn.Linear, {"weight": 1}, "gpt2"):
        with pytest.raises(InvalidJob, match=r"no torch\.nn\.Module"):
            count_module(thing)
    with pytest.raises(InvalidJob, match="no transformers config"):
        architecture_of(nn.Linear(2, 2))
