"""Real training by the trainers that people have: predicted and measured are in what the training logs to."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.utils.data import DataLoader
from trl import SFTConfig, SFTTrainer

from estimator import watch
from estimator.measured.read import read_measured
from tests.jobs import TINY, merged
from tests.watching.trained import JOB, SEQUENCES, TOKENS, Counted, Fixed, model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # those of the frameworks' own are theirs
]
STEPS = 3
CLIPPED = merged(JOB, {"training": {"gradient_clipping": True}})
ROWS = [{"input_ids": list(range(2, 2 + TOKENS)), "labels": list(range(2, 2 + TOKENS))} for _ in range(SEQUENCES * STEPS)]


class Tracker(transformers.TrainerCallback):
    """A tracker that is closed when the training ends, as MLflow's is."""

    def __init__(self) -> None:
        self.open, self.values, self.steps = False, dict[str, float](), dict[str, int]()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.open = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        assert self.open
        for name, value in logs.items():
            self.steps.setdefault(name, state.global_step)
            self.values[name] = value

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.open = False


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": SEQUENCES,
        "max_steps": STEPS,
        "logging_steps": 1,
        "use_cpu": True,
        "optim": "adamw_torch",
        "optim_args": "foreach=True",
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        **more,
    }


def trainer(folder: Path, trained: Any, **more: Any) -> Any:
    arguments = settings(folder, **more)
    arguments.pop("optim_args")
    optimizer = torch.optim.AdamW(trained.parameters(), foreach=True)
    return transformers.Trainer(
        model=trained,
        args=transformers.TrainingArguments(**arguments),
        train_dataset=ROWS,
        optimizers=(optimizer, None),
    )


def test_transformers_trainer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has both; what is counted of its real steps is what is predicted, within the batch that the loader holds."""
    trained, tracker, kept = model(), Tracker(), tmp_path / "runs.jsonl"
    made = trainer(tmp_path, trained)
    made.add_callback(tracker)
    with Counted(trained) as reader:
        watched = watch(CLIPPED, reader=reader, record=kept).attach(made)
        made.train()
    assert tracker.values["willitfit/predicted_allocated_bytes"] == watched.predicted["allocated"]
    assert tracker.steps["willitfit/predicted_allocated_bytes"] == 0
    assert tracker.steps["willitfit/measured_allocated_bytes"] == 2
    measured = tracker.values["willitfit/measured_allocated_bytes"]
    assert abs(measured / watched.predicted["allocated"] - 1) < 0.005
    assert watched.differences == []
    assert watched.steps == STEPS
    assert read_measured(kept.read_bytes()).amounts["allocated"].bytes == measured
    assert any("willitfit/measured_allocated_bytes" in row for row in made.state.log_history)


def test_what_trainer_s_arguments_say_is_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "willitfit"):
        made = trainer(tmp_path, model(), bf16=True, gradient_accumulation_steps=2, gradient_checkpointing=True)
        watched = watch(JOB, reader=Fixed()).attach(made)
        made.train()
    assert {one.field: one.code for one in watched.differences} == {
        "training.precision": "bf16-mixed",
        "training.activation_checkpointing": "full",
        "training.gradient_accumulation_steps": 2,
        "training.gradient_clipping": True,
    }
    assert "With the code's precision" in caplog.text


def test_trl_s_trainer(tmp_path: Path) -> None:
    words = Tokenizer(WordLevel({"<unk>": 0, "<pad>": 1, **{f"w{i}": i for i in range(2, 1000)}}, unk_token="<unk>"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", eos_token="<unk>"
    )
    tracker = Tracker()
    made = SFTTrainer(
        model=model(),
        args=SFTConfig(**settings(tmp_path, max_length=TOKENS, bf16=False, gradient_checkpointing=False)),
        train_dataset=Dataset.from_list(ROWS),
        processing_class=tokenizer,
        callbacks=[tracker],
    )
    watched = watch(CLIPPED, reader=Fixed(allocated=7)).attach(made)
    made.train()
    assert tracker.values["willitfit/predicted_allocated_bytes"] == watched.predicted["allocated"]
    assert tracker.values["willitfit/measured_allocated_bytes"] == 7
    assert watched.differences == []


def scalars(folder: Path) -> dict[str, float]:
    """Every scalar that TensorBoard finds, the last value of each."""
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found: dict[str, float] = {}
    for file in folder.rglob("events.*"):
        events = reading.EventAccumulator(str(file))
        events.Reload()
        found |= {name: events.Scalars(name)[-1].value for name in events.Tags()["scalars"]}
    return found


def test_tensorboard_has_both(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    made = trainer(tmp_path, model(), report_to="tensorboard")
    watched = watch(JOB, reader=Fixed(allocated=1 << 20)).attach(made)
    made.train()
    found = scalars(tmp_path)
    assert found["train/willitfit/predicted_allocated_bytes"] == pytest.approx(watched.predicted["allocated"])  # float32
    assert found["train/willitfit/measured_allocated_bytes"] == 1 << 20


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    loggers = pytest.importorskip("lightning.pytorch.loggers")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model()

        def training_step(self, batch: Any, number: int) -> Any:
            return self.model(input_ids=batch, labels=batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), foreach=True)

    class Remembers(loggers.Logger):  # type: ignore[misc, name-defined]
        name, version = "remembers", "0"

        def __init__(self) -> None:
            super().__init__()
            self.values: dict[str, float] = {}

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.values |= metrics

        def log_hyperparams(self, params: Any) -> None:
            pass

    logger = Remembers()
    made = lightning.Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        precision="bf16-mixed",
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    watched = watch(JOB, reader=Fixed(allocated=7)).attach(made)
    rows = [torch.tensor(row["input_ids"]) for row in ROWS]
    made.fit(Module(), DataLoader(rows, batch_size=SEQUENCES))  # type: ignore[arg-type]
    assert logger.values["willitfit/predicted_allocated_bytes"] == watched.predicted["allocated"]
    assert logger.values["willitfit/measured_allocated_bytes"] == 7
    assert watched.steps == STEPS
    assert {one.field: one.code for one in watched.differences} == {"training.precision": "bf16-mixed"}


def test_a_trainer_of_another_model_is_warned_of(tmp_path: Path) -> None:
    made = trainer(tmp_path, model())
    watched = watch(merged(JOB, {"model": {**TINY, "num_hidden_layers": 3}}), reader=Fixed()).attach(made)
    made.train()
    assert {"parameters", "trainable"} <= {one.field for one in watched.differences}
