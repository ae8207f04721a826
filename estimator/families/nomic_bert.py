"""BERT with rotary positions: NomicBERT, whose layers are gated and have no biases; Jina's third embeddings; GTE.

After transformers' modeling_nomic_bert.py, modeling_jina_embeddings_v3.py and modeling_gte.py (5.23).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any, ClassVar

from pydantic import Field

from estimator.families.abilities import Abilities
from estimator.families.attention import Attention
from estimator.families.bert import RobertaClassifier
from estimator.families.build import Builder
from estimator.families.encoders import Classification, MaskedLM, PostNormSpec, Predictions, refuse_quantization
from estimator.families.feed_forward import GatedMLP, TwoLayerMLP
from estimator.families.heads import Head
from estimator.families.modules import ACTIVATIONS, Module, rotary_table, rotate
from estimator.families.rotary import frequencies
from estimator.families.spec import Activation, ModelSpec, Probability, Size
from estimator.tape import dtypes
from estimator.tape.pointwise import add, dropout, mul, tanh
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape, select, transpose


class RotaryBertSpec(PostNormSpec):
    """What the three have in common."""

    biased: ClassVar[bool] = True
    """Whether attention's linear layers have biases."""
    counts: ClassVar[bool] = True
    """Whether numbers of positions and of token types live with the model."""
    positioned: ClassVar[bool] = False
    """Whether layers are called with positions, which checkpoints hold."""

    head_dim: Size
    classifier_dropout: Probability | None = None

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"head_dim": hidden // heads}


class NomicBertSpec(RotaryBertSpec):
    can = Abilities(gguf=True, graph="nomic-bert")
    embeds = True
    biased, positioned = False, True

    max_position_embeddings: Size = 2048
    hidden_act: Activation = "silu"
    hidden_dropout_prob: Probability = 0.0
    attention_probs_dropout_prob: Probability = 0.0
    type_vocab_size: Size = 2


class JinaSpec(RotaryBertSpec):
    can = Abilities(gguf=True, graph="jina-3")
    embeds = True

    max_position_embeddings: Size = 8194
    type_vocab_size: Size = 1


class GteSpec(RotaryBertSpec):
    """Without `type_vocab_size` its embeddings are of words alone."""

    embeds = True
    counts = False

    max_position_embeddings: Size = 8192
    attention_probs_dropout_prob: Probability = 0.0
    type_vocab_size: Annotated[int, Field(ge=0, le=2**31)] = 1


SPECS: dict[str, type[ModelSpec]] = {"nomic_bert": NomicBertSpec, "jina_embeddings_v3": JinaSpec, "gte": GteSpec}


class Embeddings:
    """Of words and token types; positions are rotations."""

    def __init__(self, spec: Any, build: Builder):
        types = spec.type_vocab_size
        self.word = build.embedding("embeddings.word_embeddings", spec.vocab_size, spec.hidden_size)
        self.token_type = build.embedding("embeddings.token_type_embeddings", types, spec.hidden_size) if types else None
        self.holding = spec.counts
        self.norm = build.layer_norm("embeddings.LayerNorm", spec.hidden_size)
        self.dropout = spec.hidden_dropout_prob
        names, shape = ("position_ids", "token_type_ids"), (1, spec.max_position_embeddings)
        self.buffers = [build.buffer(name, shape, dtypes.int64) for name in names if spec.counts]

    def __call__(self, ids: Tensor) -> Tensor:
        out = self.word(ids)
        held = None
        if self.token_type is not None:
            types = empty(ids.tape, ids.shape, dtypes.int64, "zeros")
            token_types = self.token_type(types)
            out = add(out, token_types)
            held = token_types if self.holding else None
            del token_types
        out = self.norm(out)
        out = dropout(out, self.dropout)
        del held
        return out


