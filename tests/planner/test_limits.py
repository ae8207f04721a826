"""Limits: the value with which a job fits, beside trying every value; what is in the way of the next one; what is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
import yaml

from estimator import InvalidJob, Limit, UnknownName, WillItFitError, limit
from estimator.cli.main import main
from estimator.contract.errors import NotModelled
from estimator.pipeline.judged import judged
from tests.jobs import merged

WIDE = 128256
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": WIDE,
}
MODELS: list[dict[str, Any]] = [
    LLAMA,
    {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True},
    {**LLAMA, "model_type": "mistral", "sliding_window": 64},
    {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    {**LLAMA, "model_type": "gemma2", "head_dim": 8, "sliding_window": 96, "query_pre_attn_scalar": 8},
    {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 4096, "vocab_size": WIDE},
]
FARTHEST = 250
"""Value up to which all are tried."""


def drawn(seed: int) -> tuple[dict[str, Any], str, Literal["max", "min"]]:
    """A small job on a small card, a number of it, and the question."""
    draw = Random(seed)
    training: dict[str, Any] = {
        "precision": draw.choice(["bf16-true", "bf16-mixed", "32-true"]),
        "attention": draw.choice(["sdpa", "eager"]),
        "attention_mask": draw.choice(["none", "none", "padding"]),
        "activation_checkpointing": draw.choice(["none", "full"]),
        "expandable_segments": draw.random() < 0.3,
        "micro_batch_size": draw.choice([1, 2, 3]),
        "sequence_length": draw.choice([16, 48, 100]),
    }
    adapted = draw.random() < 0.5
    if adapted:
        training["adapter"] = {"rank": draw.choice([4, 16])}
    model = draw.choice(MODELS)
    if model["model_type"] == "gemma2":
        training["attention"] = "eager"  # transformers has no other of it
    job: dict[str, Any] = {
        "model": model,
        "training": training,
        "hardware": {"memory": draw.choice(["1GB", "1.2GB"])},
    }
    fields = [
        "training.sequence_length",
        "training.micro_batch_size",
        *(["training.adapter.rank"] if adapted else ["hardware.gpus"]),
    ]
    name = draw.choice(fields)
    return job, name, "min" if name == "hardware.gpus" else "max"


def changed(job: dict[str, Any], name: str, value: int) -> dict[str, Any]:
    part: dict[str, Any] = {name.rpartition(".")[2]: value}
    for step in reversed(name.split(".")[:-1]):
        part = {step: part}
    return merged(job, part)


def fits(job: dict[str, Any]) -> bool:
    try:
        return judged(job, reserves=False).verdict.fits is True and judged(job).verdict.fits is True
    except (InvalidJob, NotModelled):
        return False


def all_that_fit(job: dict[str, Any], name: str) -> Iterator[int]:
    """Every value up to the farthest that fits: of GPUs up to 64."""
    for value in range(1, 65 if name == "hardware.gpus" else FARTHEST):
        if fits(changed(job, name, value)):
            yield value


def beside_all(seed: int) -> None:
    """Assert that the limit of a job that is drawn is the outermost of all values that fit."""
    job, name, bound = drawn(seed)
    fitting = list(all_that_fit(job, name))
    outermost = (max if bound == "max" else min)(fitting, default=None)
    for tries in (8, FARTHEST):
        found = limit(job, name, bound, tries=tries)
        if found.value is None:
            assert not fitting
            continue
        assert fits(changed(job, name, found.value))
        assert found.next is None or not fits(changed(job, name, found.next.value))
        if found.value < FARTHEST:
            assert found.untried == 0 or tries < FARTHEST
            assert outermost is not None
            assert found.value == outermost or (found.untried and found.value < outermost <= found.value + found.untried)


@pytest.mark.share(4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_it_is_the_outermost_of_all_that_fit(seed: int) -> None:
    beside_all(seed)


QLORA: dict[str, Any] = {
    "model": "llama-3-8b",
    "hardware": {"gpu": "rtx-4090"},
    "training": {"precision": "bf16-true", "quantization": "nf4", "adapter": {"rank": 16}, "expandable_segments": True},
}
SERVED: dict[str, Any] = {"model": "llama-3-8b", "task": "serve", "hardware": {"gpu": "rtx-4090"}}
GGUF = merged(SERVED, {"model": "llama-3.1-70b", "serving": {"engine": "llama.cpp", "weights": "q4_k_m"}})
TENSOR = {"hardware": {"gpu": "h100", "gpus": 12}, "parallelism": {"strategy": "fsdp2"}, "training": {"precision": "bf16-true"}}
CASES: list[tuple[str, dict[str, Any], str, Literal["max", "min"], str | None, str]] = [
    ("length", QLORA, "training.sequence_length", "max", "memory", "more than the 23.6 GiB"),
    ("batch", QLORA, "training.micro_batch_size", "max", "memory", "logits and loss"),
    ("rank", QLORA, "training.adapter.rank", "max", "memory", ""),
    ("accumulation", QLORA, "training.gradient_accumulation_steps", "max", "range", "the most that"),
    ("the shortest", QLORA, "training.sequence_length", "min", "range", "the least that"),
    ("learned positions", {"model": "gpt2", "hardware": {"gpu": "t4"}}, "training.sequence_length", "max", "range", "learned"),
    ("GPUs", {"model": "llama-3-8b", "hardware": {"gpu": "h100"}}, "hardware.gpus", "min", "memory", "with 1 it does not"),
    ("a server's GPUs", merged(SERVED, {"model": "llama-3.1-70b"}), "hardware.gpus", "min", "memory", "vLLM would not start"),
    ("context", SERVED, "serving.context", "max", "memory", "vLLM would not start"),
    ("concurrency", SERVED, "serving.concurrency", "max", "memory", "vLLM"),
    ("layers", GGUF, "serving.gpu_layers", "max", "memory", "parameters"),
    ("degrees", {"model": "llama-3-8b", **TENSOR}, "parallelism.tensor", "max", "refused", "num_attention_heads"),
    (
        "a node's memory",
        {"model": "llama-3.2-1b", "hardware": {"gpu": "h100"}, "host": {"loading": "each"}},
        "host.memory",
        "min",
        "host",
        "of its own memory",
    ),
]


@pytest.mark.parametrize(("job", "name", "bound", "by", "says"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_is_in_the_way(job: dict[str, Any], name: str, bound: Literal["max", "min"], by: str, says: str) -> None:
    """The verdicts at the value and at the next one are those of the job with these values."""
    found = limit(job, name, bound)
    assert (found.limited_by, found.fits) == (by, True)
    assert says in found.reason
    assert found.value is not None
    assert found.at
    here = judged(found.job or {})
    assert (here.memory.total_bytes, here.verdict.fits) == (found.at.total_bytes, True)
    assert (found.next is None) == (by == "range")
    if found.next:
        assert (found.next.value > found.value) == (bound == "max")
        along = {"parallelism": {"tensor": found.next.value}} if "together" in str(found.assumptions) else {}
        assert not fits(merged(changed(job, name, found.next.value), along))


@pytest.mark.slow
def test_each_neighbour_does_not_fit() -> None:
    """One more is the next one, where every value is taken."""
    for name in ("training.sequence_length", "training.micro_batch_size", "training.adapter.rank"):
        found = limit(QLORA, name, "max")
        assert found.value
        assert found.next
        assert found.next.value == found.value + 1


def test_a_servers_degree_goes_with_its_gpus_unless_the_job_says_it() -> None:
    job = merged(SERVED, {"model": "llama-3.1-70b", "hardware": {"gpu": "h100"}})
    found = limit(job, "hardware.gpus", "min")
    assert found.job
    assert found.job["parallelism"]["tensor"] == found.value
    assert any("parallelism.tensor goes with hardware.gpus" in said for said in found.assumptions)
    kept = limit(merged(job, {"parallelism": {"tensor": 4}}), "hardware.gpus", "min")
    assert (kept.value, kept.limited_by) == (4, "refused")


def test_positions_that_can_be_stretched() -> None:
    long = limit(SERVED, "serving.context", "max", on="h100")
    assert long.value
    assert long.value > 8192
    assert any("made for 8192 positions" in said for said in long.assumptions)


def test_none_fits_and_why() -> None:
    found = limit({"model": "llama-3.1-70b", "hardware": {"gpu": "t4"}}, "training.sequence_length", "max")
    assert (found.value, found.fits, found.limited_by, found.job) == (None, False, None, None)
    assert found.at
    assert found.at.reason in found.reason
    assert "more than the" in found.reason


def test_unknown_stays_unknown() -> None:
    found = limit({"model": "gpt2"}, "training.micro_batch_size", "max")
    assert (found.value, found.fits, found.limited_by) == (None, None, None)
    assert "no hardware was given" in found.reason


@pytest.mark.parametrize(
    ("job", "name", "error", "says"),
    [
        (QLORA, "training.precision", InvalidJob, "no whole number"),
        (QLORA, "serving.gpu_memory_utilization", InvalidJob, "no whole number"),
        (QLORA, "training.tf32", InvalidJob, "no whole number"),
        (QLORA, "hardware.rent", InvalidJob, "no whole number"),
        (QLORA, "sequence_length", InvalidJob, "Did you mean 'training.sequence_length'"),
        (QLORA, "training.seq_length", InvalidJob, "Did you mean 'training.sequence_length'"),
        ("gpt2", "training.sequence_length", InvalidJob, "is a model, and this is asked of a job"),
        (QLORA, "batch_size", InvalidJob, "Did you mean 'training.micro_batch_size'"),
        (QLORA, "max_model_len", InvalidJob, "Did you mean 'training.sequence_length' or 'serving.context'"),
        (QLORA, "", InvalidJob, "no such field"),
        (QLORA, "..", InvalidJob, "no such field"),
        (QLORA, "training.sequence_length.tokens", InvalidJob, "says '2048' for training.sequence_length"),
        (QLORA, "training.activation_checkpointing.every", InvalidJob, "says 'full' for"),
        ({"model": "gpt2"}, "training.adapter.rank", InvalidJob, "does not say training.adapter"),
        ({"model": "no-such-model"}, "training.sequence_length", UnknownName, "no-such-model"),
        (merged(QLORA, {"training": {"adapter": None}}), "training.sequence_length", InvalidJob, "add an adapter"),
        (merged(QLORA, {"training": {"fp8": {}}}), "training.micro_batch_size", NotModelled, "Transformer Engine"),
    ],
)
def test_what_is_no_question(job: dict[str, Any], name: str, error: type[WillItFitError], says: str) -> None:
    with pytest.raises(error, match=says.replace("(", r"\(")):
        limit(job, name, "max", on="rtx-4090")


def test_wrong_options() -> None:
    with pytest.raises(InvalidJob, match="neither max nor min"):
        limit(QLORA, "training.sequence_length", "most")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="tries"):
        limit(QLORA, "training.sequence_length", "max", tries=0)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(QLORA), encoding="utf-8")
    expected = limit(QLORA, "training.micro_batch_size", "max")
    asked = ["max", str(path), "training.micro_batch_size"]
    assert main([*asked, "--json"]) == 0
    assert capsys.readouterr().out == expected.to_json()
    assert Limit.model_validate(json.loads(expected.to_json())) == expected
    assert main(asked) == 0
    assert capsys.readouterr().out.startswith(f"max training.micro_batch_size: {expected.value}\n\nwith ")
    assert main(["min", str(path), "training.micro_batch_size", "--on", "1GB", "--check"]) == 1
    assert capsys.readouterr().out.startswith("min training.micro_batch_size: none\n\nit fits with no ")
    assert main(["max", str(path), "training.optimizer"]) == 2
    assert capsys.readouterr().err == (
        "willitfit: training.optimizer: is no whole number: ask about one, such as training.sequence_length or hardware.gpus "
        "[invalid-job]\n"
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert main(["max", "-", "training.micro_batch_size", "--json"]) == 0
    assert capsys.readouterr().out == expected.to_json()


def test_a_file_of_a_framework(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve meta-llama/Meta-Llama-3-8B --max-model-len 4096\n", encoding="utf-8")
    assert main(["max", str(path), "serving.context", "--on", "rtx-4090", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["value"] > 8192
    path.write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}', encoding="utf-8")
    assert main(["max", str(path), "training.sequence_length", "--on", "8xh100"]) == 2
    assert "names no model" in capsys.readouterr().err


def test_users_of_a_model_on_all_gpus_or_of_each_copy() -> None:
    shared = limit("qwen3-32b", "serving.concurrency", "max", on="2xh100", way="serve", context=8192)
    alone = limit(
        {"model": "qwen3-32b", "task": "serve", "hardware": {"gpu": "h100", "gpus": 2}, "serving": {"context": 8192}},
        "serving.concurrency",
        "max",
    )
    assert shared.job is not None
    assert shared.job["parallelism"]["tensor"] == 2
    assert (shared.value or 0) > 2 * (alone.value or 0) > 0
    assert any("a sequence of 8192 tokens" in said for said in shared.assumptions)
    assert any(f"each of 2 copies of the model, {2 * (alone.value or 0)} together" in said for said in alone.assumptions)
    small = limit("qwen3-0.6b", "serving.concurrency", "max", on="rtx-4090", way="serve", context=256)
    assert any("runs 256 of them at a time" in said for said in small.assumptions)
    with pytest.raises(InvalidJob, match="say that, too"):
        limit("qwen3-0.6b", "serving.concurrency", "max", way="serve")
