"""How fast vLLM serves over the stages of a pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from estimator.contract.answer import ServingTime


def timed(model: str, stages: int = 1, concurrency: int = 1, **serving: Any) -> ServingTime:
    job = {
        "model": model,
        "task": "serve",
        "hardware": {"gpu": "h100", "gpus": stages},
        "parallelism": {"pipeline": stages},
        "serving": {"context": 8192, "concurrency": concurrency, **serving},
    }
    found = estimate(job).serving
    assert found is not None
    return found


@pytest.mark.parametrize("stages", [2, 4])
def test_one_sequence_goes_through_all_layers_as_on_one_gpu_and_over_the_hops(stages: int) -> None:
    one, many = timed("llama-3.1-8b"), timed("llama-3.1-8b", stages)
    assert many.decode.step_seconds > one.decode.step_seconds
    assert many.decode.step_seconds == pytest.approx(one.decode.step_seconds, rel=0.001)
    assert any(part.name == "sending to the next stage" for part in many.decode.parts)
    assert sum(part.seconds for part in many.decode.parts) == pytest.approx(many.decode.step_seconds)
    assert many.output_tokens_per_second_per_gpu < one.output_tokens_per_second_per_gpu / stages * 1.001


def test_as_many_batches_as_stages_are_on_their_way() -> None:
    """A step over two stages is one of half of the sequences, in which all of them get a token."""
    half, both = timed("llama-3.1-8b", 1, 16), timed("llama-3.1-8b", 2, 32)
    assert both.decode.step_seconds == pytest.approx(half.decode.step_seconds, rel=0.001)
    assert both.decode.tokens_per_second == pytest.approx(2 * half.decode.tokens_per_second, rel=0.001)
    alone = timed("llama-3.1-8b", 1, 32)
    assert alone.output_tokens_per_second < both.output_tokens_per_second < 2 * alone.output_tokens_per_second
    assert both.sequences == 32


def test_a_longer_stage_holds_the_others_up() -> None:
    """30 layers over four stages: eight on the longest."""
    whole, stages = timed("smollm2-135m", 1, 8), timed("smollm2-135m", 4, 32)
    assert stages.decode.step_seconds == pytest.approx(whole.decode.step_seconds * 4 * 8 / 30, rel=0.02)


def test_chunks_of_a_prompt_follow_each_other() -> None:
    """Of four chunks over two stages the last leaves after five of eight halves; the next prompt begins after four."""
    small = {"max_num_batched_tokens": 1024, "prompt_length": 4096, "output_length": 4096}
    one, two = timed("llama-3.1-8b", 1, 1, **small), timed("llama-3.1-8b", 2, 2, **small)
    assert two.time_to_first_token_seconds == pytest.approx(one.time_to_first_token_seconds * 5 / 8, rel=0.02)
    queued = two.time_to_first_token_queued_seconds / two.time_to_first_token_seconds
    assert queued == pytest.approx(1 + 4 / 5)
