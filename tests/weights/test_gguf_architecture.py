"""The architecture that GGUF files of published models say, and that others do not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

from estimator import estimate
from estimator.families import FAMILIES
from estimator.families.from_config import from_mapping
from estimator.planner.headline import fit
from estimator.specs.architecture import architecture, parameters
from estimator.weights.checkpoint import Checkpoint
from estimator.weights.gguf_config import CONFIGS
from estimator.weights.read import read_checkpoint
from tests.jobs import TESTS, content
from tests.weight_files import ARRAY, BOOL, FLOAT32, STRING, UINT32, Pair, gguf_bytes, gguf_checkpoint, written

PUBLISHED: dict[str, Any] = content(TESTS / "data" / "gguf.yaml")
NAMES = {"command-r": "cohere", "gptneox": "gpt_neox", "gpt-oss": "gpt_oss", "gemma3": "gemma3_text", "deepseek2": "deepseek_v2"}
NAMES |= {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe"}
UNREAD = {"rope.freq_base", "vocab_size", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"}
OTHERS = {("gpt2", "context_length"), ("gpt2", "feed_forward_length"), ("mamba", "context_length"), ("mamba", "ssm.inner_size")}
OTHERS |= {("llama", "rope.dimension_count"), ("gpt_oss", "sliding_window"), ("qwen3_moe", "expert_count")}
"""What transformers maps otherwise: GPT-2's positions to `n_ctx` and its width to nothing that its config reads, Mamba's width to
a size that its config makes of `expand`, Llama's head to the part of it that is rotated, gpt-oss's window from a key that
conversion does not write, and Qwen3's experts to the name that release 4 had."""


def checkpoint(case: dict[str, Any], held: int | None = None, metadata: dict[str, Any] | None = None) -> Checkpoint:
    """The checkpoint of one case: its tensors and, in every layer, one that stands for all others."""
    said, shapes = {**case["metadata"], **(metadata or {})}, dict(case["tensors"])
    layers = case["metadata"]["block_count"]
    said |= {key: _of_layers(value, layers) for key, value in said.items() if isinstance(value, list)}
    within = layers - case["metadata"].get("nextn_predict_layers", 0)
    left = (held or case["parameters"]) - sum(math.prod(shape) for shape in shapes.values())
    shapes |= {f"blk.{layer}.rest.weight": [left - within + 1 if layer == 0 else 1] for layer in range(within)}
    prefixed = {f"{case['architecture']}.{key}": value for key, value in said.items() if value is not None}
    others = {"general.architecture": case["architecture"], **case.get("others", {})}
    return gguf_checkpoint(others | prefixed, shapes | case.get("besides", {}))


