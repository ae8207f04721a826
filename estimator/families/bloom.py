"""BLOOM: linear biases (ALiBi) instead of positions, a norm on the embeddings, attention and GELU of its own.

After transformers' modeling_bloom.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.heads import decoder_heads
from estimator.families.modules import gelu_fast
from estimator.families.spec import Depth, FullHeadsSpec, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.autograd import attach, record
from estimator.tape.matmul import baddbmm, bmm
from estimator.tape.pointwise import add, add_scalar, dropout, mul, mul_scalar, softmax, tanh, to
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape, select, transpose


class BloomSpec(FullHeadsSpec):
    in_sglang = "none"
    can = Abilities(batches=("padding",), gguf=True, graph="bloom-1")
    scales_activations = True
    module_dropouts = ("attention_dropout",)
    modelled = {"slow_but_exact": (False,)}
    attentions = ("eager",)

    num_hidden_layers: Depth = called("n_layer")
    num_attention_heads: Size = called("n_head")
    max_position_embeddings: Size | None = None
    hidden_act: Literal["gelu"] = "gelu"
    tie_word_embeddings: bool = True
    hidden_dropout: Probability = 0.0
    apply_residual_connection_post_layernorm: bool = False

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"n_embed"}

    @model_validator(mode="before")
    @classmethod
    def _width(cls, given: Any) -> Any:
        """Published configs call the width `n_embed`."""
        if not isinstance(given, Mapping) or given.get("n_embed") is None:
            return given
        return {name: value for name, value in given.items() if name != "n_embed"} | {"hidden_size": given["n_embed"]}

    @model_validator(mode="after")
    def _four_times(self) -> Self:
        if self.intermediate_size != 4 * self.hidden_size:
            raise ValueError(f"intermediate_size {self.intermediate_size} is not 4 x hidden_size {self.hidden_size}")
        return self


SPECS = {"bloom": BloomSpec}


class SelfAttention:
    def __init__(self, spec: BloomSpec, build: Builder):
        size = spec.hidden_size
        self.heads = spec.num_attention_heads
        self.query_key_value = build.linear("self_attention.query_key_value", size, 3 * size, bias=True)
        self.dense = build.linear("self_attention.dense", size, size, bias=True)
        self.hidden_dropout = spec.hidden_dropout if build.training else 0.0
        self.attention_dropout = spec.attention_dropout if build.training else 0.0

    def __call__(self, hidden: Tensor, residual: Tensor, alibi: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        batch, tokens, size = hidden.shape
        each, count = size // self.heads, batch * self.heads
        fused = reshape(self.query_key_value(hidden), (batch, tokens, self.heads, 3, each))
        q, k, v = (transpose(select(fused, 3), 1, 2) for _ in range(3))
        q = reshape(q, (count, tokens, each))
        k = transpose(reshape(k, (count, tokens, each)), 1, 2)
        v = reshape(v, (count, tokens, each))
        scores = baddbmm(alibi, q, k)
        weights = reshape(scores, (batch, self.heads, tokens, tokens))
        weights = add(weights, mask)
        shares = to(softmax(weights, dtypes.float32), q.dtype)
        shares = dropout(shares, self.attention_dropout)
        context = bmm(reshape(shares, (count, tokens, tokens)), v)
        context = self._merge(context, (batch, tokens, size))
        out = self.dense(context)
        out = add(residual, dropout(out, self.hidden_dropout))
        return out, shares

    def _merge(self, context: Tensor, shape: tuple[int, int, int]) -> Tensor:
        """[batch x heads, tokens, size] to [batch, tokens, heads x size]."""
        batch, tokens, size = shape
        return reshape(transpose(reshape(context, (batch, self.heads, tokens, size // self.heads)), 1, 2), shape)


def gelu(x: Tensor) -> Tensor:
    """`GeLUFunction`: written out in Python, in forward and in backward, and saves x alone."""
    tape = x.tape
    node = record("GeLUFunctionBackward", (x,), (x,), _gelu_back)
    wanted, tape.grad_enabled = tape.grad_enabled, False
    out = gelu_fast(x)
    tape.grad_enabled = wanted
    return attach(node, out)


def _gelu_back(g: Tensor, x: Tensor) -> Tensor:
    t = tanh(mul(mul_scalar(x), add_scalar(mul(mul_scalar(x), x))))
    slope = add(
        mul(mul_scalar(x), mul(add_scalar(mul(t, t)), add_scalar(mul(mul_scalar(x), x)))),
        mul_scalar(add_scalar(t)),
    )
    return mul(slope, g)


class MLP:
    def __init__(self, spec: BloomSpec, build: Builder):
        self.dense_h_to_4h = build.linear("mlp.dense_h_to_4h", spec.hidden_size, spec.intermediate_size, bias=True)
        self.dense_4h_to_h = build.linear("mlp.dense_4h_to_h", spec.intermediate_size, spec.hidden_size, bias=True)
        self.dropout = spec.hidden_dropout if build.training else 0.0

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        out = gelu(self.dense_h_to_4h(x))
        down = self.dense_4h_to_h(out)
        return add(residual, dropout(down, self.dropout))


class Block:
    def __init__(self, spec: BloomSpec, build: Builder):
        self.after = spec.apply_residual_connection_post_layernorm
        self.input_layernorm = build.layer_norm("input_layernorm", spec.hidden_size)
        self.self_attention = SelfAttention(spec, build)
        self.post_attention_layernorm = build.layer_norm("post_attention_layernorm", spec.hidden_size)
        self.mlp = MLP(spec, build)

    def __call__(self, hidden: Tensor, alibi: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.input_layernorm(hidden)
        residual = normed if self.after else hidden
        attended, weights = self.self_attention(normed, residual, alibi, mask)
        normed = self.post_attention_layernorm(attended)
        residual = normed if self.after else attended
        return self.mlp(normed, residual), weights


class Bloom:
    """The body of the model."""

    def __init__(self, spec: BloomSpec, build: Builder):
        size = spec.hidden_size
        self.heads = spec.num_attention_heads
        self.word_embeddings = build.embedding("word_embeddings", spec.vocab_size, size)
        self.word_embeddings_layernorm = build.layer_norm("word_embeddings_layernorm", size)
        self.h = build.layers(spec.num_hidden_layers, lambda _: Block(spec, build), holding=True)
        self.ln_f = build.layer_norm("ln_f", size)

    def forward(self, ids: Tensor) -> Tensor:
        tape = ids.tape
        batch, tokens = ids.shape
        embeds = self.word_embeddings(ids)
        hidden = self.word_embeddings_layernorm(embeds)
        if tape.mask_given:
            alibi = self._alibi_by_mask(hidden)
        else:
            slopes = empty(tape, (self.heads, 1, 1), dtypes.float32, "pow")  # which live to the end
            alibi = mul(slopes, empty(tape, (tokens,), dtypes.int64, "arange"))
            alibi = to(empty(tape, (batch * self.heads, 1, tokens), dtypes.float32, "repeat"), hidden.dtype)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, "eager", None)
        assert mask is not None
        for block in self.h:
            outputs = block(hidden, alibi, mask)  # the attention weights live until the next block is done
            hidden = outputs[0]
        return self.ln_f(hidden)

    def _alibi_by_mask(self, hidden: Tensor) -> Tensor:
        """`build_alibi_tensor`: of each sequence, whose tokens are counted in its mask."""
        tape, (batch, tokens, _) = hidden.tape, hidden.shape
        slopes = empty(tape, (self.heads, 1), dtypes.float32, "pow")
        alibi = mul(slopes, empty(tape, (batch, 1, tokens), dtypes.int64, "mul"))
        return to(reshape(alibi, (batch * self.heads, 1, tokens)), hidden.dtype)


HEADS = decoder_heads(Bloom)
