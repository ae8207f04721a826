"""Defaults that depend on something else: each rule fills in its field, says why, and leaves alone what was given."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Job, estimate
from estimator.contract.answer import DEFAULT
from estimator.pipeline.defaults import RULES, with_defaults
from estimator.specs.resolve import resolve

FSDP1: dict[str, Any] = {"hardware": {"gpus": 2}, "parallelism": {"strategy": "fsdp1"}}
CASES: list[tuple[str, dict[str, Any], Any]] = [
    # field, the rest of the job, what the field becomes
    ("parallelism.strategy", {"hardware": {"gpus": 2}}, "fsdp2"),
    ("parallelism.strategy", {}, "none"),
    (
        "parallelism.strategy",
        {"model": "llama-2-7b", "hardware": {"gpus": 2}, "training": {"implementation": "megatron"}},
        "zero1",
    ),
    ("parallelism.replicas", {"hardware": {"gpus": 2, "nodes": 2}, "parallelism": {"strategy": "hsdp"}}, 2),
    ("parallelism.data", {"model": "llama-2-7b", "hardware": {"gpus": 8}, "parallelism": {"tensor": 2}}, 4),
    ("training.sequence_length", {}, 1024),
    ("training.sequence_length", {"training": {"adapter": {"type": "prompt-tuning", "virtual_tokens": 24}}}, 1000),
    ("training.sequence_length", {"training": {"lengths": [{"tokens": 300, "share": 1}]}}, 300),
    ("training.loss", {"model": "llama-2-7b", "training": {"implementation": "liger"}}, "fused"),
    ("training.activation_checkpointing", {"training": {"adapter": {"type": "prefix-tuning", "virtual_tokens": 4}}}, "none"),
    ("training.activation_checkpointing", {"model": "mpnet-base"}, "none"),
    ("training.labels", {"training": {"head": "sequence-classification"}}, 2),
    ("training.labels", {"training": {"objective": {"type": "reward"}}}, 1),
    ("training.head", {"training": {"objective": {"type": "reward"}}}, "sequence-classification"),
    ("training.objective.reference", {"training": {"objective": {"type": "dpo"}}}, "model"),
    ("training.objective.reference", {"training": {"objective": {"type": "dpo"}, "adapter": {}}}, "adapter"),
    ("training.optimizer_rank", {"training": {"optimizer": "galore-adamw"}}, 128),
    ("training.target_length", {"model": "whisper-tiny"}, 448),
    ("serving.context", {"task": "serve", "serving": {"prompt_length": 30, "output_length": 12}}, 42),
    ("serving.prompt_length", {"task": "serve", "serving": {"context": 100, "output_length": 10}}, 90),
    ("serving.kv_cache", {"task": "serve", "serving": {"engine": "llama.cpp"}}, "fp16"),
    ("host.loading", {"hardware": {"gpus": 2}, "parallelism": {"strategy": "ddp"}}, "each"),
    ("host.loading", {"hardware": {"gpus": 2}, "parallelism": {"strategy": "fsdp2"}}, "each"),
    ("host.loading", {"hardware": {"gpus": 2}, "parallelism": {"strategy": "zero3"}}, "first"),
    ("host.loading", {**FSDP1, "training": {"transformers_release": "4.48"}}, "first"),
    ("host.loading", {**FSDP1, "training": {"quantization": "nf4", "adapter": {}}}, "device"),
    ("host.loading", {**FSDP1, "training": {"quantization": "nf4", "adapter": {}, "transformers_release": "4.48"}}, "first"),
    ("host.save", {"training": {"adapter": {}}}, "adapter"),
]


def at(job: Job, field: str) -> Any:
    """The value of a field, by its path."""
    value: Any = job
    for name in field.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize(("field", "asked", "becomes"), CASES)
def test_a_rule_fills_its_field_in_and_says_why(field: str, asked: dict[str, Any], becomes: Any) -> None:
    job = Job.model_validate({"model": "gpt2", **asked})
    filled, reasons = with_defaults(job, resolve(job.model).spec)
    assert at(filled, field) == becomes
    assert reasons[field] in [rule.reason for rule in RULES if rule.field == field]


def test_what_was_given_stays() -> None:
    given = {"model": "gpt2", "training": {"sequence_length": 7, "head": "causal-lm"}, "parallelism": {"strategy": "none"}}
    job = Job.model_validate(given)
    filled, reasons = with_defaults(job, resolve("gpt2").spec)
    assert (filled.training.sequence_length, filled.training.head, filled.parallelism.strategy) == (7, "causal-lm", "none")
    assert not {"training.sequence_length", "training.head", "parallelism.strategy"} & set(reasons)


def test_filling_in_twice_changes_nothing() -> None:
    job = Job.model_validate({"model": "gpt2", "hardware": {"gpus": 4}})
    once, _ = with_defaults(job, resolve("gpt2").spec)
    assert with_defaults(once, resolve("gpt2").spec)[0] == once


def test_the_answer_cites_the_reason() -> None:
    said = estimate({"model": "gpt2"}).assumptions
    assert f"{DEFAULT}training.sequence_length = 1024 (the model has positions for no more)" in said


def test_every_rule_is_of_a_field_of_the_contract() -> None:
    job = Job.model_validate({"model": "gpt2", "training": {"objective": {"type": "dpo"}}})
    for rule in RULES:
        at(job, rule.field)