class SelfAttention:
    def __init__(self, spec: RotaryBertSpec, build: Builder):
        self.head_dim = spec.head_dim
        size = spec.num_attention_heads * spec.head_dim
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, size, spec.biased)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, size, spec.biased)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, size, spec.biased)
        self.o_proj = build.linear("self_attn.o_proj", size, spec.hidden_size, spec.biased)
        self.attend = Attention(build.attention, False, spec.attention_probs_dropout_prob, cast_back=False, causal=False)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = transpose(reshape(self.q_proj(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_proj(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        q, k = rotate(q, k, cos, sin)
        out, weights = self.attend(q, k, v, None)
        out = reshape(out, (batch, tokens, -1))
        return self.o_proj(out), weights


class GteMLP:
    """A gated feed-forward layer with dropout in its middle, and a bias at its end."""

    def __init__(self, spec: GteSpec, build: Builder):
        size, width = spec.hidden_size, spec.intermediate_size
        self.act, self.dropout = ACTIVATIONS[spec.hidden_act], spec.hidden_dropout_prob
        self.gate_proj = build.linear("mlp.gate_proj", size, width)
        self.up_proj = build.linear("mlp.up_proj", size, width)
        self.down_proj = build.linear("mlp.down_proj", width, size, True)

    def __call__(self, x: Tensor) -> Tensor:
        out = mul(self.act(self.gate_proj(x)), self.up_proj(x))
        out = dropout(out, self.dropout)
        return self.down_proj(out)


class Layer:
    """A norm after each block and the sum with its input."""

    def __init__(self, spec: Any, build: Builder):
        self.attention_norm = build.layer_norm("post_attention_layernorm", spec.hidden_size)
        self.mlp = _mlp(spec, build)
        self.self_attn = SelfAttention(spec, build)
        self.mlp_norm = build.layer_norm("post_mlp_layernorm", spec.hidden_size)
        self.dropout = spec.hidden_dropout_prob

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None) -> Tensor:
        residual = hidden
        attended, _ = self.self_attn(hidden, cos, sin)
        hidden = add(residual, dropout(attended, self.dropout))
        hidden = self.attention_norm(hidden)
        residual = hidden
        hidden = self.mlp(hidden)
        hidden = add(residual, dropout(hidden, self.dropout))
        return self.mlp_norm(hidden)


def _mlp(spec: Any, build: Builder) -> Module:
    if isinstance(spec, GteSpec):
        return GteMLP(spec, build)
    return TwoLayerMLP(spec, build, ("fc1", "fc2"), bias=True) if isinstance(spec, JinaSpec) else GatedMLP(spec, build)


class RotaryBert:
    """The body of the model. `pooled`: whether it has a pooler, which a classifier reads."""

    def __init__(self, spec: RotaryBertSpec, build: Builder, pooled: bool = False):
        refuse_quantization(build, spec.model_type)
        self.size, self.positioned = spec.head_dim, spec.positioned
        self.embeddings = Embeddings(spec, build)
        self.pooler = build.linear("pooler.dense", spec.hidden_size, spec.hidden_size, bias=True) if pooled else None
        self.buffers = frequencies(build, self.size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build), last=1)

    def forward(self, ids: Tensor) -> Tensor:
        tokens = ids.shape[1]
        positions = empty(ids.tape, (1, tokens), dtypes.int64, "arange")
        embedded = self.embeddings(ids)
        hidden = embedded
        cos, sin = rotary_table(ids.tape, tokens, self.size, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, positions if self.positioned else None)
        if self.pooler is not None:
            return tanh(self.pooler(select(hidden, 1)))
        del embedded
        return hidden


def _masked_lm(spec: RotaryBertSpec, build: Builder) -> MaskedLM:
    body = RotaryBert(spec, build)
    if not isinstance(spec, NomicBertSpec):
        with build.ahead() if isinstance(spec, JinaSpec) else nullcontext():
            return MaskedLM(body, Predictions(("lm_head.dense", "lm_head.layer_norm"), "gelu", spec, build))
    names = "cls.predictions.transform.dense", "cls.predictions.transform.layer_norm"
    return MaskedLM(body, Predictions(names, spec.hidden_act, spec, build))


def _classification(spec: RotaryBertSpec, build: Builder) -> Classification:
    if isinstance(spec, JinaSpec):
        plain = RotaryBert(spec, build)
        with build.ahead():
            return Classification(plain, RobertaClassifier(spec, build))
    body = RotaryBert(spec, build, pooled=True)
    drops = spec.hidden_dropout_prob if spec.classifier_dropout is None else spec.classifier_dropout
    classifier = build.score(spec.hidden_size, bias=True, name="classifier")
    return Classification(body, lambda pooled: classifier(dropout(pooled, drops)))


HEADS: dict[str, Head] = {"masked-lm": _masked_lm, "sequence-classification": _classification}
