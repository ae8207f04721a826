"""Kimi Linear and Ling 3.0, whose delta attention keeps states beside the latents of other layers: vLLM's groups, SGLang's pools.

Bytes are worked out by hand from the shapes that the engines make: a convolution's last inputs of queries, keys and values in
16 bits, and a matrix of each head in float32.
"""

from __future__ import annotations

import pytest

from estimator import estimate
from estimator.contract.job import Serving
from estimator.serving.sglang.pools import cells
from estimator.serving.tensors import held
from estimator.serving.vllm.cache_groups import grouped, kept
from estimator.serving.weights import rotary_tables
from estimator.specs.resolve import resolve
from estimator.tape import dtypes

STATE = 3 * 32 * 128 * 3 * 2 + 32 * 128 * 128 * 4
"""Of a layer of 32 heads of 128 numbers, after a kernel of four."""
LATENT = (512 + 64) * 2


@pytest.mark.parametrize(
    ("model", "tensor", "block", "groups", "size"),
    [
        ("kimi-linear-48b-a3b", 1, 1920, 4, 7),  # 20 states in three groups, 7 latents
        ("kimi-linear-48b-a3b", 4, 512, 4, 7),
        ("ling-3.0-flash", 1, 1920, 6, 7),  # 35 states in five groups, 7 latents
        ("ling-3.0-flash", 8, 256, 6, 7),
    ],
)
def test_a_block_of_latents_is_as_large_as_a_state(model: str, tensor: int, block: int, groups: int, size: int) -> None:
    assert block == 128 * -(-STATE // tensor // (128 * LATENT))
    found = grouped(kept(resolve(model).spec.cache_layers, tensor, 2, 2))
    assert (len(found.kinds), found.size) == (groups, size)
    assert found.block_bytes == size * block * LATENT
    assert found.request_blocks(block * 10, 0) == groups - 1 + 10


@pytest.mark.parametrize(("model", "states", "latents"), [("kimi-linear-48b-a3b", 20, 7), ("ling-3.0-flash", 35, 7)])
@pytest.mark.parametrize("tensor", [1, 4])
def test_sglangs_cells(model: str, states: int, latents: int, tensor: int) -> None:
    found = cells(resolve(model).spec, Serving(engine="sglang"), tensor)
    assert found.states == states * STATE // tensor
    assert found.full == latents * LATENT


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("model", ["kimi-linear-48b-a3b", "ling-3.0-flash"])
def test_weights_are_the_checkpoints(engine: str, model: str) -> None:
    """Whole on one GPU of any size: as many numbers as are published, in 16 bits, with what engines hold beside them."""
    spec = resolve(model).spec
    numbers = sum(each.numel * each.times for each in held(spec))
    job = {"model": model, "task": "serve", "hardware": {"memory": "400GB"}, "serving": {"engine": engine}}
    found = estimate(job).memory.engine
    assert found is not None
    assert found.weights_bytes == pytest.approx(2 * numbers, rel=0.003)


def test_nothing_is_rotated_by_kimi_linear() -> None:
    assert rotary_tables(resolve("kimi-linear-48b-a3b").spec, dtypes.bfloat16) == ()
    assert rotary_tables(resolve("ling-3.0-flash").spec, dtypes.bfloat16) == (262144 * 64 * 2,)


def test_ranks_divide_heads_and_hold_decays_whole() -> None:
    spec = resolve("kimi-linear-48b-a3b").spec
    one, four = ({each.name: each.shape for each in held(spec, tensor)} for tensor in (1, 4))
    for name in ("f_a_proj", "self_attn.g_a_proj"):
        whole = next(key for key in one if key.endswith(name))
        assert four[whole] == one[whole]
    for name in ("self_attn.conv1d", "self_attn.b_proj", "self_attn.g_b_proj", "self_attn.q_proj+k_proj+v_proj"):
        assert four[name][0] * 4 == one[name][0], name
