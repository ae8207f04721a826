"""A watch in the trainers that people have: their events, and their logs.

transformers/trainer_callback.py (`TrainerCallback`; TRL's trainers are Trainers), lightning/pytorch/callbacks/callback.py.
Neither is imported before a trainer of it is there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from estimator.contract.errors import InvalidValue

if TYPE_CHECKING:
    from estimator.watching.watch import Watch


def attach(watch: Watch, trainer: Any) -> None:
    """Let a trainer's events lead a watch. Raises `InvalidValue` for what is no trainer that is known."""
    if hasattr(trainer, "callback_handler") and hasattr(trainer, "args"):
        # the first of all: at the end of a training the callbacks of trackers close what is logged to
        trainer.callback_handler.callbacks.insert(0, _transformers(watch, trainer))
    elif isinstance(getattr(trainer, "callbacks", None), list) and hasattr(trainer, "loggers"):
        trainer.callbacks.append(_lightning(watch, type(trainer).__module__.partition(".")[0]))
    else:
        said = "give a Trainer of transformers, TRL or Lightning; of a loop of your own give model and optimizer to watch()"
        raise InvalidValue(f"{type(trainer).__name__} is no trainer that is known here: {said}", "trainer")


def _transformers(watch: Watch, trainer: Any) -> Any:
    """A `TrainerCallback`. What it logs goes through `Trainer.log`, and so to each of `report_to`."""
    watch.log = trainer.log

    def on_step_begin(self: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
        watch.look.settings = _settings(args)
        watch.begin(trainer.model, trainer.optimizer, count=False)  # once; trackers are ready, and the optimizer is made

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
        watch.stepped()

    def on_train_end(self: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
        watch.end()

    base = import_module("transformers").TrainerCallback
    events = {"on_step_begin": on_step_begin, "on_step_end": on_step_end, "on_train_end": on_train_end}
    return type("WatchCallback", (base,), events)()


def _settings(args: Any) -> dict[str, Any]:
    """What `TrainingArguments` say that model and optimizer do not."""
    found = {
        "training.gradient_accumulation_steps": args.gradient_accumulation_steps,
        "training.gradient_clipping": bool(args.max_grad_norm),
        "hardware.gpus": max(args.world_size, args.n_gpu),
    }
    if str(getattr(args.eval_strategy, "value", args.eval_strategy)) != "no":
        found["training.evaluation"] = args.per_device_eval_batch_size
    return found


def _lightning(watch: Watch, package: str) -> Any:
    """A `Callback` of `lightning.pytorch` or `pytorch_lightning`. What it logs goes to each of `trainer.loggers`."""

    def on_train_start(self: Any, trainer: Any, module: Any) -> None:
        def log(values: dict[str, float]) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)

        watch.log = log
        watch.look.settings = {
            "training.gradient_accumulation_steps": trainer.accumulate_grad_batches,
            "training.gradient_clipping": bool(trainer.gradient_clip_val),
            "hardware.gpus": trainer.world_size,
        }
        watch.begin(module, trainer.optimizers[0] if trainer.optimizers else None)

    def on_train_end(self: Any, trainer: Any, module: Any) -> None:
        watch.end()

    def on_exception(self: Any, trainer: Any, module: Any, error: BaseException) -> None:
        watch.end(error)

    base = import_module("lightning.pytorch" if package == "lightning" else package).Callback
    events = {"on_train_start": on_train_start, "on_train_end": on_train_end, "on_exception": on_exception}
    return type("WatchCallback", (base,), events)()
