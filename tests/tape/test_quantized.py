"""bitsandbytes as judge: the bytes of its own objects, made on the CPU."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from estimator import estimate
from estimator.verify.live import rounded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from bitsandbytes import functional

KIND = {"nf4": ("nf4", False), "nf4-double": ("nf4", True), "fp4": ("fp4", False)}
SIZES = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 4000}
LAYERS = 3
MODEL = {"model_type": "llama", "num_hidden_layers": LAYERS, **SIZES}
LINEARS = [(512, 512), (128, 512), (128, 512), (512, 512), (1408, 512), (1408, 512), (512, 1408)]


def training(quantization: str | None, **more: Any) -> dict[str, Any]:
    settings = {"precision": "bf16-true", "quantization": quantization, "adapter": {"rank": 4, "targets": ["q_proj"]}, **more}
    return {"model": MODEL, "training": settings}


def stored(shape: tuple[int, int], quantization: str) -> int:
    """Bytes that a linear layer's weight takes in bitsandbytes, each tensor rounded up as CUDA allocates it."""
    weight = torch.randn(shape)
    if quantization == "int8":
        codes, scales, _ = functional.int8_vectorwise_quant(weight.half())
        return sum(rounded(t.nbytes) for t in (codes, scales))
    kind, nested = KIND[quantization]
    packed, state = functional.quantize_4bit(weight, quant_type=kind, compress_statistics=nested)
    tensors = [packed, state.absmax, state.code]
    if nested:
        tensors += [state.state2.absmax, state.state2.code, state.offset]
    return sum(rounded(t.nbytes) for t in tensors)


@pytest.mark.parametrize("quantization", ["nf4", "nf4-double", "fp4", "int8"])
def test_a_quantized_model_takes_the_bytes_of_its_parts(quantization: str) -> None:
    whole = estimate(training(None)).memory.resident_bytes
    packed = estimate(training(quantization)).memory.resident_bytes
    in_bf16 = sum(rounded(2 * a * b) for a, b in LINEARS)
    in_few_bits = sum(stored(shape, quantization) for shape in LINEARS)
    assert whole - packed == LAYERS * (in_bf16 - in_few_bits)


@pytest.mark.parametrize("quantization", ["nf4", "nf4-double", "fp4", "int8"])
def test_packed_weights_count_as_what_they_stand_for(quantization: str) -> None:
    assert estimate(training(quantization)).parameters == estimate(training(None)).parameters


def test_double_quantization_saves_what_qlora_says() -> None:
    """0.373 bits per parameter (Dettmers et al. 2023, section 3), over the weights that are quantized."""
    job = {"model": "llama-2-7b", "training": {"precision": "bf16-true", "adapter": {}}}
    single, double = (
        estimate({**job, "training": {**job["training"], "quantization": q}}).memory.resident_bytes  # type: ignore[dict-item]
        for q in ("nf4", "nf4-double")
    )
    quantized = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    assert 8 * (single - double) / quantized == pytest.approx(0.373, abs=0.0005)
