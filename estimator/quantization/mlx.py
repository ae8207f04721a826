"""Bytes of a checkpoint that was converted for MLX, which MLX alone reads: words of codes and, of each group, a scale and a bias.

After mlx_lm/utils.py (`quantize_model`) and mlx_lm/models (`quant_predicate`, and routers that are no linear layer there) of
mlx-lm, and mlx_vlm/utils.py (`skip_multimodal_module`) of mlx-vlm, 2026: every matrix whose rows are whole groups is stored in
few bits, embeddings, output layer and experts among them. Norms, biases, convolutions and what sees or hears stay in 16 bits.
"""

from __future__ import annotations

from typing import NamedTuple

from estimator.families import built
from estimator.families.build import within
from estimator.families.parameter import Parameter
from estimator.families.spec import ModelSpec
from estimator.quantization.stored import ROUTERS, WHOLE

STEP = 256
"""Tokens by which a cache grows."""


class Packed(NamedTuple):
    """Bits of a code, codes of a group and bytes beside them: in affine formats a scale and a bias, in the others a scale."""

    bits: int
    group: int
    beside: int

    def nbytes(self, count: int) -> int:
        """Of so many numbers in whole groups."""
        return count * self.bits // 8 + count // self.group * self.beside


AFFINE = {f"{bits}bit": Packed(bits, 64, 2 * WHOLE) for bits in (3, 4, 5, 6, 8)}
PACKED = {**AFFINE, "mxfp4": Packed(4, 32, 1), "mxfp8": Packed(8, 32, 1), "nvfp4": Packed(4, 16, 1)}
"""By their names at the end of a repository's."""
EXPERTS_APART = {"mxfp4-q4": ("mxfp4", "4bit"), "mxfp4-q8": ("mxfp4", "8bit")}
"""Of experts, and of all else."""
WORDS = {
    **{name: f"MLX's {kind.bits} bits (affine, groups of {kind.group})" for name, kind in AFFINE.items()},
    **{name: f"MLX's {name.upper()}" for name in ("mxfp4", "mxfp8", "nvfp4")},
    **{name: f"MLX's MXFP4 of experts and {other[0]} bits of all else" for name, (_, other) in EXPERTS_APART.items()},
}
"""What a reader knows them as."""
NEAREST = {
    **dict.fromkeys(WORDS, ("AWQ", "GGUF:Q4_K_M")),
    "3bit": ("AWQ", "GGUF:Q3_K_M"),
    "5bit": ("AWQ", "GGUF:Q5_K_M"),
    "6bit": ("FP8", "GGUF:Q6_K"),
    "8bit": ("FP8", "GGUF:Q8_0"),
    "mxfp8": ("FP8", "GGUF:Q8_0"),
    "nvfp4": ("NVFP4", "GGUF:Q4_K_M"),
}
"""Ends of names of checkpoints of nearly as many bits that vLLM and SGLang read, and llama.cpp."""


def mlx_bytes(spec: ModelSpec, name: str) -> int:
    """Bytes of a checkpoint in one of MLX's formats."""
    experts, others = EXPERTS_APART.get(name, (name, name))
    routers, total = spec.language_model.can.mlx_routers, 0
    for p in built(spec).parameters:
        text = spec.language_model is spec or not p.part or "language_model" in p.part
        routes = within(p.name.removesuffix(".weight"), ROUTERS)
        kind = PACKED[experts if _of_experts(p) else "8bit" if routes and routers == "8 bits" else others]
        packs = text and not (routes and routers == "whole") and _packs(spec, p, kind)
        total += (kind.nbytes(p.count) if packs else WHOLE * p.count) * p.times
    return total


def mlx_cache_bytes(spec: ModelSpec, context: int) -> int | None:
    """Bytes that MLX keeps of a sequence of `context` tokens at least: keys and values in 16 bits, of all tokens in whole steps,
    of a window no more than it. None of a model that keeps anything else, or nothing.

    After mlx_lm/models/cache.py (`KVCache`, `RotatingKVCache`); of some models with windows it keeps every token.
    """
    total = 0
    for layer in spec.cache_layers:
        if layer.kind not in ("full", "window"):
            return None
        whole = -(-context // STEP) * STEP
        kept = whole if layer.tokens is None else min(whole, layer.tokens)
        total += kept * layer.heads * (layer.key_size + layer.value_size) * WHOLE
    return total or None


def _of_experts(p: Parameter) -> bool:
    return len(p.tensor.shape) == 3 and "experts" in p.name and not p.name.endswith("bias")


def _packs(spec: ModelSpec, p: Parameter, kind: Packed) -> bool:
    """Whether a parameter is one matrix, or one of each expert, whose rows are whole groups."""
    shape = p.tensor.shape
    if (len(shape) != 2 and not _of_experts(p)) or p.name.endswith("bias"):
        return False
    return shape[-2 if any(part in p.name for part in spec.input_first) else -1] % kind.group == 0
