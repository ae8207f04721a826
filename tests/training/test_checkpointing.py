"""Ways of recomputing: what is chosen is what trying everything finds, and what parts of layers keep adds up."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from estimator import Answer, InvalidJob, NotModelled, estimate
from estimator.contract.answer import Recomputation
from estimator.tape.host import pinned_bytes
from estimator.tape.kernels import flops
from estimator.tape.offload import host_bytes
from estimator.training.budget import activations
from estimator.training.recomputation import WAYS
from tests.tapes import SMALL, assert_folded_as_unrolled, simulated, unrolled

pytestmark = pytest.mark.slow

DEPTH = 5
MODEL = {**SMALL, "num_hidden_layers": DEPTH}
GPT2 = {"model_type": "gpt2", "n_embd": 256, "n_layer": DEPTH, "n_head": 4, "vocab_size": 1000}
FORMS: list[Any] = [
    {"layers": 2},
    {"operations": "torchtitan"},
    {"operations": "products"},
    {"operations": "attention"},
    {"modules": ["mlp"]},
    {"modules": ["core_attention", "mlp"]},
    {"mix": {"full": 1, "attention": 1, "torchtitan": 3, "products": 2}},
]


def job(how: Any, model: dict[str, Any] = MODEL, depth: int = DEPTH, **training: Any) -> dict[str, Any]:
    name = "n_layer" if model["model_type"] == "gpt2" else "num_hidden_layers"
    settings = {"sequence_length": 512, "precision": "bf16-true", "activation_checkpointing": how, **training}
    return {"model": {**model, name: depth}, "training": settings}


@pytest.mark.parametrize("strategy", ["none", "ddp", "zero2", "fsdp2"])
@pytest.mark.parametrize("how", FORMS, ids=str)
@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_layers_that_are_replayed_are_those_that_would_be_played(how: Any, strategy: str, precision: str) -> None:
    if strategy == "zero2":
        precision = "bf16-mixed"
    asked = job(how, depth=9, precision=precision) | {"parallelism": {"strategy": strategy}}
    asked["hardware"] = {"gpus": 1 if strategy == "none" else 2}
    tape, long_tape = assert_folded_as_unrolled(asked)
    assert flops(tape, "backward") == flops(long_tape, "backward")
    said, by_layer = activations(tape), activations(long_tape)
    assert (said.peak_bytes, said.forward_end_bytes) == (by_layer.peak_bytes, by_layer.forward_end_bytes)


def mixes(depth: int) -> list[dict[str, int]]:
    """All numbers of layers in each way."""
    counts = [c for c in product(range(depth + 1), repeat=len(WAYS)) if sum(c) <= depth]
    return [dict(zip(WAYS, c, strict=True)) for c in counts]


@pytest.mark.parametrize("model", [MODEL, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_a_budget_is_met_as_trying_everything_finds(model: dict[str, Any], precision: str) -> None:
    depth, by_mix = 4, {}
    for mix in mixes(depth):
        how = {"mix": mix} if any(mix.values()) else "none"
        by_mix[tuple(mix.values())] = activations(simulated(job(how, model, depth, precision=precision))[0])
    least, most = min(p.peak_bytes for p in by_mix.values()), by_mix[0, 0, 0, 0].peak_bytes
    for part in range(11):
        budget = least + (most - least) * part // 10
        best = min((p.flops, sum(mix)) for mix, p in by_mix.items() if p.peak_bytes <= budget)
        settled = estimate(job({"budget": budget}, model, depth, precision=precision)).job["training"]["activation_checkpointing"]
        form = {} if settled == "none" else settled["mix"] or {"full": settled["layers"]}
        chosen = tuple(form.get(way, 0) for way in WAYS)
        assert by_mix[chosen].peak_bytes <= budget
        assert (by_mix[chosen].flops, sum(chosen)) == best, (part, chosen)
    with pytest.raises(InvalidJob, match=f"{least} bytes"):
        estimate(job({"budget": least - 1}, model, depth, precision=precision))


def test_a_budget_is_said_and_can_be_repeated() -> None:
    answer = estimate(job({"budget": "20MiB"}))
    assert any("of all such choices within the budget of 20.0 MiB" in said for said in answer.assumptions)
    assert not any("activation_checkpointing" in said for said in answer.assumptions)
    repeated = estimate(answer.job)
    assert repeated.memory == answer.memory
    assert repeated.recomputation == answer.recomputation
    assert estimate(job({"budget": "9GiB"})).job["training"]["activation_checkpointing"] == "none"


def test_layers_of_several_kinds_are_recomputed_whole() -> None:
    model = {"model_type": "gemma2", "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "vocab_size": 1000}
    model |= {"num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 6}
    needed = [activations(simulated({"model": model, "training": _how(n)})[0]).peak_bytes for n in range(1, 7)]
    for count, budget in enumerate(needed, 1):
        settled = estimate({"model": model, "training": {"activation_checkpointing": {"budget": budget}}}).job
        fewest = 1 + next(i for i, least in enumerate(needed) if least <= budget)
        assert settled["training"]["activation_checkpointing"]["layers"] == fewest <= count


def _how(count: int) -> dict[str, Any]:
    return {"activation_checkpointing": {"layers": count}}


@pytest.mark.parametrize("depth", [1, 7, 12])
def test_the_best_number_of_segments_is_the_best_of_all(depth: int) -> None:
    by_count = {n: estimate(job({"segments": n}, depth=depth)).memory.peak_bytes for n in range(1, depth + 1)}
    (said,) = [s for s in estimate(job("sqrt", depth=depth)).assumptions if s.startswith("of all numbers of segments")]
    best = int(said.split()[5])
    assert by_count[best] == min(by_count.values())


def again(answer: Answer) -> Recomputation:
    """What the answer says of recomputation."""
    assert answer.recomputation is not None
    return answer.recomputation


def test_what_is_recomputed_is_counted() -> None:
    none, full, selective, products = (estimate(job(how)) for how in ("none", "full", "selective", {"operations": "products"}))
    assert none.recomputation is None
    assert again(full).flops > again(selective).flops > again(products).flops == 0
    assert again(full).saved_bytes == none.memory.peak_bytes - full.memory.peak_bytes
    assert again(estimate(job("full", gradient_accumulation_steps=2))).flops == 2 * again(full).flops


def test_what_keeps_more_recomputes_less() -> None:
    ways: list[Any] = ["full", {"operations": "attention"}, "selective", {"operations": "products"}]
    answers = [estimate(job(way)) for way in ways]
    kept, repeated = [a.memory.forward_end_bytes for a in answers], [again(a).flops for a in answers]
    assert kept == sorted(kept)
    assert repeated == sorted(repeated, reverse=True)


def test_selective_is_torchtitans_choice() -> None:
    assert estimate(job("selective")).memory == estimate(job({"operations": "torchtitan"})).memory
    assert estimate(job("full")).memory == estimate(job({"layers": DEPTH})).memory


@pytest.mark.parametrize(
    ("how", "beside", "error", "says"),
    [
        ({"layers": 6}, {}, InvalidJob, "6 layers are more than the model's 5"),
        ({"mix": {"full": 4, "products": 2}}, {}, InvalidJob, "6 layers are more than the model's 5"),
        ({"modules": ["feed_forward"]}, {}, InvalidJob, "it has core_attention, mlp, self_attn"),
        ({"modules": ["self_attn", "core_attention"]}, {}, InvalidJob, "part of attention"),
        ({"layers": 1, "every": 2}, {}, InvalidJob, "exactly one of"),
        ("selective", {"reentrant_checkpointing": True}, InvalidJob, "without re-entrance only"),
        ("selective", {"implementation": "liger"}, NotModelled, "fused layers"),
        ("selective", {"quantization": "nf4", "adapter": {}}, NotModelled, "quantized"),
        ({"budget": 1000}, {}, InvalidJob, "activations take at least"),
    ],
    ids=str,
)
def test_what_is_refused(how: Any, beside: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        estimate(job(how, **beside))


def test_parts_of_layers_under_zero3_are_refused() -> None:
    asked = job("selective", precision="bf16-mixed") | {"hardware": {"gpus": 2}, "parallelism": {"strategy": "zero3"}}
    with pytest.raises(NotModelled, match="zero3"):
        estimate(asked)
    within = job({"budget": "20MiB"}, precision="bf16-mixed") | {"hardware": {"gpus": 2}, "parallelism": {"strategy": "zero3"}}
    assert estimate(within).job["training"]["activation_checkpointing"]["layers"]


@pytest.mark.parametrize("how", ["none", "full", "selective", {"layers": 2}], ids=str)
@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_what_is_on_the_host_is_replayed_as_it_would_be_played(how: Any, precision: str) -> None:
    asked = job(how, depth=9, precision=precision) | {"offload": {"activations": "cpu"}}
    tape, folded = simulated(asked)
    long_tape, long = unrolled(asked)
    assert folded.phases == long.phases
    assert host_bytes(tape) == host_bytes(long_tape) > 0


def test_checkpoints_on_the_host_are_the_layers_inputs() -> None:
    here, there = (estimate(job("full") | {"offload": {"activations": where}}).memory for where in ("none", "cpu"))
    each = 512 * 512 * 2  # tokens x hidden size in half precision
    assert there.host_bytes["train"] - here.host_bytes["train"] == DEPTH * each
    assert here.forward_end_bytes - there.forward_end_bytes == DEPTH * each


def test_weights_that_are_saved_go_to_the_host_too() -> None:
    """Without checkpointing each saved tensor is copied by itself, and each copy is rounded up to a power of two."""
    answer = estimate(job("none") | {"offload": {"activations": "cpu"}})
    plain = estimate(job("none"))
    kept = plain.memory.forward_end_bytes - plain.memory.resident_bytes
    assert answer.memory.host_bytes["train"] - plain.memory.host_bytes["train"] > kept
    assert answer.memory.forward_end_bytes < plain.memory.forward_end_bytes
    assert [pinned_bytes(n) for n in (0, 1, 512, 513, 3 << 20)] == [0, 1, 512, 1024, 4 << 20]
