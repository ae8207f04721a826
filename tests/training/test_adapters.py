"""PEFT as judge of what each method trains, on the meta device; and what the methods refuse."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from estimator import InvalidJob, Job, NotModelled, estimate
from estimator.contract.job.adapter import OnWeights
from estimator.specs.resolve import resolve
from estimator.verify.adapters import adapted
from estimator.verify.model import plain
from tests.tapes import SMALL, assert_folded_as_unrolled

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
    "oft": {"type": "oft"},
    "oft of shared blocks": {"type": "oft", "blocks": 7, "shared": True, "targets": TWO},
    "boft with its biases": {"type": "boft", "block_size": 8, "targets": TWO, "bias": "boft_only"},
    "ia3": {"type": "ia3", "targets": TWO, "feedforward": ["down_proj", "mlp.c_proj", "output.dense", "wo"]},
}
LINEAR_ONLY = ("loha", "lokr", "oft", "oft of shared blocks", "boft with its biases")
NONE = {("mixtral-8x7b", name) for name in ("dora", "lora on some layers", "oft")} | {("gpt2", name) for name in LINEAR_ONLY}
"""What a mixture's experts, or a `Conv1D`, have no form for."""


def job(model: str, method: dict[str, Any]) -> dict[str, Any]:
    adapter = {**method, "dtype": "fp32"}
    if adapter.get("targets") is TWO:
        adapter["targets"] = TWO[model]
    if "feedforward" in adapter:
        adapter["feedforward"] = [name for name in adapter["feedforward"] if name in adapter["targets"]]
    return {"model": model, "training": {"adapter": adapter, "micro_batch_size": 1, "sequence_length": 64, **MODELS[model]}}


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("model", "method"), [(model, method) for method in METHODS for model in MODELS if (model, method) not in NONE]
)
def test_as_many_parameters_are_trained_as_peft_trains(model: str, method: str) -> None:
    asked = job(model, METHODS[method])
    answer = estimate(asked)
    settled = Job.model_validate(answer.job).training
    assert isinstance(settled.adapter, OnWeights)
    assert settled.head
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = plain(resolve(model).spec, settled.head, torch.float32, "sdpa")
        made = adapted(whole, settled.adapter, settled.head)
    assert answer.parameters.trainable == sum(p.numel() for p in made.parameters() if p.requires_grad)
    assert answer.parameters.total == sum(p.numel() for p in made.parameters())


PUBLISHED = [
    ({"rank": 32, "targets": ["q_proj", "v_proj"]}, 9_175_040),
    ({"rank": 64, "targets": ["q_proj", "v_proj"], "rslora": True}, 18_350_080),
    ({"rank": 10, "targets": ["up_proj", "gate_proj", "down_proj"]}, 9_461_760),
    ({"type": "dora", "rank": 32, "targets": ["q_proj", "v_proj"]}, 9_289_728),
    ({"type": "loha", "rank": 32, "targets": ["q_proj", "v_proj"]}, 18_350_080),
    ({"type": "vera", "rank": 256, "targets": ["q_proj", "v_proj"]}, 129_024),
    ({"type": "ia3", "targets": ["k_proj", "v_proj", "down_proj"], "feedforward": ["down_proj"]}, 286_720),
    ({"type": "prompt-tuning", "virtual_tokens": 200}, 614_400),
    ({"type": "prefix-tuning", "virtual_tokens": 200}, 11_468_800),
    ({"type": "prefix-tuning", "virtual_tokens": 50}, 2_867_200),
    ({"type": "p-tuning", "virtual_tokens": 20}, 28_382_208),
]
"""What PEFT's own comparison printed for Llama-3.2-3B (method_comparison/MetaMathQA/results, commit 5d602fdbff04)."""


@pytest.mark.parametrize(("adapter", "trained"), PUBLISHED, ids=lambda value: str(value))
def test_as_many_are_trained_as_was_published(adapter: dict[str, Any], trained: int) -> None:
    training = {"precision": "bf16-true", "activation_checkpointing": "none", "sequence_length": 64, "adapter": adapter}
    assert estimate({"model": "llama-3.2-3b", "training": training}).parameters.trainable == trained


ADAPTERHUB = [("double_seq_bn", 64, 461_088), ("double_seq_bn", 2, 14_183_424), ("seq_bn", 64, 230_544), ("seq_bn", 2, 7_091_712)]
"""What its authors print for base-sized encoders (Poth et al. 2023, Adapters: A Unified Library, table of hyper-parameters)."""


@pytest.mark.parametrize(("config", "reduction", "trained"), [*ADAPTERHUB, ("par_bn", 64, 230_544), ("par_bn", 2, 7_091_712)])
def test_as_many_are_trained_as_adapterhub_published(config: str, reduction: int, trained: int) -> None:
    adapter = {"type": "bottleneck", "config": config, "reduction_factor": reduction}
    found = estimate({"model": "bert-base-uncased", "training": {"head": "sequence-classification", "adapter": adapter}})
    classifier = 2 * 768 + 2
    assert found.parameters.trainable == trained + classifier


