"""What images take of vLLM's profile run: what the tower gives, and its own pass."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from estimator.contract.units import GIB
from estimator.serving.tensors import held
from estimator.serving.vllm.encoder import given, images, pixels, tower
from estimator.specs.resolve import resolve
from tests.serving.questions import asked, logged


def activations(model: Any, **serving: Any) -> int:
    job = {"model": model, "task": "serve", "hardware": {"gpu": "h100"}, "serving": {"engine": "vllm", **serving}}
    found = estimate(job).memory.engine
    assert found is not None
    assert found.activation_bytes is not None
    return found.activation_bytes


def test_what_was_logged_of_a_model_that_sees() -> None:
    """MiMo-VL-7B, Qwen2.5-VL's tower before a text model of its own, on an H100, 0.19: 2.49 GiB, of which 2.21 would be those
    of a model for texts (llm-d-planner @875a4fd609ee, accuracy_report.md). Nothing was fitted to it."""
    spec = resolve("qwen2.5-vl-7b").spec.model_dump(mode="json")
    layers = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
    spec["text_config"].update(hidden_size=4096, intermediate_size=11008, vocab_size=151680, **layers)
    spec["vision_config"]["out_hidden_size"] = 4096
    settings = {"engine_version": "0.19", "context": 8192, "max_num_batched_tokens": 8192, "max_num_seqs": 1024}
    assert activations(spec, **settings) / GIB == pytest.approx(2.49, rel=0.01)


@pytest.mark.parametrize(
    ("model", "tokens", "count", "each", "levels", "patches"),
    [
        ("qwen2-vl-7b", 8192, 1, 16384, 1, 65536),
        ("qwen2.5-vl-7b", 32768, 2, 16384, 1, 65536),
        ("qwen3-vl-8b", 8192, 1, 16384, 4, 65536),
        ("gemma-3-4b", 8192, 32, 256, 1, 4096),
        ("llava-1.5-7b", 8192, 14, 576, 1, 576),
        ("llama-4-scout", 8192, 3, 2448, 1, 17 * 576),
        ("llava-v1.6-mistral-7b", 8192, 2, 2928, 1, 5 * 576),
        ("llava-onevision-qwen2-7b", 8192, 1, 8748, 1, 13 * 729),
    ],
)
def test_as_many_images_as_a_pass_has_tokens_for(
    model: str, tokens: int, count: int, each: int, levels: int, patches: int
) -> None:
    spec = resolve(model).spec
    picture = spec.picture
    assert picture is not None
    assert (images(picture, tokens), picture.tokens, picture.levels) == (count, each, levels)
    assert given(spec, tokens) == count * each * levels * spec.language_model.hidden_size
    per_patch = (tower(spec, held(spec), tokens) - pixels(spec, tokens)) / (count * patches)
    assert per_patch == int(per_patch)  # a layer's numbers, of each patch


def test_the_tower_counts_where_sampling_is_small() -> None:
    """Of few sequences the tower's pass is the highest; of many, sampling, with what the tower gave beside it."""
    few, many = (activations("qwen2.5-vl-7b", max_num_seqs=count) for count in (1, 1024))
    texts = [activations("qwen2.5-vl-7b", max_num_seqs=count, language_model_only=True) for count in (1, 1024)]
    assert few == activations("qwen2.5-vl-7b", max_num_seqs=2)
    assert few > texts[0] + GIB / 2
    assert many - texts[1] == 16384 * 3584 * 2


def test_ranks_divide_the_tower() -> None:
    spec = resolve("qwen2.5-vl-7b").spec
    one, four = (tower(spec, held(spec, ranks), 8192) for ranks in (1, 4))
    assert one > four > one / 4


@pytest.mark.parametrize(
    ("model", "context", "tokens", "frames", "wide"),
    [
        ("qwen2-audio-7b", 8192, 10 * 750, 10 * 1500, 12800),
        ("voxtral-mini-3b", 8192, 22 * 375, 22 * 1500, 12800),
        ("voxtral-mini-3b", 32768, 88 * 375, 88 * 1500, 12800),
    ],
)
def test_clips_go_through_what_hears(model: str, context: int, tokens: int, frames: int, wide: int) -> None:
    """As many of thirty seconds as a pass has tokens for, or one as long as the context: residual, norm and twice the
    feed-forward width for each frame, and the clips."""
    spec = resolve(model).spec
    assert given(spec, 8192, context) == tokens * spec.language_model.hidden_size
    assert tower(spec, held(spec), 8192, context) - pixels(spec, 8192, context) == frames * wide


@pytest.mark.parametrize(
    ("model", "divided"), [("qwen2-audio-7b", True), ("qwen2.5-omni-7b", False), ("qwen3-omni-30b-a3b", True)]
)
def test_ranks_divide_what_hears_where_the_engine_does(model: str, divided: bool) -> None:
    """Its layers only: what stands before and after them is on every rank."""
    spec = resolve(model).spec
    one, two = ([each for each in held(spec, ranks) if each.heard] for ranks in (1, 2))
    assert {each.name for each in one if each.kind == "linear" and each.layer is not None}
    for whole, part in zip(one, two, strict=True):
        columns = whole.name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias", "fc1.bias"))
        halved = divided and whole.layer is not None and (whole.kind == "linear" or columns)
        assert part.numel == whole.numel // (1 + halved), whole.name


def test_what_hears_is_in_memory_unless_texts_alone_are_read() -> None:
    """Positions of Voxtral's frames in float32, and filters of its spectrograms; what hears beside images is not run."""
    spec = resolve("voxtral-mini-3b").spec
    heard = [each for each in held(spec) if each.heard]
    positions = next(each for each in heard if each.end == "embed_positions")
    both, text = (logged(asked("vllm", "voxtral-mini-3b", language_model_only=alone)) for alone in (False, True))
    blocks = 2 * sum(each.numel * each.times for each in heard) + 2 * positions.numel + 4 * spec.float32_tables
    assert both.weights_bytes is not None
    assert text.weights_bytes is not None
    assert both.weights_bytes - text.weights_bytes == pytest.approx(blocks, rel=1e-3)
    assert (both.activation_bytes or 0) > (text.activation_bytes or 0)
    sees = resolve("qwen3-omni-30b-a3b").spec
    eyes = [each for each in held(sees) if not each.heard]
    assert tower(sees, held(sees), 8192) == tower(sees, eyes, 8192)
