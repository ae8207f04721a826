"""ModernBERT: layers that attend to near tokens and layers that attend to all, rotary positions, gated feed-forward layers.

After transformers' modeling_modernbert.py (5.23), which no longer takes padding out.
"""

from __future__ import annotations

from typing import Literal, Protocol, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.attention import Attention, bidirectional_mask
from estimator.families.build import Builder
from estimator.families.encoders import Classification, EncoderSpec, MaskedLM, refuse_quantization
from estimator.families.heads import Head
from estimator.families.modules import ACTIVATIONS, rotary_table, rotate_half
from estimator.families.spec import Activation, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.pointwise import add, div, dropout, mul, to
from estimator.tape.reduction import sum_dim
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape, select, split, transpose, unbind, unsqueeze

Kind = Literal["full_attention", "sliding_attention"]


class ModernBertSpec(EncoderSpec):
    can = Abilities(gguf=True, graph="modern-bert")
    modelled = EncoderSpec.modelled | {"sparse_prediction": (False,), "rope_scaling": (None,)}
    embeds = True

    max_position_embeddings: Size = 8192
    hidden_act: Activation = called("hidden_activation", "gelu")
    norm_bias: bool = False
    attention_bias: bool = False
    attention_dropout: Probability = 0.0
    embedding_dropout: Probability = 0.0
    mlp_bias: bool = False
    mlp_dropout: Probability = 0.0
    decoder_bias: bool = True
    classifier_pooling: Literal["cls", "mean"] = "cls"
    classifier_dropout: Probability = 0.0
    classifier_bias: bool = False
    classifier_activation: Activation = "gelu"
    local_attention: Size = 128
    global_attn_every_n_layers: Size = 3
    layer_types: tuple[Kind, ...] | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What each layer attends to."""
        if self.layer_types is not None:
            return self.layer_types
        every = self.global_attn_every_n_layers
        return tuple("sliding_attention" if i % every else "full_attention" for i in range(self.num_hidden_layers))

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if len(self.kinds) != self.num_hidden_layers:
            raise ValueError(f"layer_types has {len(self.kinds)} entries for {self.num_hidden_layers} layers")
        return self


SPECS = {"modernbert": ModernBertSpec}


class SelfAttention:
    def __init__(self, spec: ModernBertSpec, build: Builder):
        size = spec.hidden_size
        self.heads = spec.num_attention_heads
        self.Wqkv = build.linear("attn.Wqkv", size, 3 * size, spec.attention_bias)
        self.Wo = build.linear("attn.Wo", size, size, spec.attention_bias)
        self.dropout = spec.attention_dropout
        self.attend = Attention(build.attention, dropout=spec.attention_dropout, causal=False)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, size = hidden.shape
        qkv = self.Wqkv(hidden)
        qkv = reshape(qkv, (batch, tokens, 3, self.heads, size // self.heads))
        q, k, v = unbind(qkv, 2)
        q = transpose(q, 1, 2)
        k = transpose(k, 1, 2)
        v = transpose(v, 1, 2)
        q, k = rotate_in_float32(q, k, cos, sin)
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, (batch, tokens, size))
        out = dropout(self.Wo(out), self.dropout)
        return out, weights


def rotate_in_float32(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The rotary embedding in float32 (`apply_rotary_pos_emb`), to which each tensor is cast twice."""
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    f = dtypes.float32
    rotated_q = add(mul(to(q, f), c), mul(rotate_half(to(q, f)), s))
    rotated_k = add(mul(to(k, f), c), mul(rotate_half(to(k, f)), s))
    return to(rotated_q, q.dtype), to(rotated_k, q.dtype)


