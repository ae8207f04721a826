"""XGLM: norms before the blocks, scaled embeddings, positions that are computed, and attention in plain operations of its own.

After transformers' modeling_xglm.py (5.23).
"""

from __future__ import annotations

from estimator.contract.errors import NotModelled
from estimator.families.attention import causal_mask
from estimator.families.bart import scaled
from estimator.families.build import Builder
from estimator.families.heads import language_model
from estimator.families.modules import ACTIVATIONS, Embedding
from estimator.families.opt import OFFSET
from estimator.families.spec import Activation, Depth, FullHeadsSpec, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.checkpoint import EVERY
from estimator.tape.matmul import bmm
from estimator.tape.pointwise import add, dropout, mul_scalar, softmax, to
from estimator.tape.selection import minimum
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import reshape, transpose


class XGLMSpec(FullHeadsSpec):
    in_sglang = "none"
    last_vllm = "none"
    attentions = ("eager",)
    by_position = EVERY
    learned_positions = True
    modelled = {"layerdrop": (0, 0.0), "add_cross_attention": (False,), "tie_word_embeddings": (True,)}

    hidden_size: Size = called("d_model")
    num_hidden_layers: Depth = called("num_layers")
    num_attention_heads: Size = called("attention_heads")
    intermediate_size: Size = called("ffn_dim")
    hidden_act: Activation = called("activation_function", "gelu")
    tie_word_embeddings: bool = True
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    activation_dropout: Probability = 0.0


SPECS = {"xglm": XGLMSpec}


class SelfAttention:
    """Heads of all sequences in one dimension. Its softmax is in float32 where the scores are in float16."""

    def __init__(self, spec: XGLMSpec, build: Builder):
        size = spec.hidden_size
        self.heads, self.dropout = spec.num_attention_heads, spec.attention_dropout if build.training else 0.0
        self.k, self.v, self.q, self.out = [
            build.linear(f"self_attn.{name}_proj", size, size, bias=True) for name in ("k", "v", "q", "out")
        ]

    def __call__(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        batch, tokens, size = hidden.shape
        each = size // self.heads
        by_token, by_head = (batch, tokens, self.heads, each), (batch, self.heads, tokens, tokens)
        flat = (batch * self.heads, tokens, each)
        q = mul_scalar(self.q(hidden))
        k = self.k(hidden)
        v = self.v(hidden)
        k = transpose(reshape(k, by_token), 1, 2)
        v = transpose(reshape(v, by_token), 1, 2)
        q = transpose(reshape(q, by_token), 1, 2)
        q = reshape(q, flat)
        k = reshape(k, flat)
        v = reshape(v, flat)
        scores = bmm(q, transpose(k, 1, 2))
        scores = add(reshape(scores, by_head), mask)
        scores = minimum(scores, empty(hidden.tape, (), dtypes.float32, "full"))
        scores = reshape(scores, (-1, tokens, tokens))
        scores = to(softmax(scores, dtypes.float32), dtypes.float16) if scores.dtype is dtypes.float16 else softmax(scores)
        weights = reshape(scores, by_head)
        shares = dropout(scores, self.dropout)
        out = bmm(shares, v)
        out = transpose(reshape(out, (batch, self.heads, tokens, each)), 1, 2)
        out = reshape(out, hidden.shape)
        out = self.out(out)
        return out, weights


class DecoderLayer:
    def __init__(self, spec: XGLMSpec, build: Builder):
        size, wide = spec.hidden_size, spec.intermediate_size
        self.self_attn = SelfAttention(spec, build)
        self.self_attn_layer_norm = build.layer_norm("self_attn_layer_norm", size)
        self.fc1 = build.linear("fc1", size, wide, bias=True)
        self.fc2 = build.linear("fc2", wide, size, bias=True)
        self.final_layer_norm = build.layer_norm("final_layer_norm", size)
        self.act = ACTIVATIONS[spec.hidden_act]
        self.dropout, self.activation_dropout = (p if build.training else 0.0 for p in (spec.dropout, spec.activation_dropout))

    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        residual = hidden
        out = self.self_attn_layer_norm(hidden)
        out, _ = self.self_attn(out, mask)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        residual = out
        out = self.final_layer_norm(out)
        out = self.act(self.fc1(out))
        out = dropout(out, self.activation_dropout)
        out = self.fc2(out)
        out = dropout(out, self.dropout)
        return add(residual, out)


class XGLM:
    """The body of the model."""

    def __init__(self, spec: XGLMSpec, build: Builder):
        self.dropout = spec.dropout if build.training else 0.0
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        if type(self.embed_tokens) is not Embedding:
            raise NotModelled("training or adapting xglm's scaled embed_tokens apart is not modelled", "training.adapter")
        rows = spec.max_position_embeddings or 0
        self.table = build.buffer("embed_positions.weights", (rows + OFFSET, spec.hidden_size), build.dtype)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: DecoderLayer(spec, build))
        self.layer_norm = build.layer_norm("layer_norm", spec.hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = scaled(self.embed_tokens, ids)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, "eager", None)
        positions = empty(tape, (1, tokens), dtypes.int64, "arange")
        hidden = add(embeds, self._places(positions))
        hidden = dropout(hidden, self.dropout)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        hidden = self.layer_norm(hidden)
        del positions
        return hidden

    def _places(self, positions: Tensor) -> Tensor:
        """Rows of the table, from the second on."""
        moved = unary("add", positions)
        rows = empty(positions.tape, (1, positions.shape[1], self.table.shape[1]), self.table.dtype, "index_select")
        del moved
        return rows


HEADS = language_model(XGLM)
