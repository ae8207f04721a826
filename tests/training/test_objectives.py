"""Objectives over several models or answers, and evaluation between steps: what each adds, and what it leaves out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from estimator import estimate
from estimator.contract.answer import Memory
from estimator.contract.errors import InvalidJob, UnknownName
from estimator.families import count
from estimator.specs.resolve import resolve
from tests.jobs import TESTS, cases, counts, job_of
from tests.tapes import simulated, unrolled

pytestmark = pytest.mark.slow

MODEL = "qwen2.5-0.5b"
PPO = json.loads((TESTS / "data" / "ppo.json").read_text(encoding="utf-8"))
"""What TRL's trainer took (tests/judge/ppo.py)."""


def _memory(gpus: int = 1, **training: Any) -> Memory:
    job: dict[str, Any] = {"model": MODEL, "training": {"sequence_length": 512, "micro_batch_size": 2, **training}}
    if gpus > 1:
        job |= {"hardware": {"gpus": gpus}, "parallelism": {"strategy": "ddp"}}
    return estimate(job).memory


def _dpo(**asked: Any) -> dict[str, Any]:
    return {"type": "dpo", "prompt_length": 128, **asked}


def test_a_reference_is_one_more_model() -> None:
    beside, without = _memory(objective=_dpo()), _memory(objective=_dpo(reference="precomputed"))
    parameters = 4 * count(resolve(MODEL).spec)
    assert parameters <= beside.resident_bytes - without.resident_bytes < 1.001 * parameters  # each rounded up
    assert beside.at_peak["other_models"] == beside.resident_bytes - without.resident_bytes
    assert "other_models" not in without.at_peak


def test_an_adapter_needs_no_other_model() -> None:
    adapter = {"rank": 8}
    alone = _memory(adapter=adapter)
    assert _memory(adapter=adapter, objective=_dpo()).resident_bytes == alone.resident_bytes
    assert _memory(adapter=adapter, objective=_dpo(reference="model")).resident_bytes > alone.resident_bytes


def test_ddp_averages_the_gradients_of_the_trained_model_alone() -> None:
    beside, without = (_memory(gpus, objective=_dpo()).resident_bytes for gpus in (2, 1))
    plain = _memory(2).resident_bytes - _memory().resident_bytes
    assert beside - without == plain


@pytest.mark.parametrize("prompt", [0, 1, 128, 511])
def test_a_longer_prompt_never_needs_more(prompt: int) -> None:
    assert _memory(objective=_dpo(prompt_length=prompt)).peak_bytes <= _memory(objective="dpo").peak_bytes


def _grpo(engine: Any, card: str = "a100-80gb", **training: Any) -> Memory:
    asked = {"type": "grpo", "prompt_length": 128, "generation": engine}
    job = {"model": MODEL, "hardware": {"gpu": card}, "training": {"sequence_length": 512, **training, "objective": asked}}
    return estimate(job).memory


def test_a_model_that_writes_keeps_a_cache() -> None:
    peaks = []
    for tokens in (129, 130, 131, 512, 2048, 4096):
        memory = _grpo("transformers", sequence_length=tokens, precision="bf16-true", gradient_accumulation_steps=64)
        peaks.append(memory.phases["generate"])
    assert peaks == sorted(peaks)
    cache = 24 * 2 * 2 * 64 * 2 * 64  # layers, keys and values, heads, size, bytes, sequences; of one token
    assert peaks[-1] - peaks[-2] == pytest.approx(2048 * cache, rel=0.1)


def test_what_a_model_writes_changes_nothing_of_the_step_but_what_waits() -> None:
    itself, elsewhere = _grpo("transformers"), _grpo("server")
    assert set(itself.phases) - set(elsewhere.phases) == {"generate"}
    assert 0 <= elsewhere.peak_bytes - itself.peak_bytes < 2**20


def test_layers_that_write_are_folded_as_they_are_unrolled() -> None:
    asked = {"type": "grpo", "prompt_length": 20, "generation": "transformers"}
    job = {"model": MODEL, "training": {"precision": "bf16-mixed", "sequence_length": 32, "objective": asked}}
    assert simulated(job)[1].phases == unrolled(job)[1].phases


