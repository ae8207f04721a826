"""Files that people have: whose they are, what they say, and that the job can be answered."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from api.app import app
from estimator import NotModelled, WillItFitError, estimate, read_file
from estimator.cli.main import main
from estimator.contract.answer import Note
from estimator.contract.job import Hardware
from estimator.exchange import READ, Surroundings, read
from estimator.exchange.concessions import table
from estimator.exchange.configuration import framework
from estimator.exchange.readers import FRAMEWORKS
from estimator.exchange.recognise import readable
from estimator.exchange.shell import commands, sbatch
from estimator.pipeline.notes.gathered import texts
from tests.jobs import TESTS, content

CASES: list[dict[str, Any]] = content(TESTS / "cases" / "framework_files.yaml")["cases"]
KEYS = {
    "name",
    "text",
    "framework",
    "job",
    "left_out",
    "lines",
    "assumed",
    "hardware",
    "beside",
    "given",
    "release",
    "refused",
    "meant",
    "unsaid",
}


def at(job: dict[str, Any], path: str) -> Any:
    part: Any = job
    for name in path.split("."):
        part = part.get(name) if isinstance(part, dict) else None
    return part


def put(case: dict[str, Any], folder: Path) -> Path:
    for name, text in case.get("beside", {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    path = folder / "given"
    path.write_text(case["text"], encoding="utf-8")
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_what_a_file_says(case: dict[str, Any], tmp_path: Path) -> None:
    assert set(case) <= KEYS
    path = put(case, tmp_path)
    if "refused" in case:
        with pytest.raises(WillItFitError, match=case["refused"]):
            read_file(path, release=case.get("release"))
        return
    found = read_file(path, case.get("hardware"), given=case.get("given"), release=case.get("release"))
    assert found.framework == case["framework"]
    assert {path: at(found.job, path) for path in case["job"]} == case["job"]
    left, assumed = {one.key: one for one in found.left_out}, {one.key for one in found.assumed}
    assert set(case.get("left_out", [])) <= set(left)
    assert set(case.get("assumed", [])) <= assumed
    assert assumed.isdisjoint(case.get("unsaid", []))
    assert {key: left[key].line for key in case.get("lines", {})} == case.get("lines", {})
    assert {key: left[key].meant for key in case.get("meant", {})} == case.get("meant", {})
    assert all(one.why for one in found.left_out)
    assert all(one.why for one in found.assumed)
    assert estimate(found.job).memory.peak_bytes > 0


def test_every_framework_has_a_case_and_data_with_a_source() -> None:
    assert {case.get("framework") for case in CASES} >= set(FRAMEWORKS)
    assert set(readable()) == set(READ)
    for name in (*FRAMEWORKS, "shared"):
        data = framework(name)
        assert all((data.release, data.source, data.as_of)), name


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_a_concession_is_made_only_where_it_is_needed(strategy: str) -> None:
    """What is modelled is not given up, and what is given up is named."""
    base = "base_model: gpt2\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\ngradient_checkpointing: true\n"
    base += "gradient_checkpointing_kwargs: {use_reentrant: true}\n"
    text = base + (f"deepspeed: {strategy}.json\n" if strategy != "ddp" else "")
    found = read(text, around=Surroundings(hardware=Hardware(gpus=2)))
    older = found.job["training"]["reentrant_checkpointing"]
    assert found.job["parallelism"]["strategy"] == strategy
    assert older is not any(one.key == "training.reentrant_checkpointing" for one in found.left_out)
    if not older:
        with pytest.raises(NotModelled, match="reentrant_checkpointing"):
            estimate({**found.job, "training": {**found.job["training"], "reentrant_checkpointing": True}})


def test_concessions_say_why() -> None:
    assert all(one.why and one.given and one.instead for one in table())


def test_the_doors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line, Python and REST say the same; files that a file points to are read on the command line alone."""
    path = tmp_path / "train.yaml"
    case = CASES[0]
    path.write_text(case["text"], encoding="utf-8")
    assert main(["import", str(path), "--json", "--on", "2xA100-80GB", "--release", "0.7"]) == 0
    of_then = json.loads(capsys.readouterr().out)
    assert of_then == read_file(path, "2xA100-80GB", release="0.7").model_dump(mode="json")
    assert TestClient(app).post("/v1/import?on=2xA100-80GB&release=0.7", content=case["text"]).json() == of_then
    assert main(["import", str(path), "--json", "--on", "2xA100-80GB"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said != of_then
    assert said == read_file(path, "2xA100-80GB").model_dump(mode="json")
    assert said["job"]["parallelism"]["strategy"] == "ddp"
    assert TestClient(app).post("/v1/import?on=2xA100-80GB", content=case["text"]).json() == said
    assert main([str(path), "--on", "2xA100-80GB", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["fits"] is True
    assert answer["assumptions"][0] == "read as a file of axolotl 0.21.0"
    assert any("some_new_key (line 19)" in one for one in answer["not_modelled"])
    lists = texts(Note.model_validate(one) for one in answer["notes"])
    assert lists == {name: answer[name] for name in lists}
    assert main([str(path), "--on", "1x8GB", "--check"]) == 1
    assert "DOES NOT FIT" in capsys.readouterr().out
    zero = tmp_path / "ds.json"
    zero.write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    assert main([str(zero), "--on", "2x24GB"]) == 2
    assert "--model" in capsys.readouterr().err
    assert main([str(zero), "--on", "2x24GB", "--model", "gpt2"]) == 0
    secret = tmp_path / "secret.json"
    secret.write_text('{"zero_optimization": {"stage": 1}}', encoding="utf-8")
    pointed = f"model_name_or_path: gpt2\nper_device_train_batch_size: 1\noutput_dir: x\ndeepspeed: {secret}\n"
    assert TestClient(app).post("/v1/import", content=pointed).status_code == 422


def test_models_stay_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A config.json in place of a model's name is a model, not a job."""
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "intermediate_size": 100, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    path.write_text(json.dumps({"model_type": "llama", **sizes}), encoding="utf-8")
    assert main([str(path), "--on", "1x24GB"]) == 0
    assert "LoRA" in capsys.readouterr().out


def test_scripts_are_read_and_not_run(tmp_path: Path) -> None:
    touch = f"touch {tmp_path}/no"
    text = f'A=(--x 1 "two words")\nB=\'$A\'\nrun ${{A[@]}} "$B" `{touch}` $({touch}) ${{C:-d}} $((6*7)) # end\n'
    words = commands(text)[-1].texts
    assert words[:4] == ["run", "--x", "1", "two"]
    assert {"$A", "d", "42"} <= set(words)
    assert "end" not in words
    assert list(tmp_path.iterdir()) == []
    assert sbatch("#SBATCH -N 4 --gres=gpu:a100:8\n") == {"--nodes": "4", "--gres": "gpu:a100:8"}


HOSTILE = {
    "settings without end": (
        "base_model: gpt2\nsequence_len: 5\n" + "".join(f"zkey_{i}: 1\n" for i in range(3000)),
        "more than the 2,000",
    ),
    "unknown keys of a job": (json.dumps({"model": "gpt2", "training": {f"x{i}": 1 for i in range(3000)}}), "and 2,950 more"),
    "long names within each other": (
        json.dumps({"actor_rollout_ref": {"rollout": {"k" * 100_000: {f"x{i}": 1 for i in range(3000)}}}, "trainer": {}}),
        "",
    ),
    "settings that stand for themselves": (
        "train_loader: {x: 1}\nmax_seq_len: ${max_seq_len}\nmodel:\n  name: ${model.name}\n",
        "is no model that is read",
    ),
    "a submission of submissions": (
        "python mason.py -- " * 3000 + "torchrun open_instruct/dpo.py",
        "no configuration or command",
    ),
    "layers without end": (
        "torchrun pretrain_gpt.py --num-layers 99999999999 --hidden-size 64 --num-attention-heads 4 --num-experts 8 --swiglu "
        "--moe-layer-freq 2 --position-embedding-type rope --normalization RMSNorm --vocab-size 100 --micro-batch-size 1",
        "",
    ),
    "a script of operators": ("import trl\nx = " + "-" * 50_000 + "1\n", "no Python that can be read"),
    "a script of lists of lists": (
        "import trl\na = [1] * 9\n" + "a = [a, a, a, a]\n" * 3000 + "trl.SFTTrainer('gpt2', args=trl.SFTConfig(max_length=a))\n",
        "",
    ),
    "shells within shells": ("bash -c \"bash -c 'bash -c vllm'\"\n" * 500, "no configuration or command"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_words(name: str) -> None:
    """What once took half a minute, gigabytes, or all of the stack."""
    text, said = HOSTILE[name]
    if said:
        with pytest.raises(WillItFitError, match=said):
            read(text)
    else:
        assert sum(len(one.key) for one in read(text).left_out) < 10**6


NAMES = [f"a{i:x}" for i in range(8000)]
FIELDS = "class C:\n" + "".join(f" {name} = 1\n" for name in NAMES[:3500])
MULTIPLIED = {
    "fields of a class times its calls": ("import trl\n" + FIELDS + "C();" * 8000, "100,000 steps"),
    "fields of a class times a parser's kinds": (
        f"import trl\n{FIELDS}p = HfArgumentParser([{'C,' * 2000}])\np.parse_args()\n",
        "100,000 steps",
    ),
    "a parser's options times its calls": (
        "import argparse\np = argparse.ArgumentParser()\n"
        + "".join(f"p.add_argument('{name}')\n" for name in NAMES[:1500])
        + "".join(f"{name}=p.parse_args()\n" for name in NAMES[:4000]),
        "100,000 steps",
    ),
    "a script's variables times its commands": (" ".join(f"{name}=" for name in NAMES) + "\n" + "x;" * 2000, "100,000 variables"),
    "words of a script": ("import trl\n" + "a\n" * 65_000 + "a b c", "60,000 words"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MULTIPLIED)
def test_what_a_text_multiplies_is_bounded_by_bytes(name: str) -> None:
    """Texts of 130 kB at most, of which the readers once made 200 to 850 MB."""
    text, said = MULTIPLIED[name]
    with suppress(WillItFitError):
        read("import trl\ntrl.SFTTrainer('gpt2')")  # what is read once and kept
    tracemalloc.start()
    try:
        with pytest.raises(WillItFitError, match=said):
            read(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * 10**6


PIECES = st.sampled_from(
    ["$", "(", ")", "'", '"', "\\", "\n", "=", "[", "{", "&a", "*a", "--", ": ", "- ", "0", "-1", "1e9", "nan", "\0", "é"]
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.sampled_from(CASES), st.lists(st.tuples(st.integers(0, 2000), PIECES, st.integers(0, 3)), max_size=6))
def test_whatever_is_read_is_answered_or_refused(case: dict[str, Any], edits: list[tuple[int, str, int]]) -> None:
    """A file with a few characters put in, or taken out, is read, or refused in words: nothing else is ever raised."""
    text = case["text"]
    for place, piece, cut in edits:
        text = text[: place % (len(text) + 1)] + piece + text[place % (len(text) + 1) + cut :]
    with suppress(WillItFitError):
        read(text).model_dump_json()
