"""Gemma 3n's language model in vLLM and SGLang: layers that take keys of others, and an embedding of each layer's own input."""

from __future__ import annotations

import pytest

from estimator.serving.tensors import held
from estimator.specs.published import model_folder, read
from estimator.specs.resolve import resolve
from tests.serving.questions import asked, logged

GIB = 2**30


@pytest.mark.parametrize("model", ["gemma-3n-e4b-text", "gemma-3n-e2b-text"])
def test_weights_are_the_checkpoints_but_for_what_sglang_makes_in_vain(model: str) -> None:
    """SGLang has layers that would make keys and values where those of others are taken."""
    found = read(model_folder() / f"{model}.yaml").parameters
    assert found is not None
    spec = resolve(model).spec
    vllm, sglang = (logged(asked(of, model, gpu="rtx-4090")).weights_bytes for of in ("vllm", "sglang"))
    assert vllm == pytest.approx(2 * found.value + 32768 * 256 * 2, rel=5e-4)  # with the table of rotations
    vain = spec.idle_in_sglang * 2 * 512 * 2048 * 2
    assert spec.idle_in_sglang in (10, 15)
    assert sglang - vllm == pytest.approx(vain, abs=40 * 2**20)  # its table of rotations is in float32


def test_sglang_has_room_for_all_tokens_of_all_layers() -> None:
    tokens = {}
    for of in ("vllm", "sglang"):
        cache = asked(of, "gemma-3n-e4b-text", gpu="rtx-4090").memory.kv_cache
        assert cache is not None
        tokens[of] = cache.bytes_per_token
    assert tokens == {"vllm": 20 * 2 * 512 * 2, "sglang": 35 * 2 * 512 * 2}


def test_over_two_gpus() -> None:
    """Embeddings and projections are divided; what gates a layer's input, and what mixes streams, is whole on each."""
    shapes = {each.name: each.shape for each in held(resolve("gemma-3n-e4b-text").spec, 2)}
    assert shapes["embed_tokens_per_layer"] == (131072, 8960)
    assert shapes["per_layer_model_projection"] == (4480, 2048)
    assert shapes["per_layer_input_gate"] == (256, 2048)
    assert shapes["altup.prediction_coefs"] == (16, 4)
    assert (shapes["laurel.linear_left"], shapes["laurel.linear_right"]) == ((32, 2048), (2048, 32))
