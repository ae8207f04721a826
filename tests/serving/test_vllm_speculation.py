"""vLLM with tokens that are guessed ahead: weights, cache and times of what guesses, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.contract.answer import EngineMemory
from estimator.contract.errors import Contradiction, InvalidJob, NotModelled, UnknownModel
from estimator.serving.throughput import tokens_per_step
from estimator.serving.vllm.cache_groups import grouped, kept
from estimator.specs.resolve import resolve
from tests.serving.questions import asked, logged

MIB = 2**20


def engine(model: str, /, gpus: int = 1, gpu: str = "h100", **guesses: Any) -> EngineMemory:
    given = {"speculative_config": {"num_speculative_tokens": 3, **guesses}} if guesses else {}
    return logged(asked("vllm", model, gpus, gpu, context=8192, **given))


LAYER = 6144 * 4096 + 4096 * 4096 + 28672 * 4096 + 4096 * 14336
"""Weights of the linear layers of one of Llama-3.1-8B's."""


@pytest.mark.parametrize(
    ("guesses", "numbers"),
    [
        ({"method": "ngram"}, 0),
        # fc, a layer without a norm of its input
        ({"method": "eagle"}, 2 * 4096**2 + LAYER + 4096),
        # fc of three layers' hidden states, keys and queries of twice the width, an output layer of 32,000 tokens, four norms
        ({"method": "eagle3"}, 3 * 4096**2 + LAYER + 6144 * 4096 + 32000 * 4096 + 4 * 4096),
        ({"method": "eagle3", "draft_vocab_size": 64000}, 3 * 4096**2 + LAYER + 6144 * 4096 + 64000 * 4096 + 4 * 4096),
        # the whole model, whose embedding is its output layer, with rotary tables of 131,072 positions
        ({"model": "llama-3.2-1b"}, 1235814400 + 131072 * 64),
    ],
    ids=lambda value: str(value),
)
def test_a_head_and_a_smaller_model_are_loaded_beside_the_model(guesses: dict[str, Any], numbers: int) -> None:
    alone, found = engine("llama-3.1-8b"), engine("llama-3.1-8b", **guesses)
    assert alone.draft_bytes is None
    assert found.draft_bytes == pytest.approx(2 * numbers, abs=4 * MIB)  # segments of torch's allocator are of 2 MiB
    assert found.weights_bytes == alone.weights_bytes + (found.draft_bytes or 0)


def test_an_eagle3_head_is_as_large_as_the_published_one() -> None:
    """yuhuili/EAGLE3-LLaMA3.1-Instruct-8B: 0.4 billion parameters."""
    found = engine("llama-3.1-8b", method="eagle3", model="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B").draft_bytes
    assert found is not None
    assert round(found / 2e9, 1) == 0.4


@pytest.mark.parametrize(
    ("model", "gpus", "joining", "norms"),
    [
        ("glm-4.5-air", 8, 4096 * 8192, 3 * 4096),  # held whole by every rank
        ("qwen3-next-80b-a3b", 4, 512 * 4096, 3 * 2048),  # divided
        ("mimo-7b", 1, 4096 * 8192, 3 * 4096),
    ],
)
def test_shipped_layers_are_one_of_the_last(model: str, gpus: int, joining: int, norms: int) -> None:
    from estimator.serving.tensors import held

    spec = resolve(model).spec
    body = [each for each in held(spec, gpus) if each.layer is not None]
    last = max(each.layer or 0 for each in body)
    numbers = sum(each.numel for each in body if each.layer == last)
    found = engine(model, gpus, "h200", method="mtp").draft_bytes
    assert found == pytest.approx(2 * (numbers + joining + norms), abs=4 * MIB)


def test_shipped_layers_of_deepseek_are_stored_as_the_others_are() -> None:
    """A layer in blocks of FP8, 11.5 billion weights over 16 ranks; what joins is in 16 bits on every rank."""
    found = engine("deepseek-ai/DeepSeek-V3", 16, "h200", method="mtp").draft_bytes
    assert found is not None
    joining = 2 * 7168 * 14336
    assert (found - joining) * 16 == pytest.approx(11.5e9, rel=0.1)