def _of_layers(value: list[Any], layers: int) -> tuple[Any, ...]:
    """What layers take turns in."""
    return tuple(itertools.islice(itertools.cycle(value), layers))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_say_what_they_are(name: str) -> None:
    case = PUBLISHED[name]
    found = architecture(checkpoint(case))
    assert found is not None
    assert parameters(from_mapping(found, name)) == case["parameters"]
    if kinds := case.get("layer_types"):
        assert tuple(found.pop("layer_types")) == _of_layers(kinds, found["num_hidden_layers"])
    assert found == case["config"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_one_weight_more_is_another_model(name: str) -> None:
    assert architecture(checkpoint(PUBLISHED[name], PUBLISHED[name]["parameters"] + 1)) is None


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_left_out_is_not_made_up(name: str) -> None:
    """Without any one key the answer is none, or the same model."""
    case = PUBLISHED[name]
    for key in case["metadata"]:
        if key != "block_count":
            found = architecture(checkpoint(case, metadata={key: None}))
            assert found is None or parameters(from_mapping(found, name)) == case["parameters"]


@pytest.mark.parametrize("value", ["many", -1, 2**40, 1.5, True, (1, 2), ("a", 3.0), float("nan"), ()])
@pytest.mark.parametrize("name", PUBLISHED)
def test_any_value_is_an_answer_or_none(name: str, value: Any) -> None:
    case = PUBLISHED[name]
    for key in case["metadata"]:
        if key != "block_count":
            architecture(checkpoint(case, metadata={key: value}))


def test_every_architecture_is_a_family_and_has_a_case() -> None:
    assert {case["architecture"] for case in PUBLISHED.values()} == set(CONFIGS)
    assert {case["config"]["model_type"] for case in PUBLISHED.values()} <= set(FAMILIES)


@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_calls_it_the_same(name: str) -> None:
    """The names that transformers gives to GGUF's keys, where it reads the architecture, too."""
    case = PUBLISHED[name]
    kind = NAMES.get(case["architecture"], case["architecture"])
    mapping: dict[str, Any] = GGUF_CONFIG_MAPPING
    mapped = mapping.get(kind, mapping.get(case["architecture"], {}))
    for key, theirs in mapped.items():
        if theirs is None or key in UNREAD or (kind, key) in OTHERS or isinstance(case["metadata"].get(key), list | None):
            continue
        ours = {
            "num_kv_heads": "num_key_value_heads",
            "ffn_hidden_size": "intermediate_size",
            "block_ff_dim": "intermediate_size",
        }
        found = {ours.get(named, named): value for named, value in case["config"].items()}
        assert found[theirs] == case["metadata"][key], key


NONE: dict[str, Callable[[dict[str, Any]], Checkpoint]] = {
    "another architecture": lambda case: checkpoint({**case, "architecture": "rwkv7"}),
    "more layers than tensors": lambda case: gguf_checkpoint({"general.architecture": "llama"}, {}),
    "no embedding": lambda case: checkpoint({**case, "tensors": {}}),
    "heads that differ": lambda case: checkpoint(case, metadata={"attention.head_count": (32, 16)}),
}


@pytest.mark.parametrize("why", NONE)
def test_what_is_not_known_is_not_answered(why: str) -> None:
    assert architecture(NONE[why](PUBLISHED["Llama-3-8B"])) is None


def test_heads_that_every_layer_has_are_one_number() -> None:
    case = PUBLISHED["Llama-3-8B"]
    assert architecture(checkpoint(case, metadata={"attention.head_count_kv": (8,) * 32})) == case["config"]


def test_from_a_file(tmp_path: Path) -> None:
    """All the way, a small Llama: written, read, said."""
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 64}
    pairs: list[Pair] = [("general.architecture", STRING, "llama"), ("llama.attention.head_count", UINT32, 2)]
    pairs += [(f"llama.{key}", UINT32, value) for key, value in sizes.items()]
    pairs += [("llama.rope.freq_base", FLOAT32, 10000.0), ("tokenizer.ggml.flags", ARRAY, (BOOL, [True]))]
    square = [(f"blk.0.attn_{part}.weight", "Q8_0", (32, 32)) for part in ("q", "k", "v", "output")]
    wide = [(f"blk.0.ffn_{part}.weight", "Q4_0", (32, 64)) for part in ("gate", "up")]
    norms = [(name, "F32", (32,)) for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight")]
    tensors = [("token_embd.weight", "F16", (32, 100)), *square, *wide, ("blk.0.ffn_down.weight", "Q5_1", (64, 32)), *norms]
    path = written(tmp_path / "small.gguf", gguf_bytes(pairs, tensors))
    found = architecture(read_checkpoint(path))
    assert found is not None
    assert found["vocab_size"] == 100
    assert found["tie_word_embeddings"]
    row = fit(str(path), "8GB", task="serve-gguf", allow_files=True).rows[0]
    assert (row.way, row.verdict) == ("serve the file, llama.cpp", "fits")
    assert row.total_bytes is not None
    assert row.job is not None
    job = {name: row.job[name] for name in ("model", "task", "hardware")}
    assert (
        estimate({**job, "serving": {"engine": "llama.cpp", "context": 64}}, allow_files=True).memory.total_bytes
        == row.total_bytes
    )


def test_safetensors_say_no_architecture() -> None:
    assert architecture(Checkpoint("a", "safetensors", (), {"general.architecture": "llama"}, ("a",))) is None
