"""ESM-2: an encoder of proteins, with norms before each block, rotary positions in float32, and a GELU in Python.

Masked tokens' embeddings are zeros, for which the others are scaled up (`token_dropout`). Its head that predicts contacts is not
run. After transformers' modeling_esm.py (5.23).
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from estimator.contract.errors import NotModelled
from estimator.families.abilities import Abilities
from estimator.families.attention import Attention
from estimator.families.bert import RobertaClassifier, places_from_ids
from estimator.families.build import Builder
from estimator.families.encoders import Classification, EncoderSpec, MaskedLM, refuse_quantization
from estimator.families.heads import Head
from estimator.families.modules import Linear, rotary_table, rotate_half
from estimator.families.rotary import frequencies
from estimator.families.spec import Probability, Size
from estimator.tape import dtypes
from estimator.tape.pointwise import add, add_scalar, div, div_scalar, dropout, erf, mul, mul_scalar, to
from estimator.tape.selection import masked_fill
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, reshape, transpose, unsqueeze


class EsmSpec(EncoderSpec):
    """ESM-2's; ESM-1's learned positions and ESMFold are not modelled."""

    can = Abilities()
    last_vllm = "none"
    in_sglang = "none"
    modelled = EncoderSpec.modelled | {
        "add_cross_attention": (False,),
        "is_folding_model": (False, None),
        "emb_layer_norm_before": (False, None),
        "position_embedding_type": ("rotary",),
    }
    classifier_dropout: ClassVar[None] = None

    max_position_embeddings: Size = 1026
    hidden_dropout_prob: Probability = 0.1
    attention_probs_dropout_prob: Probability = 0.1
    position_embedding_type: Literal["rotary"]
    token_dropout: bool = False
    pad_token_id: int | None = None
    mask_token_id: int | None = None

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.hidden_size // self.num_attention_heads % 2:
            raise ValueError("hidden_size over num_attention_heads is odd: rotary embeddings need pairs")
        if self.pad_token_id is None:
            raise ValueError("pad_token_id is missing: positions are counted by it")
        if self.token_dropout and self.mask_token_id is None:
            raise ValueError("token_dropout needs mask_token_id")
        return self


SPECS = {"esm": EsmSpec}
CONTACTS = "contact_head.regression"


def gelu(x: Tensor) -> Tensor:
    """x / 2 (1 + erf(x / √2)), in five operations."""
    return mul(mul_scalar(x), add_scalar(erf(div_scalar(x))))


class Embeddings:
    def __init__(self, spec: EsmSpec, build: Builder):
        self.word = build.embedding("embeddings.word_embeddings", spec.vocab_size, spec.hidden_size)
        self.position_ids = build.buffer("position_ids", (1, spec.max_position_embeddings), dtypes.int64)
        self.drops = spec.token_dropout

    def __call__(self, ids: Tensor) -> Tensor:
        places = places_from_ids(ids)
        words = self.word(ids)
        out = words
        if self.drops:
            out = masked_fill(words, unsqueeze(empty(ids.tape, ids.shape, dtypes.bool_, "eq"), 2))
            masked = self._masked(ids)
            out = to(div(mul_scalar(out), reshape(add_scalar(masked), (-1, 1, 1))), out.dtype)
            del masked
        del places
        return out

    def _masked(self, ids: Tensor) -> Tensor:
        """The share of masked tokens in each sequence."""
        tape, (batch, _) = ids.tape, ids.shape
        found = empty(tape, ids.shape, dtypes.bool_, "eq")
        number = empty(tape, (batch,), dtypes.int64, "sum")
        del found
        return div_scalar(to(number, dtypes.float32))


class SelfAttention:
    def __init__(self, spec: EsmSpec, build: Builder):
        size = spec.hidden_size
        self.heads = spec.num_attention_heads
        self.query = build.linear("attention.self.query", size, size, bias=True)
        self.key = build.linear("attention.self.key", size, size, bias=True)
        self.value = build.linear("attention.self.value", size, size, bias=True)
        self.attend = Attention(build.attention, False, spec.attention_probs_dropout_prob, cast_back=False, causal=False)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, tokens, size = hidden.shape
        heads = (batch, tokens, self.heads, size // self.heads)
        q = transpose(reshape(self.query(hidden), heads), 1, 2)
        k = transpose(reshape(self.key(hidden), heads), 1, 2)
        v = transpose(reshape(self.value(hidden), heads), 1, 2)
        q = mul_scalar(q)
        q, k = _rotated(q, k, cos, sin)
        out, weights = self.attend(q, k, v, None)
        return contiguous(reshape(out, (batch, tokens, size))), weights


def _rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated in float32, each cast twice on the way, and cast back."""
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    wide = dtypes.float32
    turned_q = add(mul(to(q, wide), c), mul(rotate_half(to(q, wide)), s))
    turned_k = add(mul(to(k, wide), c), mul(rotate_half(to(k, wide)), s))
    return to(turned_q, q.dtype), to(turned_k, q.dtype)


