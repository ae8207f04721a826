"""GGUF files as the gguf package writes and reads them (0.19), where it is installed: `pip install gguf`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from estimator.specs.architecture import architecture
from estimator.weights.dtypes import ggml_types
from estimator.weights.read import read_checkpoint

gguf: Any = pytest.importorskip("gguf")
DIFFER = {"Q8_1"}
"""Whose block the package gives 40 bytes, ggml 36; no file has it."""
LAYERS = 3


def test_the_table_of_types_is_the_packages() -> None:
    theirs = {kind.name: (kind.value, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    ours = {block.name: (number, block.elements, block.nbytes) for number, block in ggml_types().items()}
    assert {name: ours.get(name) for name in theirs if name not in DIFFER} == {n: s for n, s in theirs.items() if n not in DIFFER}


def small(path: Path, **split: Any) -> Path:
    """A small Qwen3 with tensors of many types, as the package writes it."""
    writer = gguf.GGUFWriter(path, "qwen3", **split)
    writer.add_context_length(64)
    writer.add_embedding_length(256)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(512)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(64)
    writer.add_value_length(64)
    writer.add_rope_freq_base(1e6)
    writer.add_token_list(["<s>", "é", "b"])
    writer.add_token_scores([0.0, -0.5, 1.0])
    writer.add_array("some.flags", [True, False])
    writer.add_custom_alignment(64)
    rows: dict[str, tuple[int, ...]] = {
        "attn_q": (256, 256),
        "attn_k": (128, 256),
        "attn_v": (128, 256),
        "attn_output": (256, 256),
    }
    rows |= {"ffn_gate": (512, 256), "ffn_up": (512, 256), "ffn_down": (256, 512), "attn_norm": (256,), "ffn_norm": (256,)}
    rows |= {"attn_q_norm": (64,), "attn_k_norm": (64,)}
    shapes = {f"blk.{layer}.{name}.weight": shape for layer in range(LAYERS) for name, shape in rows.items()}
    kinds = [kind for kind in gguf.GGML_QUANT_SIZES if kind.name not in DIFFER]
    for number, (name, shape) in enumerate({"token_embd.weight": (100, 256), "output_norm.weight": (256,), **shapes}.items()):
        kind = kinds[number % len(kinds)] if len(shape) == 2 else gguf.GGMLQuantizationType.F32
        elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
        stored = (*shape[:-1], shape[-1] // elements * nbytes)
        writer.add_tensor(name, numpy.zeros(stored, dtype=numpy.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_what_the_package_writes(tmp_path: Path) -> None:
    path = small(tmp_path / "small.gguf")
    found, theirs = read_checkpoint(path), gguf.GGUFReader(path)
    assert len(found.tensors) == len(theirs.tensors) == 2 + 11 * LAYERS
    for ours, other in zip(found.tensors, theirs.tensors, strict=True):
        assert (ours.name, ours.dtype, ours.shape) == (other.name, other.tensor_type.name, tuple(map(int, other.shape[::-1])))
        assert (ours.elements, ours.nbytes, ours.offset) == (other.n_elements, other.n_bytes, other.data_offset)
    for key, value in found.metadata.items():
        expected = theirs.fields[key].contents()
        assert value == (tuple(expected) if isinstance(expected, list) else expected)
    assert architecture(found) == {
        "model_type": "qwen3",
        "hidden_size": 256,
        "num_hidden_layers": LAYERS,
        "vocab_size": 100,
        "tie_word_embeddings": True,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "attention_bias": False,
    }


def test_what_the_package_splits(tmp_path: Path) -> None:
    whole = read_checkpoint(small(tmp_path / "whole.gguf"))
    (tmp_path / "split").mkdir()
    small(tmp_path / "split" / "m.gguf", split_max_tensors=8)
    found = read_checkpoint(tmp_path / "split")
    assert len(found.files) == 5
    assert {(t.name, t.dtype, t.shape, t.nbytes) for t in found.tensors} == {
        (t.name, t.dtype, t.shape, t.nbytes) for t in whole.tensors
    }
    assert architecture(found) == architecture(whole)
