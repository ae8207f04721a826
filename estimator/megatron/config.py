"""What Megatron-Core needs to know of a model, read from a published spec (its `TransformerConfig`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from estimator.contract.errors import NotModelled
from estimator.families import having
from estimator.families.experts import MoeSpec
from estimator.families.spec import DecoderSpec, ModelSpec

VOCABULARY_STEP = 128
"""Rows of the embedding are padded to a multiple of this times the tensor-parallel ranks (`make_vocab_size_divisible_by`)."""


@dataclass(frozen=True, slots=True)
class Latent:
    """DeepSeek's attention: ranks of queries (None: no such product) and of keys and values, and the parts of a head."""

    queries: int | None
    keys: int
    plain: int
    rotary: int
    value: int


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts of a layer, how many a token is sent to, the width of each, and that of those which every token passes."""

    experts: int
    per_token: int
    width: int
    shared: int
    shared_gate: bool = False


@dataclass(frozen=True, slots=True)
class Classic:
    """Megatron-LM's GPT: rows of learned positions, and probabilities of dropout. `eager`: attention
    holds its scores (`DotProductAttention`). `selective`: attention between its products is recomputed by itself."""

    positions: int
    hidden_dropout: float
    attention_dropout: float
    embedding_dropout: float
    eager: bool = False
    selective: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """A decoder with RMSNorm, rotary positions and gated feed-forward layers, unless it is `classic`. `sparse`: whether each
    layer is a mixture."""

    hidden: int
    heads: int
    groups: int
    head_dim: int
    width: int
    vocabulary: int
    tied: bool
    sparse: tuple[bool, ...]
    qkv_bias: bool = False
    qk_norm: bool = False
    mixture: Mixture | None = None
    latent: Latent | None = None
    classic: Classic | None = None

    def rows(self, tensor: int) -> int:
        """Rows of the embedding of each of so many ranks."""
        step = VOCABULARY_STEP * tensor
        return -(-self.vocabulary // step) * step // tensor


def config(spec: ModelSpec) -> Config:
    """The config of a spec. Raises `NotModelled` for architectures that are not Megatron's, or not modelled."""
    if not isinstance(spec, DecoderSpec) or spec.can.megatron is None:
        known = ", ".join(having(lambda kind: kind.can.megatron is not None))
        raise NotModelled(
            f"{spec.model_type} models are not modelled as Megatron-Core builds them; {known} are",
            "training.implementation",
        )
    if spec.can.megatron == "classic":
        return _classic(spec)
    if spec.hidden_act != "silu":
        raise NotModelled(f"gated layers with {spec.hidden_act} are not modelled as Megatron-Core has them", "model")
    shape: Any = spec
    qkv, output, feed_forward = shape.biases
    if output or feed_forward:
        raise NotModelled("biases beside those of queries, keys and values are not modelled for Megatron-Core", "model")
    return Config(
        hidden=spec.hidden_size,
        heads=spec.num_attention_heads,
        groups=spec.num_key_value_heads,
        head_dim=spec.head_dim,
        width=spec.intermediate_size,
        vocabulary=spec.vocab_size,
        tied=spec.tie_word_embeddings,
        sparse=tuple(spec.sparse()) if isinstance(spec, MoeSpec) else (False,) * spec.num_hidden_layers,
        qkv_bias=qkv,
        qk_norm=getattr(spec, "qk_norm", False),
        mixture=_mixture(shape) if isinstance(spec, MoeSpec) else None,
        latent=_latent(shape) if spec.can.megatron == "latent" else None,
    )


def _classic(spec: Any) -> Config:
    """GPT-2 as Megatron-LM builds it (`--normalization LayerNorm`, learned positions, biases, GELU)."""
    if not spec.hidden_act.startswith("gelu"):
        raise NotModelled(f"{spec.hidden_act} is not modelled as Megatron-Core has it beside LayerNorm: write gelu", "model")
    heads = spec.num_attention_heads
    return Config(
        hidden=spec.hidden_size,
        heads=heads,
        groups=heads,
        head_dim=spec.hidden_size // heads,
        width=spec.intermediate_size,
        vocabulary=spec.vocab_size,
        tied=spec.tie_word_embeddings,
        sparse=(False,) * spec.num_hidden_layers,
        classic=Classic(spec.max_position_embeddings, spec.resid_pdrop, spec.attention_dropout, spec.embd_pdrop),
    )


def _mixture(spec: Any) -> Mixture:
    gated = getattr(spec, "shared_expert_intermediate_size", 0)
    shared = gated or getattr(spec, "n_shared_experts", 0) * spec.expert_size
    return Mixture(spec.num_experts, spec.num_experts_per_tok, spec.expert_size, shared, bool(gated))


def _latent(spec: Any) -> Latent:
    return Latent(spec.q_lora_rank, spec.kv_lora_rank, spec.qk_nope_head_dim, spec.head_dim, spec.v_head_dim)