def test_targets_that_peft_passes_over_are_named() -> None:
    asked = job("gpt2", {"targets": ["c_attn", "q_proj"]})
    assert any("no layer is called q_proj here" in warning for warning in estimate(asked).warnings)
    asked = job("mixtral-8x7b", {"targets": ["q_proj", "w1", "w3"]})
    assert not any("no layer is called" in warning for warning in estimate(asked).warnings)


def test_what_rank_32_trains_of_llama_3() -> None:
    assert estimate(job("llama-3-8b", {"rank": 32})).parameters.trainable == 83_886_080


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_answer_says_what_an_adapter_does_not_make_smaller(checkpointing: str) -> None:
    """Where layers keep their activations these are most of the peak; where they are recomputed, the weights are."""
    training = {"precision": "bf16-true", "micro_batch_size": 2, "adapter": {}, "activation_checkpointing": checkpointing}
    answer = estimate({"model": "llama-3-8b", "training": training})
    said = [line for line in answer.warnings if "an adapter leaves activations" in line]
    parts = answer.memory.at_peak
    share = (parts["activations"] + parts["logits_and_loss"]) / answer.memory.peak_bytes
    assert bool(said) == (share > 0.5) == (checkpointing == "none")
    assert not said or f"{share:.0%} of the peak" in said[0]


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_dora_with_dropout_keeps_unpacked_weights(quantization: str) -> None:
    """Their products with dropped inputs are part of the graph: `DoraLinearLayer.forward` multiplies once more."""

    def saved(**method: Any) -> int:
        training = {"precision": "bf16-true", "activation_checkpointing": "none", "sequence_length": 128}
        adapter = {"rank": 8, "targets": ["down_proj"], "dtype": "bf16", **method}
        answer = estimate({"model": "llama-3-8b", "training": {**training, "quantization": quantization, "adapter": adapter}})
        return answer.memory.forward_end_bytes - answer.memory.resident_bytes

    unpacked = 31 * 4096 * 14336 * 2  # the first layer's input wants no gradient
    assert unpacked <= saved(type="dora", dropout=0.1) - saved(dropout=0.1) < 1.1 * unpacked
    assert saved(type="dora") - saved() < 0.1 * unpacked


FOLDED: list[dict[str, Any]] = [
    {"type": "dora", "dropout": 0.1},
    {"type": "adalora", "targets": ["q_proj", "up_proj"]},
    {"type": "vera", "rank": 8, "dtype": "fp32"},
    {"type": "ia3", "targets": ["k_proj", "down_proj"], "feedforward": ["down_proj"]},
    {"type": "loha"},
    {"type": "oft", "exclude": ["v_proj"]},
    {"type": "boft", "layers": [1, 5], "targets": ["v_proj", "o_proj"]},
    {"type": "lokr", "rank": 2, "layers": [1, 5], "targets": ["v_proj", "o_proj"]},
    {"type": "lora", "layers": [0, 1, 2, 6], "targets": ["q_proj", "down_proj"], "dropout": 0.1},
    {"type": "lora", "layers": [3, 4, 5, 8], "targets": ["q_proj"]},
    {"type": "lora", "targets": ["embed_tokens", "lm_head", "v_proj"], "modules_to_save": ["norm"]},
    {"type": "bottleneck", "config": "double_seq_bn", "scaling": "learned"},
    {"type": "bottleneck", "config": "par_bn", "leave_out": [0, 1, 5]},
]


@pytest.mark.share(6)
@pytest.mark.parametrize("checkpointing", ["none", "full", {"every": 2}, "sqrt"])
@pytest.mark.parametrize("strategy", ["none", "fsdp1", "fsdp2", "ddp"])
@pytest.mark.parametrize("adapter", FOLDED, ids=lambda adapter: f"{adapter['type']} {adapter.get('layers', '')}")
def test_layers_that_are_replayed_are_those_that_would_be_played(adapter: Any, strategy: str, checkpointing: Any) -> None:
    training = {"precision": "bf16-mixed", "sequence_length": 128, "gradient_accumulation_steps": 2, "adapter": adapter}
    job = {
        "model": {**SMALL, "num_hidden_layers": 9},
        "hardware": {"gpus": 1 if strategy == "none" else 2},
        "parallelism": {"strategy": strategy},
        "training": {**training, "activation_checkpointing": checkpointing},
    }
    try:
        estimate(job)
    except (InvalidJob, NotModelled):  # FSDP2 refuses a layer that is trained in two types
        return
    assert_folded_as_unrolled(job)
