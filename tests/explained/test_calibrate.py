"""Constants of one's own machine: kept where records that they were not fitted to are nearer with them, and never otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from estimator import calibrate, estimate
from estimator.cli.main import main
from estimator.contract.errors import Contradiction, InvalidJob, NotModelled
from estimator.contract.units import MIB

MODELS = ("llama-3.2-1b", "gpt2-xl", "qwen2.5-0.5b")
CONTEXT = 700 * MIB


def job(model: str, tokens: int, gpus: int = 1) -> dict[str, Any]:
    training = {"precision": "bf16-true", "sequence_length": tokens, "micro_batch_size": 4}
    hardware = {"gpu": "a100-80gb", "gpus": gpus}
    return {
        "model": model,
        "hardware": hardware,
        "training": training,
        "parallelism": {"strategy": "ddp" if gpus > 1 else "none"},
    }


def record(asked: dict[str, Any], **measured: Any) -> str:
    return json.dumps({"format": "willitfit run 1", "name": f"{asked['model']}", "job": asked, **measured})


def seconds(asked: dict[str, Any], **own: float) -> float:
    """A step on a machine whose constants are these."""
    time = estimate({**asked, "calibration": {"card": "a100-80gb", **own}}).time
    assert time
    return time.step_seconds


def records(slower: dict[str, float], **own: float) -> str:
    """Of three models at three lengths, on a machine with constants of its `own`; a model is `slower` besides."""
    lines = []
    for model in MODELS:
        for tokens in (256, 512, 1024):
            asked = job(model, tokens)
            reserved = 10 * 2**30
            took = seconds(asked, **own) * slower.get(model, 1.0)
            lines.append(record(asked, step_seconds=took, used_bytes=reserved + CONTEXT, peak_reserved_bytes=reserved))
    return "\n".join(lines)


def test_a_slow_machine_is_told_from_its_records() -> None:
    found = calibrate(records({}, kernels=1.2))
    assert found.calibration
    assert found.calibration["kernels"] == pytest.approx(1.2, abs=0.01)
    assert found.calibration["context"] == "700MiB"
    kernels = next(one for one in found.constants if one.name == "kernels")
    assert kernels.before
    assert kernels.after
    assert kernels.after.median < 0.01 < 0.15 < kernels.before.median


def test_what_helps_no_other_model_is_left_out() -> None:
    """One model's kernels are slow and another's quick: a constant of all is no nearer on models that it was not fitted to."""
    found = calibrate(records({"gpt2-xl": 1.3, "llama-3.2-1b": 0.8}))
    kernels = next(one for one in found.constants if one.name == "kernels")
    assert not kernels.kept
    assert "kernels" not in (found.calibration or {})


def test_what_no_machine_differs_by_is_left_out() -> None:
    found = calibrate(records(dict.fromkeys(MODELS, 30.0)))
    kernels = next(one for one in found.constants if one.name == "kernels")
    assert "something else differs" in kernels.why
    assert "kernels" not in (found.calibration or {})


def test_answers_that_use_it_say_so_and_torchs_bytes_stay() -> None:
    asked = job("llama-3.2-1b", 512)
    own = {"card": "a100-80gb", "kernels": 1.5, "context": "700MiB", "records": 9, "as_of": "2026-11-26"}
    plain, found = estimate(asked), estimate({**asked, "calibration": own})
    assert any("calibrated by 9 records of a100-80gb, 2026-11-26" in said for said in found.assumptions)
    assert not any("calibrated" in said for said in plain.assumptions)
    assert found.memory.peak_bytes == plain.memory.peak_bytes
    assert found.memory.overhead["cuda_context"] == CONTEXT
    assert found.memory.total_bytes - plain.memory.total_bytes == CONTEXT - plain.memory.overhead["cuda_context"]
    assert found.time
    assert plain.time
    assert found.time.step_seconds == pytest.approx(1.5 * plain.time.step_seconds, rel=0.05)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"hardware": {"gpu": "h100"}}, Contradiction, "was measured on a100-80gb, and the job runs on h100"),
        ({"hardware": {"memory": "24GB"}}, Contradiction, "a card without a name"),
        ({"task": "serve"}, NotModelled, "training only"),
        ({"calibration": {"card": "a100-80gb", "kernels": 9}}, InvalidJob, "less than or equal to 5"),
    ],
)
def test_where_it_does_not_hold_it_is_refused(change: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        estimate({**job("gpt2", 128), "calibration": {"card": "a100-80gb"}, **change})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no line"),
        ('{"format": "willitfit run 1"}', "its job names no card"),
        (record(job("gpt2", 128)), "neither the seconds of a step nor"),
        (record(job("gpt2", 128), step_seconds=-1), "step_seconds -1 is no amount"),
        (record(job("gpt2", 128), step_seconds=1, differences=[{}]), "its code was not its job"),
        (record(job("no-such-model", 128), step_seconds=1), "no-such-model"),
        (
            "\n".join(
                [
                    record(job("gpt2", 128), step_seconds=1),
                    record({**job("gpt2", 128), "hardware": {"gpu": "h100"}}, step_seconds=1),
                ]
            ),
            "several cards",
        ),
    ],
)
def test_records_that_say_nothing_are_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        calibrate(text)


def test_few_records_are_not_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(record(job("gpt2", 128), step_seconds=1), encoding="utf-8")
    assert main(["calibrate", str(file), "--check"]) == 1
    assert "takes 6 records of 2 models" in capsys.readouterr().out


def test_the_part_that_is_written_is_one_of_a_job(tmp_path: Path) -> None:
    file, out = tmp_path / "runs.jsonl", tmp_path / "own.yaml"
    file.write_text(records({}, kernels=0.8), encoding="utf-8")
    assert main(["calibrate", str(file), "--out", str(out)]) == 0
    whole = tmp_path / "job.yaml"
    whole.write_text("model: llama-3.2-1b\nhardware: {gpu: a100-80gb}\n" + out.read_text(encoding="utf-8"), encoding="utf-8")
    assert any("calibrated by 9 records" in said for said in estimate(whole).assumptions)