class Blocks(Protocol):
    """What feed-forward layers and heads are made by."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def hidden_act(self) -> Activation: ...
    @property
    def norm_bias(self) -> bool: ...
    @property
    def mlp_bias(self) -> bool: ...
    @property
    def mlp_dropout(self) -> float: ...
    @property
    def classifier_bias(self) -> bool: ...
    @property
    def classifier_activation(self) -> Activation: ...


class MLP:
    def __init__(self, spec: Blocks, build: Builder):
        self.sizes = (spec.intermediate_size,) * 2
        self.Wi = build.linear("mlp.Wi", spec.hidden_size, 2 * spec.intermediate_size, spec.mlp_bias)
        self.Wo = build.linear("mlp.Wo", spec.intermediate_size, spec.hidden_size, spec.mlp_bias)
        self.act, self.dropout = ACTIVATIONS[spec.hidden_act], spec.mlp_dropout

    def __call__(self, x: Tensor) -> Tensor:
        first, gate = split(self.Wi(x), self.sizes, 2)
        return self.Wo(dropout(mul(self.act(first), gate), self.dropout))


class EncoderLayer:
    """The first layer has no norm before its attention."""

    def __init__(self, first: bool, spec: ModernBertSpec, build: Builder):
        self.attn_norm = None if first else build.layer_norm("attn_norm", spec.hidden_size, spec.norm_bias)
        self.attn = SelfAttention(spec, build)
        self.mlp_norm = build.layer_norm("mlp_norm", spec.hidden_size, spec.norm_bias)
        self.mlp = MLP(spec, build)

    def __call__(self, hidden: Tensor, mask: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        attended, _ = self.attn(hidden if self.attn_norm is None else self.attn_norm(hidden), cos, sin, mask)
        out = add(hidden, attended)
        return add(out, self.mlp(self.mlp_norm(out)))


class ModernBert:
    """The body of the model."""

    def __init__(self, spec: ModernBertSpec, build: Builder):
        refuse_quantization(build, spec.model_type)
        self.spec, self.attention = spec, build.attention
        self.head_dim = spec.hidden_size // spec.num_attention_heads
        self.embeddings = build.embedding("embeddings.tok_embeddings", spec.vocab_size, spec.hidden_size)
        self.embedding_norm = build.layer_norm("embeddings.norm", spec.hidden_size, spec.norm_bias)
        kinds = [(i == 0, kind) for i, kind in enumerate(spec.kinds)]
        first = 1 + max(spec.kinds.index(kind) for kind in spec.kinds)
        self.layers = build.layers(kinds, lambda kind: EncoderLayer(kind[0], spec, build), first=first)
        self.final_norm = build.layer_norm("final_norm", spec.hidden_size, spec.norm_bias)
        names = [f"{kind}_{name}" for kind in sorted(set(spec.kinds)) for name in ("inv_freq", "original_inv_freq")]
        self.buffers = [build.buffer(name, (self.head_dim // 2,), dtypes.float32) for name in names]

    def forward(self, ids: Tensor) -> Tensor:
        tape, spec, (batch, tokens) = ids.tape, self.spec, ids.shape
        positions = empty(tape, (1, tokens), dtypes.int64, "arange")
        embedded = dropout(self.embedding_norm(self.embeddings(ids)), spec.embedding_dropout)
        window = spec.local_attention // 2
        near = bidirectional_mask(tape, batch, tokens, embedded.dtype, self.attention, window)
        tables = {kind: rotary_table(tape, tokens, self.head_dim, embedded.dtype) for kind in sorted(set(spec.kinds))}
        hidden = embedded
        for (_, kind), layer in self.layers.by_kind():
            hidden = layer(hidden, near if kind == "sliding_attention" else None, *tables[kind])
        hidden = self.final_norm(hidden)
        del positions
        return hidden


class PredictionHead:
    def __init__(self, spec: Blocks, build: Builder, name: str = "head"):
        self.dense = build.linear(name + ".dense", spec.hidden_size, spec.hidden_size, spec.classifier_bias)
        self.act = ACTIVATIONS[spec.classifier_activation]
        self.norm = build.layer_norm(name + ".norm", spec.hidden_size, spec.norm_bias)

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.norm(self.act(self.dense(hidden)))


class Predictions:
    """The output layer of a masked language model."""

    def __init__(self, spec: ModernBertSpec, build: Builder):
        self.head = PredictionHead(spec, build)
        self.decoder = build.head(spec.hidden_size, spec.vocab_size, tied=True, bias=spec.decoder_bias, name="decoder")

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.decoder(self.head(hidden))


class Classifier:
    """Class scores of a sequence, from the last hidden state of its first token or the mean of all, by `classifier_pooling`."""

    def __init__(self, spec: ModernBertSpec, build: Builder):
        self.pooling, self.dropout = spec.classifier_pooling, spec.classifier_dropout
        self.head = PredictionHead(spec, build)
        self.classifier = build.score(spec.hidden_size, bias=True, name="classifier")

    def __call__(self, hidden: Tensor) -> Tensor:
        if self.pooling == "cls":
            pooled = select(hidden, 1)
        else:
            mask = empty(hidden.tape, hidden.shape[:2], dtypes.bool_, "ones")
            total = sum_dim(mul(hidden, unsqueeze(mask, 2)), 1)
            pooled = div(total, empty(hidden.tape, (hidden.shape[0], 1), dtypes.int64, "sum"))
            del total
        out = self.head(pooled)
        out = dropout(out, self.dropout)
        return self.classifier(out)


HEADS: dict[str, Head] = {
    "masked-lm": lambda spec, build: MaskedLM(ModernBert(spec, build), Predictions(spec, build), wide=True),
    "sequence-classification": lambda spec, build: Classification(ModernBert(spec, build), Classifier(spec, build)),
}
