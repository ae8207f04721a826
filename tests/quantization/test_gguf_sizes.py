"""Sizes of GGUF files: published ones as judge, to 0.1 % of the file, and to the digits printed of its tensors."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import NotModelled
from estimator.families import count, having
from estimator.families.spec import ModelSpec
from estimator.quantization.gguf_kinds import MIXTURES
from estimator.quantization.gguf_mixtures import facts, type_of
from estimator.quantization.gguf_size import header_bytes, tensor_bytes
from estimator.quantization.gguf_tensors import file_tensors
from estimator.specs.published import published
from estimator.weights.gguf_config import CONFIGS
from tests.jobs import TESTS, content

PUBLISHED = content(TESTS / "data" / "gguf_sizes.yaml")
WORST = 0.001
EACH = ["llama-3-8b", "mixtral-8x7b", "qwen2.5-0.5b", "gemma-2-2b", "gemma-3-1b", "phi-3-mini-4k", "gpt2", "pythia-160m"]
EACH += [
    "falcon-7b",
    "falcon-40b",
    "starcoder2-3b",
    "command-r-v01",
    "command-r7b",
    "olmo-7b",
    "olmo-2-7b",
    "olmo-3-7b",
    "olmoe-1b-7b",
]
EACH += [
    "granite-3.0-2b",
    "granite-3.0-1b-a400m",
    "minitron-4b",
    "qwen1.5-moe-a2.7b",
    "qwen3-30b-a3b",
    "deepseek-v2-lite",
    "deepseek-v3",
]
EACH += ["gpt-oss-20b", "mamba-130m", "mamba2-130m", "qwen3-0.6b", "smollm3-3b", "gemma-2b"]
EACH += [
    "seed-oss-36b",
    "ministral-3-3b-text",
    "exaone-4.0-1.2b",
    "glm-4-9b-0414",
    "glm-4.5-air",
    "glm-4.7-flash",
    "solar-open-100b",
]
EACH += ["minimax-m2", "ernie-4.5-0.3b", "ernie-4.5-21b-a3b", "dots.llm1", "hunyuan-4b", "hunyuan-a13b"]
EACH += ["qwen3.5-0.8b-text", "qwen3.5-35b-a3b-text", "qwen3-next-80b-a3b", "nemotron-h-8b", "nemotron-3-super-120b-a12b"]
EACH += ["granite-4.0-h-tiny", "granite-4.0-1b", "bamba-9b", "lfm2-1.2b", "lfm2-8b-a1b", "falcon-h1-0.5b", "jamba-v0.1"]
EACH += ["bloom-560m", "phi-2", "starcoderbase-1b", "stablelm-2-1.6b", "mpt-7b", "afm-4.5b", "internlm3-8b"]
EACH += ["glm-4-9b", "apertus-8b", "jais-2-8b", "phi-3.5-moe", "k-exaone-236b-a23b", "mellum2-12b-a2.5b", "trinity-mini"]
EACH += ["gemma-4-31b-text", "gemma-4-26b-a4b-text", "gemma-4-e2b-text", "gemma-4-12b-text", "falcon-mamba-7b"]
EACH += ["bert-base-cased", "roberta-base", "bge-m3", "distilbert-base-cased", "nomic-embed-text-v1.5", "jina-embeddings-v3"]
EACH += ["modernbert-base", "eurobert-210m", "llama-4-scout-text", "north-mini-code-1.0", "mistral-small-4-119b-text"]
EACH += ["youtu-llm-2b", "iquest-coder-v1-40b", "hy3-295b-a21b", "deepseek-v3.2", "glm-5", "gemma-3n-e2b-text"]
EACH += ["kimi-linear-48b-a3b", "mimo-v2-flash", "minicpm3-4b", "llama-3.3-nemotron-super-49b"]
EACH += ["granite-swash-2b", "granite-swash-3b-a600m", "moe-7b-1b-active-shared-experts"]


def spec_of(row: dict[str, Any]) -> ModelSpec:
    found: ModelSpec = published(row["model"]).architecture.model_copy(update=row.get("spec", {}))
    return found


@pytest.mark.parametrize("row", PUBLISHED["files"], ids=lambda row: f"{row['model']} {row['kind']}")
def test_a_file_is_as_large_as_the_published_one(row: dict[str, Any]) -> None:
    spec = spec_of(row)
    header = header_bytes(spec)
    assert header is not None
    error = abs((tensor_bytes(spec, [row["kind"]])[row["kind"]] + header) / row["bytes"] - 1)
    assert error <= row.get("within", WORST)
    assert "within" not in row or (row["why"] and error > WORST)


@pytest.mark.parametrize("kind", PUBLISHED["bits"]["per_weight"])
def test_bits_per_weight_are_those_that_llama_cpp_prints(kind: str) -> None:
    spec = published(PUBLISHED["bits"]["model"]).architecture
    bits = 8 * tensor_bytes(spec, [kind])[kind] / count(spec)
    assert bits == pytest.approx(PUBLISHED["bits"]["per_weight"][kind], abs=1e-4)


@pytest.mark.parametrize("kind", PUBLISHED["rounded"]["gigabytes"])
def test_the_rules_of_70b(kind: str) -> None:
    spec = published(PUBLISHED["rounded"]["model"]).architecture
    found = tensor_bytes(spec, [kind])[kind] + (header_bytes(spec) or 0)
    assert found / 1e9 == pytest.approx(PUBLISHED["rounded"]["gigabytes"][kind], abs=0.0051)


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_every_parameter_lies_in_the_file_once(name: str) -> None:
    """With what experts are chosen by, which is a buffer of most models that have it."""
    spec = published(name).architecture
    tensors = file_tensors(spec)
    buffers = spec.can.routing.endswith("sigmoid") and spec.model_type != "afmoe"  # whose biases are parameters
    beside = sum(t.elements for t in tensors if "exp_probs_b" in t.name) if buffers else 0
    beside += sum(t.elements for t in tensors if t.name.endswith(("layer_output_scale.weight", "rope_freqs.weight")))
    if spec.model_type == "gemma3n_text":  # layers that take others' keys have their own in the file, and tables are filled up
        asked, shared = spec.config(), spec.config()["num_kv_shared_layers"]
        made = asked["num_key_value_heads"] * asked["head_dim"]
        beside += shared * (2 * asked["hidden_size"] * made + asked["head_dim"])
        missing = asked["vocab_size"] - asked["vocab_size_per_layer_input"]
        beside += missing * asked["hidden_size_per_layer_input"] * spec.depth
    apart = 2 * spec.depth if spec.model_type == "apertus" else 0  # xIELU's numbers are metadata
    written = sum(tensor.elements for tensor in tensors)
    if spec.encodes:  # without heads
        assert written < count(spec)
    else:
        assert written == count(spec) + beside - apart
    assert len({tensor.name for tensor in tensors}) == len(tensors)
    model = facts(spec, tensors)
    for kind in MIXTURES:
        assert all(tensor.columns % type_of(kind, tensor, model).elements == 0 for tensor in tensors)


def test_every_described_family_has_a_model_here() -> None:
    kinds = {published(name).architecture.model_type for name in EACH}
    described = set(having(lambda kind: kind.can.gguf))
    inside = {"qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen3_vl_text", "qwen3_vl_moe_text"}  # of models that see
    inside |= {"glm4v_text", "glm4v_moe_text", "glm_ocr_text", "qwen3_omni_moe_text"}
    assert described - kinds <= {"mistral", *inside}  # a llama in every name
    assert len(CONFIGS) <= len(described)


def test_sizes_fall_with_the_kinds_bits() -> None:
    sizes = tensor_bytes(published("llama-3-8b").architecture, MIXTURES)
    ordered = (
        "F32",
        "F16",
        "Q8_0",
        "Q6_K",
        "Q5_K_M",
        "Q5_K_S",
        "Q4_K_M",
        "Q4_K_S",
        "Q3_K_L",
        "Q3_K_M",
        "Q3_K_S",
        "Q2_K",
        "IQ1_S",
    )
    assert [sizes[kind] for kind in ordered] == sorted((sizes[kind] for kind in ordered), reverse=True)


def test_a_family_without_files_is_refused() -> None:
    with pytest.raises(NotModelled, match="GGUF files of gptj"):
        tensor_bytes(published("gpt-j-6b").architecture, ["Q4_0"])


def test_an_unknown_tokenizer_has_no_size() -> None:
    spec = published("llama-3-8b").architecture.model_copy(update={"vocab_size": 12345})
    assert header_bytes(spec) is None
