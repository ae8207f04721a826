"""Record what TRL's PPO takes: `PPOTrainer.train` itself, of TRL 1.0.0, on fake tensors.

TRL has had no trainer for PPO since, so it lies beside the release that the other objectives need:

    pip install --target trl-1.0.0 --no-deps trl==1.0.0
    PYTHONPATH=trl-1.0.0 python -m tests.judge.ppo [NAMEPART]

writes tests/data/ppo.json, a record for each case of tests/cases/ppo.yaml. Its second update is counted.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from transformers import PreTrainedModel

from estimator import Job, estimate
from estimator.families.from_config import from_mapping
from estimator.families.spec import ModelSpec
from estimator.hardware.capability import gpu
from estimator.hardware.capacity import capacity
from estimator.specs.resolve import resolve
from estimator.verify.cuda import on_cuda
from estimator.verify.generation import tokens_seen, until, windows_seen
from estimator.verify.live import Live
from estimator.verify.model import TRUE, build, plain, prepare
from estimator.verify.offload import on_host
from estimator.verify.optimizers import Optimizers, make_optimizer
from estimator.verify.patched import resizes_seen
from estimator.verify.step import documents, settle_states, usual_numbers
from tests.jobs import cases, job_of

FILE = Path(__file__).parents[1] / "data" / "ppo.json"
Counted = dict[str, int]


def ppo_update(job: Job, spec: ModelSpec, logs: dict[str, Any] | None = None) -> Counted:
    """Bytes between updates, at the end of the last forward pass, and at the peaks of the phases of the second update."""
    from trl.experimental.ppo import ppo_trainer

    card, training = gpu(job, capacity(job.hardware)), job.training
    asked = training.objective
    assert asked is not None
    live = Live(card)
    with FakeTensorMode(allow_non_fake_inputs=True), documents(), on_cuda(card), on_host():
        with mock.patch.object(PreTrainedModel, "initialize_weights"):
            dtype = TRUE.get(training.precision, torch.float32)
            policy = build(job, spec)
            other = from_mapping(asked.reward, "reward") if isinstance(asked.reward, dict) else spec
            value, reward = (plain(other, "sequence-classification", dtype, training.attention, 1) for _ in range(2))
            reference = plain(spec, "causal-lm", dtype, training.attention) if asked.reference == "model" else None
        trained = ppo_trainer.PolicyAndValueWrapper(policy, value)
        base = policy.get_base_model() if training.adapter else policy
        for model in filter(None, (base, value, reward, reference)):
            ppo_trainer.disable_dropout_in_model(model)
            model.config.use_cache = True
            for tensor in [*model.parameters(), *model.buffers()]:
                live.track(tensor.data)
        base.generation_config.use_cache = True
        prepare(job, trained)
        optimizer = make_optimizer(job, trained, live.outside_backward)
        watch = _Watch(live, optimizer, job)
        trainer = _stand_in(job, spec, trained, reference, reward, watch)
        with usual_numbers(), resizes_seen(live), live, tokens_seen(live), windows_seen(live), until(training.sequence_length):
            with watch.seen(ppo_trainer):
                ppo_trainer.PPOTrainer.train(trainer)
            counted = watch.counted(logs)
        del policy, base, value, reward, reference, trained, optimizer, trainer, watch, model, tensor
    gc.collect()
    return counted


class _Watch:
    """Where the phases of an update begin in the log of live bytes; and the optimizer, which steps after the last micro-batch."""

    def __init__(self, live: Live, optimizer: Optimizers, job: Job):
        self.live, self.optimizer, self.job = live, optimizer, job
        self.steps = job.training.gradient_accumulation_steps
        self.marks: list[tuple[int, str]] = []
        self.resident = self.forward_end = self.taken = 0

    def mark(self, phase: str) -> None:
        self.marks.append((len(self.live.log), phase))

    def between(self) -> None:
        """An update has ended, and the next begins."""
        settle_states(self.job, self.optimizer, self.live)
        self.marks.clear()
        self.resident = self.live.bytes
        self.mark("generate")

    @contextmanager
    def seen(self, module: Any) -> Iterator[None]:
        plain_batch, plain_var = module.batch_generation, module.masked_var

        def batch_generation(*args: Any) -> Any:
            made = plain_batch(*args)
            self.mark("score")
            return made

        def masked_var(*args: Any) -> Any:
            with mock.patch.object(FakeTensor, "__bool__", return_value=False):
                return plain_var(*args)

        @contextmanager
        def unwrapped(model: Any, *args: Any, **settings: Any) -> Iterator[Any]:
            self.between()
            yield model

        with mock.patch.multiple(
            module, batch_generation=batch_generation, masked_var=masked_var, unwrap_model_for_generation=unwrapped
        ):
            yield

    @contextmanager
    def accumulate(self, model: Any) -> Iterator[None]:
        self.mark("forward")
        yield

    def backward(self, loss: torch.Tensor) -> None:
        self.forward_end = self.live.bytes
        self.mark("backward")
        self.live.in_backward = True
        loss.backward()
        self.live.in_backward = False
        self.taken += 1

    def step(self) -> None:
        if self.taken % self.steps == 0:
            self.mark("optimizer_step")
            self.optimizer.step()

    def zero_grad(self) -> None:
        if self.taken % self.steps == 0:
            self.optimizer.zero_grad()
        self.mark("metrics")

    def counted(self, logs: dict[str, Any] | None) -> Counted:
        found: Counted = {"resident": self.resident, "forward_end": self.forward_end}
        level = self.resident
        ends = [start for start, _ in self.marks[1:]] + [len(self.live.log)]
        for (start, phase), end in zip(self.marks, ends, strict=True):
            if logs is not None:
                logs.setdefault(phase, []).append(self.live.log[start:end])
            found[phase] = max(found.get(phase, 0), level)
            for change, _ in self.live.log[start:end]:
                level += change
                found[phase] = max(found[phase], level)
        return found


def _stand_in(job: Job, spec: ModelSpec, trained: Any, reference: Any, reward: Any, watch: _Watch) -> Any:
    """A trainer with what `train` reads, at its defaults where the job says nothing."""
    training, asked = job.training, job.training.objective
    assert asked is not None
    steps, size = training.gradient_accumulation_steps, training.micro_batch_size
    args = SimpleNamespace(
        response_length=training.sequence_length - asked.prompt_length,
        temperature=0.7,
        num_ppo_epochs=2,
        num_mini_batches=1,
        gradient_accumulation_steps=steps,
        num_total_batches=2,
        total_episodes=100,
        batch_size=steps * size,
        local_batch_size=steps * size,
        local_mini_batch_size=steps * size,
        per_device_train_batch_size=size,
        local_rollout_forward_batch_size=asked.rollout_batch_size,
        logging_steps=None,
        eval_steps=None,
        save_steps=None,
        ds3_gather_for_generation=True,
        missing_eos_penalty=None,
        kl_estimator="k1",
        kl_coef=0.05,
        whiten_rewards=False,
        gamma=1.0,
        lam=0.95,
        cliprange_value=0.2,
        cliprange=0.2,
        vf_coef=0.1,
        num_sample_generations=0,
    )
    accelerator = SimpleNamespace(
        device=torch.device("cpu"),
        print=lambda *said: None,
        unwrap_model=lambda model: model,
        accumulate=watch.accumulate,
        backward=watch.backward,
        gather_for_metrics=lambda x: x,
    )
    shape = steps * size, asked.prompt_length
    vocabulary = spec.config()["vocab_size"]

    def nothing(*args: Any, **settings: Any) -> None:
        """What is called for its effects on a log or a schedule."""

    def end(*args: Any) -> Any:
        return SimpleNamespace(should_save=False)

    class Loader:
        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            yield {"input_ids": torch.randint(0, vocabulary, shape)}

    trainer = SimpleNamespace(
        args=args,
        accelerator=accelerator,
        optimizer=watch,
        model=trained,
        ref_model=reference,
        reward_model=reward,
        processing_class=SimpleNamespace(pad_token_id=0, eos_token_id=2),
        dataloader=Loader(),
        state=SimpleNamespace(),
        control=None,
        train_dataset_len=100,
        stop_token_id=2,
        is_deepspeed_enabled=False,
        is_peft_model=bool(training.adapter),
        ref_adapter_name=None,
        lr_scheduler=SimpleNamespace(step=nothing, get_last_lr=lambda: [0.0]),
        log=nothing,
        callback_handler=SimpleNamespace(on_train_begin=end, on_step_end=end, on_train_end=end),
    )

    if training.adapter:
        trainer.null_ref_context = trained.policy.disable_adapter
    return trainer


def main(parts: list[str]) -> None:
    """Write the record of every case, or of those with one of `parts` in their names and those that have none."""
    found: dict[str, Counted] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() and parts else {}
    said = {}
    for case in cases("ppo"):
        name = case["name"]
        if name not in found or any(part in name for part in parts):
            job = Job.model_validate(estimate(job_of(case)).job)
            found[name] = ppo_update(job, resolve(job.model).spec)
        said[name] = found[name]
    rows = (f"{json.dumps(name)}: {json.dumps(counts)}" for name, counts in said.items())
    FILE.write_text("{" + ",\n".join(rows) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
