"""The slots that vLLM sets aside for LoRA adapters: of each layer `max_loras` pairs of matrices of the highest rank.

After vllm/lora/layers of 0.33 (`create_lora_weights` of base_linear.py, column_parallel_linear.py, row_parallel_linear.py,
fused_moe.py, vocab_parallel_embedding.py and logits_processor.py) and lora/model_manager.py (`_create_lora_modules`). A pair is
    A [rank, inputs], of each of the layers that a server joins, and B [outputs, rank]
in the model's type, whatever its weights are stored in. Inputs and outputs are those of a rank, but of the two embeddings all.
The slots are made with the model, and logged as weights; adapters that wait lie in the host's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from estimator.contract.errors import Contradiction
from estimator.contract.job import Serving
from estimator.facts import catalogue
from estimator.families.spec import ModelSpec
from estimator.serving.tensors import Held, Stage
from estimator.tape.dtypes import DType

FILE = Path(__file__).parent / "lora.yaml"


def _facts() -> dict[str, Any]:
    found: dict[str, Any] = catalogue.shipped(FILE)
    return found


def check_adapters(asked: Serving, spec: ModelSpec) -> None:
    """Raise `Contradiction` where a model takes no adapters, or settings of slots are given without them."""
    if not asked.enable_lora:
        for name in ("max_loras", "max_lora_rank"):
            if getattr(asked, name) is not None:
                raise Contradiction("there are slots for adapters with serving.enable_lora true only", f"serving.{name}")
        return
    text = spec.language_model
    if text.model_type in _facts()["none"]:
        raise Contradiction(f"vLLM takes no LoRA adapters of {text.model_type} models: leave it out", "serving.enable_lora")
    vocabulary, most = getattr(text, "vocab_size", 0), _facts()["largest_vocabulary"]
    if text.model_type in _facts()["input_and_output"] and vocabulary > most:
        raise Contradiction(
            f"vLLM takes LoRA adapters of vocabularies of up to {most:,} tokens, and this one has {vocabulary:,}",
            "serving.enable_lora",
        )


def said(asked: Serving) -> list[str]:
    """What is set aside for adapters."""
    if not asked.enable_lora:
        return []
    return [f"LoRA: {asked.max_loras} adapter(s) of rank {asked.max_lora_rank} on the GPU, as vLLM 0.33 holds them"]


def slots(asked: Serving, spec: ModelSpec, tensors: Iterable[Held], plain: DType, stage: Stage) -> Iterator[tuple[int, int]]:
    """Bytes of each tensor of the slots for adapters of a rank's `tensors`, and how many there are of it."""
    count, rank = asked.max_loras or 1, asked.max_lora_rank or 16
    text = spec.language_model
    for each in tensors:
        for numbers, times in _pairs(each, text):
            yield count * rank * numbers * plain.itemsize, times * each.times
    hidden, vocabulary = text.hidden_size, getattr(text, "vocab_size", 0)
    both = text.model_type in _facts()["input_and_output"]
    enters = stage[0] == 0 and (both or text.model_type in _facts()["input"])
    leaves = stage[0] == stage[1] - 1 and both and asked.runner != "pooling"
    for _ in range(enters + leaves):
        yield count * rank * vocabulary * plain.itemsize, 1
        yield count * rank * hidden * plain.itemsize, 1


def _pairs(each: Held, text: ModelSpec) -> Iterator[tuple[int, int]]:
    """Numbers of A and B per rank of an adapter, and how many of each there are."""
    if each.seen or each.kind not in ("linear", "experts") or len(each.shape) not in (2, 3) or each.end == "bias":
        return
    *experts, outputs, inputs = each.shape
    if each.kind == "experts" and not experts:
        return
    many = experts[0] if experts else 1
    joined = len(each.end.split("+"))
    if experts and "gate_up" in each.end and text.model_type not in _facts()["joined_experts"]:
        joined = 2
    yield many * inputs, joined
    yield many * outputs // joined, joined
