"""PEFT as judge of what each method trains, on the meta device; and what the methods refuse."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from estimator import Job, estimate
from estimator.job.adapter import LayerAdapter
from estimator.specs.resolve import resolve
from estimator.verify.adapters import adapted
from estimator.verify.model import plain

MODELS: dict[str, Any] = {
    "llama-3-8b": {},
    "llama-3.2-1b": {},
    "gpt2": {},
    "bert-base-uncased": {"head": "sequence-classification"},
    "mixtral-8x7b": {},
    "t5-small": {},
}
TWO = {
    "llama-3-8b": ["q_proj", "down_proj"],
    "llama-3.2-1b": ["q_proj", "down_proj"],
    "gpt2": ["c_attn", "mlp.c_proj"],
    "bert-base-uncased": ["query", "output.dense"],
    "mixtral-8x7b": ["q_proj", "v_proj"],
    "t5-small": ["q", "wo"],
}
METHODS: dict[str, dict[str, Any]] = {
    "lora": {"rank": 32},
    "lora on two": {"rank": 8, "targets": TWO},
    "lora with all biases": {"rank": 8, "bias": "all", "targets": TWO},
    "lora with its biases": {"rank": 8, "bias": "lora_only"},
    "lora on some layers": {"rank": 4, "targets": TWO, "layers": [0, 3, 4]},
    "dora": {"type": "dora", "rank": 16},
    "adalora": {"type": "adalora", "targets": TWO},
    "vera": {"type": "vera", "targets": TWO},
    "loha": {"type": "loha", "targets": TWO},
    "lokr": {"type": "lokr", "rank": 16, "targets": TWO},
    "ia3": {"type": "ia3", "targets": TWO, "feedforward": ["down_proj", "mlp.c_proj", "output.dense", "wo"]},
}
NONE = {("mixtral-8x7b", "dora"), ("mixtral-8x7b", "lora on some layers"), ("gpt2", "loha"), ("gpt2", "lokr")}
"""What a mixture's experts, or a `Conv1D`, have no form for."""


def job(model: str, method: dict[str, Any]) -> dict[str, Any]:
    adapter = {**method, "dtype": "fp32"}
    if adapter.get("targets") is TWO:
        adapter["targets"] = TWO[model]
    if "feedforward" in adapter:
        adapter["feedforward"] = [name for name in adapter["feedforward"] if name in adapter["targets"]]
    return {"model": model, "training": {"adapter": adapter, "micro_batch_size": 1, "sequence_length": 64, **MODELS[model]}}


@pytest.mark.parametrize(
    ("model", "method"), [(model, method) for method in METHODS for model in MODELS if (model, method) not in NONE]
)
def test_as_many_parameters_are_trained_as_peft_trains(model: str, method: str) -> None:
    asked = job(model, METHODS[method])
    answer = estimate(asked)
    settled = Job.model_validate(answer.job).training
    assert isinstance(settled.adapter, LayerAdapter)
    assert settled.head
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = plain(resolve(model).spec, settled.head, torch.float32, "sdpa")
        made = adapted(whole, settled.adapter, settled.head)
    assert answer.parameters.trainable == sum(p.numel() for p in made.parameters() if p.requires_grad)
    assert answer.parameters.total == sum(p.numel() for p in made.parameters())


def test_what_rank_32_trains_of_llama_3() -> None:
    assert estimate(job("llama-3-8b", {"rank": 32})).parameters.trainable == 83_886_080
