"""Training in a loop of one's own, and in Accelerate's: predicted and measured are logged, and what differs is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from peft import LoraConfig, get_peft_model

from estimator import Job, WillItFitError, estimate, explain, watch
from estimator.watching.look import Look
from estimator.watching.run_record import RunRecord
from tests.jobs import merged
from tests.watching.trained import JOB, SEQUENCES, TOKENS, Counted, Fixed, model

STEPS = 3


def train(trained: Any, optimizer: Any, backward: Callable[[Any], Any] = torch.Tensor.backward, tokens: int = TOKENS) -> None:
    trained.train()
    for _ in range(STEPS):
        given = torch.randint(0, 1000, (SEQUENCES, tokens))
        loss = trained(input_ids=given, labels=given).loss
        backward(loss)
        del loss, given
        optimizer.step()
        optimizer.zero_grad()


def adamw(trained: Any, **settings: Any) -> Any:
    return torch.optim.AdamW([p for p in trained.parameters() if p.requires_grad], **{"foreach": True, **settings})


def test_what_is_measured_is_what_was_predicted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every tensor of three real steps counted: the highest is the predicted peak, to the byte."""
    trained, kept = model(), tmp_path / "runs.jsonl"
    logged: list[dict[str, float]] = []
    optimizer = adamw(trained)
    with Counted(trained) as reader, watch(JOB, trained, optimizer, log=logged.append, reader=reader, record=kept) as watched:
        train(trained, optimizer)
    assert watched.measured["allocated"] == watched.predicted["allocated"] == estimate(JOB).memory.peak_bytes
    assert watched.differences == []
    assert not caplog.records
    assert watched.steps == STEPS
    assert [sorted(values) for values in logged] == [
        ["willitfit/predicted_allocated_bytes", "willitfit/predicted_reserved_bytes", "willitfit/predicted_total_bytes"],
        *[sorted([*logged[0], "willitfit/measured_allocated_bytes"])] * 2,
    ]
    record = RunRecord.model_validate_json(kept.read_text(encoding="utf-8"))
    assert record.peak_allocated_bytes == record.predicted_allocated_bytes
    assert record.longest_batch == (SEQUENCES, TOKENS)
    assert record.step_seconds
    assert 0 < record.step_seconds < 60
    assert Job.model_validate(record.job)
    assert explain(JOB, kept).verdict == "as predicted"


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        ({"activation_checkpointing": "full"}, "training.activation_checkpointing", "none"),
        ({"precision": "bf16-mixed"}, "training.precision", "32-true"),
        ({"micro_batch_size": 4}, "training.micro_batch_size", SEQUENCES),
        ({"sequence_length": 16}, "training.sequence_length", TOKENS),
        ({"sequence_length": 128}, "training.sequence_length", TOKENS),
        ({"optimizer": "sgd"}, "training.optimizer", "adamw"),
        ({"optimizer_implementation": "fused"}, "training.optimizer_implementation", "foreach"),
        ({"attention": "sdpa"}, "training.attention", "eager"),
        ({"adapter": {"rank": 4}}, "training.adapter.rank", None),
        ({"quantization": "nf4", "adapter": {"rank": 4}}, "training.quantization", None),
    ],
    ids=str,
)
def test_a_code_that_is_not_the_job_is_warned_of(
    change: dict[str, Any], field: str, code: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trained = model()
    optimizer = adamw(trained)
    with watch(merged(JOB, {"training": change}), trained, optimizer, log=print, reader=Fixed()) as watched:
        train(trained, optimizer)
    assert {one.field: one.code for one in watched.differences}[field] == code
    assert field in caplog.text


@pytest.mark.parametrize("kind", ["autocast", "half", "checkpoints", "lora", "frozen", "sgd"])
def test_what_the_code_has_is_seen(kind: str) -> None:
    trained = model()
    if kind == "half":
        trained = trained.to(torch.bfloat16)
    if kind == "checkpoints":
        trained.gradient_checkpointing_enable()
    if kind == "lora":
        trained = get_peft_model(trained, LoraConfig(r=4, target_modules="all-linear"))
    if kind == "frozen":
        trained.lm_head.requires_grad_(False)
    optimizer = torch.optim.SGD(trained.parameters(), 0.1, momentum=0.9) if kind == "sgd" else adamw(trained)
    with watch(JOB, trained, optimizer, log=print, reader=Fixed()) as watched, torch.autocast("cpu", enabled=kind == "autocast"):
        train(trained, optimizer)
    settings = {one.field: one.code for one in watched.differences}
    every: dict[str, dict[str, Any]] = {
        "autocast": {"training.precision": "bf16-mixed"},
        "half": {"training.precision": "bf16-true"},
        "checkpoints": {"training.activation_checkpointing": "full"},
        "lora": {"training.adapter.rank": 4},
        "frozen": {"trainable": sum(p.numel() for p in trained.parameters() if p.requires_grad)},
        "sgd": {"training.optimizer": "sgd-momentum"},
    }
    assert every[kind].items() <= settings.items()
    assert len(settings) == (2 if kind == "lora" else 1)  # an adapter trains other numbers, too


def test_the_job_of_an_adapter_is_the_code_of_one() -> None:
    trained = get_peft_model(model(), LoraConfig(r=4, target_modules="all-linear"))
    optimizer = adamw(trained)
    job = merged(JOB, {"training": {"adapter": {"rank": 4, "dtype": "fp32"}}})
    with watch(job, trained, optimizer, log=print, reader=Fixed()) as watched:
        train(trained, optimizer)
    assert watched.differences == []


def test_longer_batches_that_come_later_are_said(caplog: pytest.LogCaptureFixture) -> None:
    trained = model()
    optimizer = adamw(trained)
    with watch(JOB, trained, optimizer, log=print, reader=Fixed()) as watched:
        train(trained, optimizer)
        train(trained, optimizer, tokens=2 * TOKENS)
    assert [one.code for one in watched.differences] == [2 * TOKENS]
    assert "the largest batch was not the job's" in caplog.text


def test_without_a_gpu_it_says_that_nothing_was_measured(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    trained = model()
    optimizer = adamw(trained)
    with watch(JOB, trained, optimizer) as watched:
        train(trained, optimizer)
    assert watched.measured == {}
    assert "nothing was measured" in caplog.text
    assert "willitfit: predicted allocated" in capsys.readouterr().err


def test_an_allocation_that_failed_is_explained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained, kept = model(), tmp_path / "runs.jsonl"
    message = "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 14.56 GiB of which 0 bytes is free."
    with pytest.raises(torch.OutOfMemoryError), watch(JOB, trained, log=print, reader=Fixed(), record=kept):
        raise torch.OutOfMemoryError(message)
    assert "out of memory: 2.0 MiB is " in caplog.text
    assert json.loads(kept.read_text(encoding="utf-8"))["out_of_memory"] is True


class Tracker(GeneralTracker):  # type: ignore[misc]
    """A tracker of Accelerate's that remembers."""

    name = "remembers"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Any] = {}

    @property
    def tracker(self) -> Any:
        return None

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        pass

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.values |= values


def test_accelerate_logs_it_to_its_trackers(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Tracker()
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("run")
    trained = model()
    trained, optimizer = accelerator.prepare(trained, adamw(trained))
    with watch(JOB, trained, optimizer, log=accelerator.log, reader=Fixed(allocated=7, reserved=9)) as watched:
        train(trained, optimizer, accelerator.backward)
    accelerator.end_training()
    assert tracker.values["willitfit/predicted_allocated_bytes"] == watched.predicted["allocated"]
    assert tracker.values["willitfit/measured_allocated_bytes"] == 7
    assert tracker.values["willitfit/measured_reserved_bytes"] == 9
    assert watched.differences == []


def test_of_several_processes_the_first_writes(tmp_path: Path) -> None:
    """In a process group: a rank is asked for."""
    kept, trained = tmp_path / "runs.jsonl", model()
    optimizer = adamw(trained)
    store: Any = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with watch(JOB, trained, optimizer, log=print, reader=Fixed(), record=kept):
            train(trained, optimizer)
    finally:
        torch.distributed.destroy_process_group()
    assert len(kept.read_text(encoding="utf-8").splitlines()) == 1


def test_what_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WillItFitError, match="a training is watched"):
        watch({"model": "gpt2", "task": "serve"})
    with pytest.raises(WillItFitError, match="is no folder"):
        watch(JOB, record=tmp_path / "nowhere" / "runs.jsonl")
    with pytest.raises(WillItFitError, match="no trainer that is known"):
        watch(JOB).attach(object())
    with pytest.raises(WillItFitError, match=r"no torch\.nn\.Module"), watch(JOB, "a model"):
        pass


def test_a_look_that_fails_does_not_end_a_training(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("an odd model")

    monkeypatch.setattr(Look, "_compare", fails)
    trained = model()
    optimizer = adamw(trained)
    with watch(JOB, trained, optimizer, log=print, reader=Fixed()) as watched:
        train(trained, optimizer)
    assert watched.steps == STEPS
    assert "could not be compared" in caplog.text
