"""Sentences of an answer as values: each has a slug and a kind, and is about a field that a job has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from estimator import estimate
from estimator.contract.answer import DEFAULT, Answer
from estimator.contract.job import Job
from estimator.pipeline.notes.gathered import LISTS

ASKED: dict[str, dict[str, Any]] = {
    "lora": {
        "model": "qwen3-0.6b",
        "hardware": {"gpu": "t4", "gpus": 2},
        "training": {"adapter": {"type": "lora"}, "precision": "bf16-true"},
    },
    "too much": {"model": "llama-3.1-8b", "hardware": {"gpu": "rtx-4090"}},
    "vllm": {"model": "qwen3-8b", "task": "serve", "hardware": {"gpu": "a100-80gb"}},
    "llama.cpp": {"model": "llama-3.1-8b", "task": "serve", "serving": {"engine": "llama.cpp", "weights": "q4_k_m"}},
    "grpo": {"model": "qwen3-0.6b", "training": {"objective": {"type": "grpo", "prompt_length": 256}}},
    "megatron": {
        "model": "llama-2-7b",
        "hardware": {"gpu": "h100", "gpus": 8},
        "parallelism": {"tensor": 2, "pipeline": 2},
        "training": {"implementation": "megatron", "gradient_accumulation_steps": 4},
    },
}

PARTS = ("training.adapter.", "training.objective.")
"""Fields that several kinds of value have, each with parts of its own."""


@pytest.fixture(scope="module", params=ASKED)
def answer(request: pytest.FixtureRequest) -> Answer:
    return estimate(ASKED[request.param])


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, f"{prefix}{name}.")


def test_the_lists_of_an_answer_are_its_notes(answer: Answer) -> None:
    for name in set(LISTS.values()):
        said = [(DEFAULT if note.kind == "default" else "") + note.text for note in answer.notes if LISTS[note.kind] == name]
        assert said == getattr(answer, name)


def test_a_slug_is_of_plain_words(answer: Answer) -> None:
    assert [note.slug for note in answer.notes if not re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", note.slug)] == []


def test_a_note_is_about_a_field_of_the_job(answer: Answer) -> None:
    known = set(_fields(Job))
    about = {note.about for note in answer.notes if note.about is not None}
    assert {field for field in about if field not in known and not field.startswith(PARTS)} == set()


def test_what_is_said_of_one_thing_can_be_told_from_another() -> None:
    notes = {(note.kind, note.slug): note for note in estimate(ASKED["lora"]).notes}
    assert notes["warning", "no-bf16"].about == "hardware.gpu"
    assert notes["assumption", "adapter-library"].about == "training.adapter"
    assert notes["default", "default"].text.split(" = ")[0] == notes["default", "default"].about