class Output:
    """A linear layer, dropout, and the sum with the block's input."""

    def __init__(self, name: str, inputs: int, spec: EsmSpec, build: Builder):
        self.dense = build.linear(name + ".dense", inputs, spec.hidden_size, bias=True)
        self.dropout = spec.hidden_dropout_prob

    def __call__(self, hidden: Tensor, residual: Tensor) -> Tensor:
        out = self.dense(hidden)
        out = dropout(out, self.dropout)
        return add(out, residual)


class Layer:
    def __init__(self, spec: EsmSpec, build: Builder):
        self.attention = SelfAttention(spec, build)
        self.attention_output = Output("attention.output", spec.hidden_size, spec, build)
        self.attention_norm = build.layer_norm("attention.LayerNorm", spec.hidden_size)
        self.intermediate = build.linear("intermediate.dense", spec.hidden_size, spec.intermediate_size, bias=True)
        self.output = Output("output", spec.intermediate_size, spec, build)
        self.norm = build.layer_norm("LayerNorm", spec.hidden_size)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        attended = self._attend(hidden, cos, sin)
        normed = self.norm(attended)
        between = self._between(normed)
        return self.output(between, attended)

    def _attend(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.attention_norm(hidden)
        out, weights = self.attention(normed, cos, sin)
        out = self.attention_output(out, hidden)
        del normed, weights
        return out

    def _between(self, hidden: Tensor) -> Tensor:
        out = self.intermediate(hidden)
        return gelu(out)


class Esm:
    """The body of the model."""

    def __init__(self, spec: EsmSpec, build: Builder):
        refuse_quantization(build, spec.model_type)
        self.head_dim = spec.hidden_size // spec.num_attention_heads
        self.embeddings = Embeddings(spec, build)
        self.buffers = frequencies(build, self.head_dim, ("inv_freq",))
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build), "layer")
        self.norm = build.layer_norm("encoder.emb_layer_norm_after", spec.hidden_size)
        with build.unlearning():
            self.contacts = build.linear(CONTACTS, spec.num_hidden_layers * spec.num_attention_heads, 1, bias=True)
        if build.sharding.flattens and CONTACTS in build.adapted:
            said = f"adapters on {CONTACTS}, which is not run, are not modelled under fsdp1: exclude regression, or use fsdp2"
            raise NotModelled(said, "training.adapter.targets")

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embeddings(ids)
        places = empty(ids.tape, (ids.shape[1],), dtypes.int64, "arange")
        cos, sin = rotary_table(ids.tape, ids.shape[1], self.head_dim, embedded.dtype)
        hidden = embedded
        for layer in self.layers:
            hidden = layer(hidden, cos, sin)
        hidden = self.norm(hidden)
        del places
        return hidden


class Predictions:
    """A layer, a norm, and an output layer tied to the input embedding, whose bias is added apart (`EsmLMHead`)."""

    def __init__(self, spec: EsmSpec, build: Builder):
        self.decoder = Linear(build.parameters[0].tensor, None)
        self.bias = build.parameter("lm_head.bias", (spec.vocab_size,))
        self.dense = build.linear("lm_head.dense", spec.hidden_size, spec.hidden_size, bias=True)
        self.norm = build.layer_norm("lm_head.layer_norm", spec.hidden_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self._transformed(hidden)
        return add(self.decoder(out), self.bias)

    def _transformed(self, hidden: Tensor) -> Tensor:
        out = self.dense(hidden)
        out = gelu(out)
        return self.norm(out)


HEADS: dict[str, Head] = {
    "masked-lm": lambda spec, build: MaskedLM(Esm(spec, build), Predictions(spec, build)),
    "sequence-classification": lambda spec, build: Classification(Esm(spec, build), RobertaClassifier(spec, build)),
}
