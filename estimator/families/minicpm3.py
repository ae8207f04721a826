"""MiniCPM 3: DeepSeek's latent attention before Llama's feed-forward layers; embeddings, residual branches and the last hidden
states are each multiplied by a number.

After transformers' modeling_minicpm3.py (5.23).
"""

from __future__ import annotations

from typing import Any, ClassVar

from estimator.families.abilities import BATCHES, Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm, scaled
from estimator.families.feed_forward import GatedMLP
from estimator.families.heads import CausalLM, decoder_heads
from estimator.families.latent import LatentAttention
from estimator.families.latent_spec import LatentSpec
from estimator.families.model_output import Held
from estimator.families.spec import Size, called
from estimator.tape import dtypes
from estimator.tape.pointwise import mul_scalar, to
from estimator.tape.tensor import Tensor


class MiniCPM3Spec(LatentSpec):
    """`scale_emb`: what embeddings are multiplied by: a buffer of its type. Halves of heads are rotated, not pairs."""

    can = Abilities(batches=BATCHES, gguf=True, graph="minicpm-3")
    rope_interleave: ClassVar[bool] = False

    max_position_embeddings: Size | None = 32768
    tie_word_embeddings: bool = True
    head_dim: Size = called("qk_rope_head_dim", 32)
    kv_lora_rank: Size = 256
    q_lora_rank: Size | None = 768
    qk_nope_head_dim: Size = 64
    v_head_dim: Size
    scale_emb: int | float = 12
    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return super().follows(hidden, heads) | {"v_head_dim": hidden // heads}


SPECS = {"minicpm3": MiniCPM3Spec}


def minicpm3(spec: MiniCPM3Spec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(_: None) -> PreNorm:
        return PreNorm(spec, build, LatentAttention(spec, build), GatedMLP(spec, build, bias=spec.mlp_bias), join=scaled)

    scale = build.buffer("embed_scale", (), dtypes.int64 if isinstance(spec.scale_emb, int) else build.dtype)
    return Decoder(spec, build, layer, rotary=Rotary(spec.head_dim), scale=scale)


class ScaledBeforeLM(CausalLM):
    """The last hidden states are divided by a number, and held beside the quotient."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        (ids,) = inputs
        hidden = self.body.forward(ids)
        with ids.tape.losing():
            divided = mul_scalar(hidden)
            logits = self.logits(divided)
            if self.loss.upcasts_first:
                logits = to(logits, dtypes.float32)
            return self.loss(logits, ids), logits


def _causal_lm(spec: Any, build: Builder) -> CausalLM:
    return ScaledBeforeLM(minicpm3(spec, build), spec, build)


HEADS = decoder_heads(minicpm3) | {"causal-lm": _causal_lm}