def test_a_cache_has_layers_of_what_guesses() -> None:
    assert [len(blocks(model, method)) for model, method in (("llama-3.1-8b", "eagle3"), ("llama-3.1-8b", "ngram"))] == [33, 32]
    alone, headed = engine("llama-3.1-8b"), engine("llama-3.1-8b", method="eagle3")
    one, other = (each.cache_bytes // each.cache_blocks for each in (alone, headed) if each.cache_bytes and each.cache_blocks)
    assert other == pytest.approx(33 / 32 * one, rel=1e-4)


def blocks(model: str, method: str) -> list[object]:
    from estimator.contract.job import Serving
    from estimator.serving.drafts import draft_cache
    from estimator.serving.vllm.speculation import drafter_of

    spec = resolve(model).spec
    serving = Serving.model_validate({"speculative_config": {"method": method, "num_speculative_tokens": 3}})
    return [*spec.cache_layers, *draft_cache(drafter_of(serving, spec), spec)]


def test_layers_of_all_widths_that_keep_everything_are_one_group() -> None:
    """A smaller model's layers are narrower: no page is filled up (`_get_kv_cache_groups_uniform_type`)."""
    model, smaller = resolve("llama-3.1-8b").spec, resolve("llama-3.2-1b").spec
    found = grouped(kept((*model.cache_layers, *smaller.cache_layers), 1, 2, 2))
    assert found.block_bytes == 16 * 2 * (32 * 8 * 2 * 128 + 16 * 8 * 2 * 64)
    assert found.request_blocks(8192, 0) == 512


def test_states_are_kept_after_every_guess() -> None:
    """Qwen3-Next: as many states more as tokens are guessed, with inputs of the convolution for each."""
    spec = resolve("qwen3-next-80b-a3b").spec
    layers = [kept(spec.cache_layers, 4, 2, 2, None, guessed) for guessed in (0, 2)]
    states = [next(each for each in one if each.kind == "state") for one in layers]
    assert [each.blocks(8192, 0) for each in states] == [1, 3]
    convolved = next(layer for layer in spec.cache_layers if layer.kind == "state")
    assert convolved.convolved == 3 * convolved.channels
    assert states[1].page >= states[0].page


@pytest.mark.parametrize(("guessed", "acceptance", "tokens"), [(0, 0.9, 1), (3, 0, 1), (3, 1, 4), (1, 0.8, 1.8), (3, 0.5, 1.875)])
def test_tokens_of_a_step_are_a_geometric_series(guessed: int, acceptance: float, tokens: float) -> None:
    assert tokens_per_step(guessed, acceptance) == pytest.approx(tokens)


def test_times_follow_the_acceptance_and_without_one_the_range_reaches_to_all() -> None:
    def timed(**given: Any) -> Any:
        found = asked("vllm", "llama-3.1-8b", context=8192, **given).serving
        assert found is not None
        return found

    config = {"method": "eagle3", "num_speculative_tokens": 3}
    alone = timed()
    unknown, half, all_right = (
        timed(speculative_config=config, **({} if a is None else {"speculative_acceptance": a})) for a in (None, 0.5, 1.0)
    )
    assert alone.tokens_per_step == unknown.tokens_per_step == 1
    assert half.tokens_per_step == pytest.approx(1.875)
    assert half.decode.step_seconds == unknown.decode.step_seconds > alone.decode.step_seconds
    assert half.time_per_output_token_seconds == pytest.approx(unknown.time_per_output_token_seconds / 1.875)
    assert half.time_per_output_token_seconds < alone.time_per_output_token_seconds
    least, most = unknown.range_time_per_output_token_seconds
    assert (least, most) == (all_right.range_time_per_output_token_seconds[0], unknown.decode.range_seconds[1])
    assert all_right.tokens_per_step == 4


def test_a_step_that_verifies_reads_weights_and_cache_once() -> None:
    """Three guesses of the text before cost next to nothing of one sequence: a step reads what it always reads."""
    config = {"method": "ngram", "num_speculative_tokens": 3}
    alone = asked("vllm", "llama-3.1-8b", context=8192).serving
    guessed = asked("vllm", "llama-3.1-8b", context=8192, speculative_config=config).serving
    assert alone is not None
    assert guessed is not None
    assert guessed.decode.step_seconds == pytest.approx(alone.decode.step_seconds, rel=0.03)


def test_an_answer_says_what_guesses_and_that_its_luck_is_not_known() -> None:
    found = " ".join(
        asked(
            "vllm", "llama-3.1-8b", speculative_config={"method": "eagle3", "model": "a/head", "num_speculative_tokens": 2}
        ).assumptions
    )
    assert "2 tokens are guessed ahead by a head, a/head, which was not read" in found
    assert "how many are right is not known" in found


@pytest.mark.parametrize(
    ("model", "given", "error", "says"),
    [
        ("llama-3.1-8b", {"method": "mtp"}, NotModelled, "no layers are known"),
        ("kimi-k2", {"method": "mtp"}, NotModelled, "no layers are known"),  # its config says that there are none
        ("kimi-k2", {"method": "eagle3"}, NotModelled, "write its config.json"),
        ("llama-3.1-8b", {}, Contradiction, "write the smaller model"),
        ("llama-3.1-8b", {"model": "qwen3-0.6b"}, Contradiction, "one with the same tokens"),
        ("llama-3.1-8b", {"model": "nobody/nothing"}, UnknownModel, "nothing"),
        ("llama-3.1-8b", {"method": "ngram", "model": "llama-3.2-1b"}, Contradiction, "has none"),
        ("llama-3.1-8b", {"method": "guesswork"}, InvalidJob, "guesswork"),
        ("llama-3.1-8b", {"method": "ngram", "num_speculative_tokens": 0}, InvalidJob, "num_speculative_tokens"),
    ],
    ids=str,
)
def test_what_is_refused_says_what_to_write(model: str, given: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        asked("vllm", model, gpu="b200", gpus=8, speculative_config={"num_speculative_tokens": 3, **given})


def test_an_acceptance_without_guesses_is_refused() -> None:
    with pytest.raises(Contradiction, match="nothing is guessed"):
        asked("vllm", "llama-3.1-8b", speculative_acceptance=0.7)
    with pytest.raises(NotModelled, match=r"since vLLM 0\.30"):
        asked("vllm", "llama-3.1-8b", engine_version="0.19", speculative_config={"method": "ngram", "num_speculative_tokens": 3})
