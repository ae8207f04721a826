"""What TensorRT-LLM's PyTorch backend runs in one kernel that others run in two.

After tensorrt_llm/_torch of 1.2: attention writes what goes into the product after it in that product's type
(modules/attention.py, `out_scale`), and so does SwiGLU in FP8 (modules/gated_mlp.py); where ranks share a Llama of more than
4096 hidden states, an all-reduce adds, normalizes and quantizes (models/modeling_llama.py, `PRE_MLP_FUSION`, `POST_MLP_FUSION`).
Without ranks a norm is a kernel of its own, and what goes into the product after it is quantized by another.
"""

from __future__ import annotations

from estimator.families.spec import DecoderSpec
from estimator.parallel.topology import Topology

LLAMAS, NARROW = ("llama",), 4096


def norms_in_reductions(spec: DecoderSpec, place: Topology) -> bool:
    """Whether the all-reduce before a norm is that norm, too."""
    return place.tensor > 1 and spec.model_type in LLAMAS and spec.hidden_size > NARROW


def quantized_before(spec: DecoderSpec, place: Topology, weights: str, outputs: int, inputs: int) -> bool:
    """Whether the kernel before a product of one rank writes what goes into it in the type that it multiplies in."""
    if outputs != spec.hidden_size:
        return norms_in_reductions(spec, place)
    after_attention = inputs * place.tensor == spec.num_attention_heads * spec.head_dim
    return after_attention or weights == "fp8"
