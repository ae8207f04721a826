"""EuroBERT: Llama's layers, whose tokens see each other in both directions.

After transformers' modeling_eurobert.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.encoders import Classification, EncoderSpec, MaskedLM, refuse_quantization
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import Head
from estimator.families.modules import ACTIVATIONS
from estimator.families.spec import Activation, Probability, Size
from estimator.families.windows import FULL, LayerType
from estimator.tape.reduction import mean
from estimator.tape.tensor import Tensor
from estimator.tape.views import select


class EuroBertSpec(EncoderSpec):
    can = Abilities(gguf=True, graph="euro-bert")
    modelled = {"is_decoder": (False,)}
    embeds = True

    max_position_embeddings: Size = 8192
    num_key_value_heads: Size
    head_dim: Size
    hidden_act: Activation = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_dropout: Probability = 0.0
    mlp_bias: bool = False
    classifier_pooling: Literal["bos", "mean", "late"] = "late"

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": heads, "head_dim": hidden // heads}

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd: rotary embeddings need pairs")
        return self


SPECS = {"eurobert": EuroBertSpec}


def _no_masks(*_: object) -> dict[LayerType, Tensor | None]:
    """Every token sees all of them: no mask is made (`create_bidirectional_mask`)."""
    return {FULL: None}


def eurobert(spec: Any, build: Builder) -> Decoder:
    """The body of the model."""
    refuse_quantization(build, spec.model_type)
    bias = spec.attention_bias

    def layer(_: None) -> PreNorm:
        attention = GroupedQueryAttention(spec, build, bias, bias, causal=False)
        return PreNorm(spec, build, attention, GatedMLP(spec, build, bias=spec.mlp_bias))

    return Decoder(spec, build, layer, rotary=Rotary(spec.head_dim), masks=_no_masks)


class Classifier:
    """Class scores of a sequence: of its first token, of the mean of all, or the mean of all tokens' scores (`late`)."""

    def __init__(self, spec: EuroBertSpec, build: Builder):
        self.pooling = spec.classifier_pooling
        self.dense = build.linear("dense", spec.hidden_size, spec.hidden_size, bias=True)
        self.act = ACTIVATIONS["gelu"]
        self.classifier = build.score(spec.hidden_size, bias=True, name="classifier")

    def __call__(self, hidden: Tensor) -> Tensor:
        if self.pooling == "late":
            x = self.dense(hidden)
            x = self.act(x)
            return mean(self.classifier(x), 1)
        pooled = select(hidden, 1) if self.pooling == "bos" else mean(hidden, 1)
        pooled = self.dense(pooled)
        pooled = self.act(pooled)
        return self.classifier(pooled)


def _predictions(spec: EuroBertSpec, build: Builder) -> Callable[[Tensor], Tensor]:
    return build.head(spec.hidden_size, spec.vocab_size, spec.tie_word_embeddings, spec.mlp_bias)


HEADS: dict[str, Head] = {
    "masked-lm": lambda spec, build: MaskedLM(eurobert(spec, build), _predictions(spec, build), wide=True),
    "sequence-classification": lambda spec, build: Classification(eurobert(spec, build), Classifier(spec, build)),
}