def test_an_engine_takes_its_share_beside_the_peak() -> None:
    alone, beside, asleep = (_grpo(engine) for engine in ("server", "vllm", {"engine": "vllm", "sleep": True}))
    assert alone.capacity_bytes is not None
    share = int(0.3 * alone.capacity_bytes)
    assert beside.total_bytes - alone.total_bytes == beside.overhead["vllm_engine"] == share
    assert alone.total_bytes < asleep.total_bytes < beside.total_bytes
    assert asleep.overhead["vllm_engine"] == max(0, alone.resident_bytes + share - alone.peak_bytes)


def test_a_teacher_is_one_more_model_and_never_a_file_to_a_service() -> None:
    asked = {"type": "distillation", "prompt_length": 128}
    taught, alone = _memory(objective={**asked, "teacher": MODEL}), _memory()
    parameters = 4 * count(resolve(MODEL).spec)
    assert parameters <= taught.resident_bytes - alone.resident_bytes < 1.001 * parameters
    job = {"model": MODEL, "training": {"objective": {**asked, "teacher": "/etc/config.json"}}}
    with pytest.raises((InvalidJob, UnknownName)):
        estimate(job, allow_files=False)


def test_evaluation_changes_nothing_of_the_step() -> None:
    plain, evaluated = _memory(), _memory(evaluation={})
    assert {name: evaluated.phases[name] for name in plain.phases} == plain.phases
    assert evaluated.resident_bytes == plain.resident_bytes


def test_what_is_gathered_grows_with_its_batches() -> None:
    peaks = [_memory(evaluation={"keeps": "logits", "batches": n}).phases["evaluate"] for n in (2, 3, 4, 8, 9)]
    assert peaks == sorted(peaks)
    logits = 8 * 512 * 151_936 * 4
    assert peaks[-1] - peaks[-2] == pytest.approx(2 * logits, rel=0.001)
    assert _memory(evaluation={"batches": 100}).phases["evaluate"] == pytest.approx(_memory(evaluation={}).phases["evaluate"])


@pytest.mark.parametrize("case", cases("ppo"), ids=lambda case: case["name"])
def test_ppo_takes_what_trl_takes(case: dict[str, Any]) -> None:
    """To 64 KiB: numbers for each token or sequence that the trainer's loop holds, of which a tensor takes 512 bytes, are not all
    there."""
    said, found = PPO[case["name"]], counts(estimate(job_of(case)))
    assert said.keys() == found.keys()
    assert {name: abs(found[name] - said[name]) <= 2**16 for name in said} == dict.fromkeys(said, True)


def _ppo(**training: Any) -> Memory:
    asked = {"type": "ppo", "prompt_length": 128, **training.pop("objective", {})}
    return _memory(precision="bf16-true", objective=asked, **training)


def test_ppo_holds_the_logits_of_its_answers() -> None:
    alone, more = _ppo(), _ppo(gradient_accumulation_steps=4)
    logits = 2 * 384 * 151_936 * 4
    assert more.resident_bytes - alone.resident_bytes == pytest.approx(3 * logits, rel=0.001)
    assert more.phases["generate"] - more.resident_bytes > 2 * 4 * logits


def test_ppo_trains_a_value_model_of_the_size_of_its_reward_model() -> None:
    small, large = _ppo(), _ppo(objective={"reward": "qwen2.5-1.5b"})
    more = count(resolve("qwen2.5-1.5b").spec) - count(resolve(MODEL).spec)
    assert large.resident_bytes - small.resident_bytes == pytest.approx(2 * (1 + 3) * more, rel=0.01)  # and two moments, of one


def test_layers_of_ppo_are_folded_as_they_are_unrolled() -> None:
    asked = {"type": "ppo", "prompt_length": 24}
    training = {"precision": "bf16-mixed", "sequence_length": 32, "gradient_accumulation_steps": 2, "objective": asked}
    job = {"model": MODEL, "training": training}
    assert simulated(job)[1].phases == unrolled(job)[1].phases
