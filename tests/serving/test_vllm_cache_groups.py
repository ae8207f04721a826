"""vLLM's cache by groups and pages: what its logs and its own examples say."""

from __future__ import annotations

import pytest

from estimator.families.cache_layers import CacheLayer, attention, latent
from estimator.serving.vllm.cache_groups import Groups, Kept, grouped, kept
from estimator.specs.resolve import resolve

GIB = 2**30


def of(model: str, tensor: int = 1, cached: int = 2, block: int | None = None) -> Groups:
    return grouped(kept(resolve(model).spec.cache_layers, tensor, cached, 2, block))


@pytest.mark.parametrize(
    ("model", "tensor", "size", "padding", "block_bytes"),
    [
        ("gemma-3-27b", 1, 10, 8, 10 * 16 * 16 * 256 * 2),  # 15,997 blocks of 19.53 GiB, logged by 0.19
        ("gpt-oss-20b", 2, 12, 0, 12 * 16 * 4 * 128 * 2),  # 323,972 blocks of 59.32 GiB
        ("llama-4-scout", 4, 12, 0, 12 * 16 * 2 * 256 * 2),  # 91,495 blocks of 16.75 GiB
        ("gemma-3-4b", 1, 5, 1, 5 * 16 * 4 * 512 * 2),  # 204,817 blocks of 62.51 GiB
        ("gemma-2-27b", 1, 23, 0, 23 * 16 * 16 * 256 * 2),
        ("llama-3.1-8b", 1, 32, 0, 32 * 16 * 8 * 256 * 2),  # 128 KiB a token: 476,016 tokens in 58.11 GiB
        ("llama-3.1-8b", 16, 32, 0, 32 * 16 * 1 * 256 * 2),  # a head of keys each, copied
        ("deepseek-v3", 8, 61, 0, 61 * 64 * 576 * 2),  # a latent is on every rank
    ],
)
def test_groups_are_what_logs_say(model: str, tensor: int, size: int, padding: int, block_bytes: int) -> None:
    found = of(model, tensor)
    assert (found.size, found.padding, found.block_bytes) == (size, padding, block_bytes)


@pytest.mark.parametrize(
    ("full", "window", "size", "groups", "padding"),
    [(10, 20, 10, 3, 0), (12, 13, 13, 2, 1), (2, 3, 2, 3, 1), (8, 9, 9, 2, 1), (1, 7, 1, 8, 0)],
)
def test_layers_are_cut_into_groups_of_equally_many(full: int, window: int, size: int, groups: int, padding: int) -> None:
    """The examples of `_get_kv_cache_groups_uniform_page_size`: 10 with 20 windows; a 13th layer of a drafter beside 12."""
    layers = [*[attention(8, 128)] * full, *[attention(8, 128, 1024)] * window]
    found = grouped(kept(tuple(layers), 1, 2, 2))
    assert (found.size, len(found.kinds), found.padding) == (size, groups, padding)


@pytest.mark.parametrize(
    ("kind", "tokens", "length", "in_flight", "blocks"),
    [
        ("full", None, 4096, 8192, 256),
        ("full", None, 4097, 8192, 257),
        ("window", 128, 16384, 2048, 137),  # gpt-oss-120b in 0.10: 1024 + 137 blocks to a request
        ("window", 1024, 8192, 8192, 513),  # never more than the request, and one for where a window begins
        ("chunk", 8192, 32768, 8192, 1024),
        ("cross", 1500, 448, 8192, 94),
        ("latent", None, 4096, 8192, 256),
        ("state", None, 10**6, 8192, 1),
    ],
)
def test_blocks_of_a_request(kind: str, tokens: int | None, length: int, in_flight: int, blocks: int) -> None:
    assert Kept(kind, 16, 1024, tokens).blocks(length, in_flight) == blocks


def test_a_log_of_several_requests() -> None:
    """gpt-oss-120b on four A100, 0.10: 45.32 GiB hold 284.25 requests of 16,384 tokens."""
    found = of("gpt-oss-120b", 4)
    blocks = int(45.32 * GIB) // found.block_bytes
    assert blocks / found.request_blocks(16384, 2048) == pytest.approx(284.25, rel=2e-4)


def test_states_beside_attention_make_blocks_longer() -> None:
    """A page of attention is as large as a state, which is filled up to it."""
    spec = resolve("granite-4.0-h-1b").spec
    found = of("granite-4.0-h-1b")
    state = max(layer.state for layer in spec.cache_layers) * 2
    assert {kind.page for kind in found.kinds} == {found.block_bytes // found.size}
    assert found.kinds[0].page >= state
    assert found.kinds[0].block % 16 == 0


def test_a_cache_in_fp8_holds_twice_as_much() -> None:
    assert of("llama-3.1-8b").block_bytes == 2 * of("llama-3.1-8b", cached=1).block_bytes


def test_smaller_pages_hold_more_tokens_or_are_filled_up() -> None:
    half, odd = CacheLayer("window", 4, 64, 64, 512), CacheLayer("window", 3, 64, 64, 512)
    wide = attention(8, 64)
    assert {kind.block for kind in grouped(kept((wide, half), 1, 2, 2)).kinds} == {16, 32}
    assert {kind.block for kind in grouped(kept((wide, odd), 1, 2, 2)).kinds} == {16}


@pytest.mark.parametrize("blocks", [0, 1, 10, 300, 513, 514, 1000, 10**6])
def test_the_longest_request_is_the_longest(blocks: int) -> None:
    found = grouped(kept((attention(8, 128), attention(8, 128, 512)), 1, 2, 2))
    longest = found.longest(blocks, 65536, 2048)
    assert longest == 0 or found.request_blocks(longest, 2048) <= blocks
    assert longest == 65536 or found.request_blocks(longest + 1, 2048) > blocks


def test_nothing_kept_is_no_group() -> None:
    assert grouped([]).block_bytes == 0
    assert kept((latent(576),), 8, 1, 2)[0].page == 64 * 576


def test_nemotron_h_keeps_its_states_in_float32() -> None:
    spec = resolve("nemotron-nano-9b-v2").spec
    state = next(layer for layer in spec.cache_layers if layer.kind == "state")
    assert (state.convolved, state.state - state.convolved) == (3 * (10240 + 2 * 8 * 128), 10240 * 128)
    alone = kept((state,), 1, 2, 2)[0].page
    assert alone == 2 * state.convolved + 4 * (state.state - state.convolved)
    plain = spec.model_copy(update={"mamba_ssm_cache_dtype": "auto"})
    narrow = next(layer for layer in plain.cache_layers if layer.kind == "state")
    assert kept((narrow,), 1, 2, 2)[0].page == 2 * state.state


def test_a_layer_of_falcon_h1_keeps_tokens_and_a_state() -> None:
    spec = resolve("falcon-h1-7b").spec
    assert [layer.kind for layer in spec.cache_layers] == ["state", "full"] * 44
    found = of("falcon-h1-7b")
    assert ([kind.kind for kind in found.kinds], found.size, found.padding) == (["state", "full"], 44, 0)
