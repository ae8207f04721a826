"""Decoders of the Llama kind with experts in place of feed-forward layers: Mixtral, Qwen2-MoE, Qwen3-MoE.

After transformers' modeling_mixtral.py, modeling_qwen2_moe.py and modeling_qwen3_moe.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from estimator.families.abilities import BATCHES, Abilities
from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Masks
from estimator.families.decoder_layers import PreNorm
from estimator.families.expert_loop import ExpertLoop
from estimator.families.experts import AUXILIARY, EXPERTS_HELD_IN, Experts, MoeSpec
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import decoder_heads
from estimator.families.llama import LlamaRotary, MistralSpec, Qwen2Spec, Qwen3Spec, decoder_layer
from estimator.families.modules import Module
from estimator.families.routers import TopKRouter
from estimator.families.spec import DecoderSpec, Size, called
from estimator.families.windows import SLIDING, LayerType, causal_masks
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, mul, sigmoid
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape


class MixtralSpec(MistralSpec, MoeSpec):
    can = Abilities(batches=BATCHES, prompts=True, returns_cache=True, megatron="mixture", gguf=True, graph="plain")
    held_in = {"gate": "gate.weight", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"}
    modelled = {**AUXILIARY, "router_jitter_noise": (0.0, 0, None)}
    tensor_parallel = cached = joined_loss = False

    max_position_embeddings: Size | None = 131072
    sliding_window: Size | None = None
    num_experts: Size = called("num_local_experts", 8)
    num_experts_per_tok: Size = 2


class QwenMoeSpec(MoeSpec):
    """Some layers may be dense: those listed, and all but each `decoder_sparse_step`-th."""

    tensor_parallel = cached = False
    dense_unless_said: ClassVar[tuple[int, ...]] = ()
    """Layers without experts where `mlp_only_layers` says nothing."""

    max_position_embeddings: Size | None = 32768
    moe_intermediate_size: Size
    decoder_sparse_step: Size = 1
    mlp_only_layers: list[int] | None = None
    norm_topk_prob: bool = False

    @property
    def expert_size(self) -> int:
        return self.moe_intermediate_size

    def sparse(self) -> list[bool]:
        dense = self.dense_unless_said if self.mlp_only_layers is None else self.mlp_only_layers
        step = self.decoder_sparse_step
        return [i not in dense and (i + 1) % step == 0 for i in range(self.num_hidden_layers)]


class Qwen2MoeSpec(QwenMoeSpec, Qwen2Spec):
    parts_in_sglang = True
    can = Abilities(megatron="mixture", gguf=True, graph="biased", routing="shared gate")
    modelled = {**AUXILIARY, **Qwen2Spec.modelled}

    num_experts: Size = 60
    num_experts_per_tok: Size = 4
    shared_expert_intermediate_size: Size
    qkv_bias: bool = True

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        return self.qkv_bias, False, False


class Qwen3MoeSpec(QwenMoeSpec, Qwen3Spec):
    parts_in_sglang = True
    can = Abilities(batches=BATCHES, megatron="mixture", gguf=True, graph="plain", mlx_routers="8 bits")
    held_in = EXPERTS_HELD_IN
    modelled = {**AUXILIARY, **Qwen3Spec.modelled}

    num_experts: Size = called("num_local_experts", 128)
    num_experts_per_tok: Size = 8


SPECS = {"mixtral": MixtralSpec, "qwen2_moe": Qwen2MoeSpec, "qwen3_moe": Qwen3MoeSpec}


class MixtralMoe:
    def __init__(self, spec: MixtralSpec, build: Builder):
        self.gate = TopKRouter(spec, build, normalized=True, float32=True)
        self.experts = Experts(spec, build)

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits, weights, chosen = self.gate(flat)
        out = self.experts(flat, chosen, weights)
        del logits
        return reshape(out, hidden.shape)


class Qwen3Moe(MixtralMoe):
    def __init__(self, spec: Qwen3MoeSpec, build: Builder):
        self.experts = Experts(spec, build)
        self.gate = TopKRouter(spec, build, spec.norm_topk_prob)


class Qwen2Moe:
    """With an expert that every token passes, weighted by a gate of its own."""

    def __init__(self, spec: Any, build: Builder):
        self.gate = TopKRouter(spec, build, spec.norm_topk_prob)
        self.experts = Experts(spec, build)
        self.shared_expert = GatedMLP(spec, build, "mlp.shared_expert", spec.shared_expert_intermediate_size)
        self.shared_expert_gate = build.linear("mlp.shared_expert_gate", spec.hidden_size, 1)

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        shared = self.shared_expert(flat)
        logits, weights, chosen = self.gate(flat)
        out = self.experts(flat, chosen, weights)
        shared = mul(sigmoid(self.shared_expert_gate(flat)), shared)
        out = add(out, shared)
        del logits
        return reshape(out, hidden.shape)


def mixtral(spec: MixtralSpec, build: Builder) -> Decoder:
    """The body of Mixtral."""
    experts: Callable[[Any, Builder], Module] = MixtralMoe if build.kernels.release == "5" else ExpertLoop
    return Decoder(spec, build, lambda _: decoder_layer(spec, build, experts), rotary=LlamaRotary(spec.head_dim))


def qwen_moe(spec: Any, build: Builder, experts: Callable[[Any, Builder], Module], masks: Masks = causal_masks) -> Decoder:
    """The body of Qwen's, in which some layers are dense."""

    def layer(sparse: bool) -> PreNorm:
        return decoder_layer(spec, build, experts if sparse else GatedMLP)

    return Decoder(spec, build, layer, spec.sparse(), rotary=LlamaRotary(spec.head_dim), masks=masks)


def _qwen2_masks(
    spec: DecoderSpec, tape: Tape, batch: int, tokens: int, dtype: DType, implementation: str
) -> dict[LayerType, Tensor | None]:
    """Beside the layers' mask the one for a sliding window, which is made, and held, though no layer has one."""
    masks = causal_masks(spec, tape, batch, tokens, dtype, implementation)
    return masks | {SLIDING: causal_mask(tape, batch, tokens, dtype, implementation, 0)}


BODIES: dict[str, Callable[[Any, Builder], Decoder]] = {
    "mixtral": mixtral,
    "qwen2_moe": lambda spec, build: qwen_moe(spec, build, Qwen2Moe, _qwen2_masks),
    "qwen3_moe": lambda spec, build: qwen_moe(spec, build, Qwen3Moe),
}
HEADS = decoder_heads(lambda spec, build: BODIES[spec.model_type](spec, build))
