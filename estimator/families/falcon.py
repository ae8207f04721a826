"""Falcon: the 7B with one key head for all queries, the 40B with grouped heads, and Falcon-RW with ALiBi.

After transformers' modeling_falcon.py (5.23), which calls torch's attention by itself and always with a mask.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.contract.errors import InvalidJob
from estimator.families.abilities import Abilities
from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.falcon_attention import FalconAttention, FalconLinear
from estimator.families.heads import decoder_heads
from estimator.families.modules import ACTIVATIONS, Module, rotary_table
from estimator.families.rotary import RotarySpec, frequencies
from estimator.families.spec import Activation, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.pointwise import add, add_, add_scalar, dropout
from estimator.tape.tensor import Tensor, binary, empty, unary


class FalconSpec(RotarySpec):
    in_sglang = "none"
    can = Abilities(batches=("padding",), gguf=True, graph="falcon-1")
    flash_3 = False
    adds_in_place = own_products = scales_activations = True
    module_dropouts = ("attention_dropout",)

    num_key_value_heads: Size = called("num_kv_heads")
    intermediate_size: Size = called("ffn_hidden_size")
    hidden_act: Activation = called("activation", "gelu")
    tie_word_embeddings: bool = True
    hidden_dropout: Probability = 0.0
    num_ln_in_parallel_attn: Literal[1, 2] | None = None
    alibi: bool = False
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    bias: bool = False

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return super().follows(hidden, heads) | {"intermediate_size": 4 * hidden}

    @model_validator(mode="after")
    def _known(self) -> Self:
        new, heads = self.new_decoder_architecture, self.num_attention_heads
        if self.head_dim * heads != self.hidden_size:
            raise ValueError(f"hidden_size {self.hidden_size} is not head_dim {self.head_dim} x {heads} heads")
        if not (new or self.multi_query or self.num_key_value_heads == heads):
            raise ValueError(f"num_kv_heads must be {heads} without multi_query and new_decoder_architecture")
        if new and not self.parallel_attn:
            raise ValueError("new_decoder_architecture needs parallel_attn")
        if self.num_ln_in_parallel_attn == 2 and not new:
            raise ValueError("num_ln_in_parallel_attn 2 needs new_decoder_architecture")
        return self

    @property
    def two_norms(self) -> bool:
        """Whether attention and feed-forward layers, side by side, have a norm each."""
        return self.new_decoder_architecture and self.num_ln_in_parallel_attn != 1

    def config(self) -> dict[str, Any]:
        """Without `head_dim`, which follows."""
        return {name: value for name, value in super().config().items() if name != "head_dim"}


SPECS = {"falcon": FalconSpec}


def dropout_add(x: Tensor, residual: Tensor, p: float) -> Tensor:
    out = dropout(x, p)
    return add(residual, out)


class FalconMLP:
    def __init__(self, spec: FalconSpec, build: Builder):
        size, inner = spec.hidden_size, spec.intermediate_size
        self.dense_h_to_4h = build.linear("mlp.dense_h_to_4h", size, inner, spec.bias, FalconLinear)
        self.act = ACTIVATIONS[spec.hidden_act]
        self.dense_4h_to_h = build.linear("mlp.dense_4h_to_h", inner, size, spec.bias, FalconLinear)

    def __call__(self, x: Tensor) -> Tensor:
        out = self.act(self.dense_h_to_4h(x))
        return self.dense_4h_to_h(out)


class FalconDecoderLayer:
    def __init__(self, spec: FalconSpec, build: Builder):
        self.self_attention = FalconAttention(spec, build)
        self.mlp = FalconMLP(spec, build)
        after: Module | None = None
        if not spec.parallel_attn:
            after = build.layer_norm("post_attention_layernorm", spec.hidden_size)
        self.post_attention_layernorm = after
        self.input_layernorm = build.layer_norm("ln_attn" if spec.two_norms else "input_layernorm", spec.hidden_size)
        self.ln_mlp = build.layer_norm("ln_mlp", spec.hidden_size) if spec.two_norms else None
        self.attention_dropout = spec.attention_dropout if build.training else 0.0
        self.hidden_dropout = spec.hidden_dropout if build.training else 0.0

    def __call__(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, alibi: Tensor | None, positions: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        residual = hidden
        normed = self.input_layernorm(hidden)
        to_mlp = normed if self.ln_mlp is None else self.ln_mlp(hidden)
        attended, weights = self.self_attention(normed, cos, sin, mask, alibi)
        if self.post_attention_layernorm is not None:
            residual = dropout_add(attended, residual, self.attention_dropout)
            to_mlp = self.post_attention_layernorm(residual)
        fed = self.mlp(to_mlp)
        if self.post_attention_layernorm is None:
            fed = add_(fed, attended)
        out = dropout_add(fed, residual, self.hidden_dropout)
        return out, weights


class FalconModel:
    """The body of the model."""

    def __init__(self, spec: FalconSpec, build: Builder):
        if spec.alibi and build.attention not in ("eager", "sdpa"):
            raise InvalidJob(
                f"transformers runs Falcon's ALiBi in eager and sdpa, not in {build.attention}", "training.attention"
            )
        self.spec, self.attention = spec, build.attention
        self.word_embeddings = build.embedding("word_embeddings", spec.vocab_size, spec.hidden_size)
        self.h = build.layers(spec.num_hidden_layers, lambda _: FalconDecoderLayer(spec, build), holding=True)
        self.ln_f = build.layer_norm("ln_f", spec.hidden_size)
        self.buffers = frequencies(build, spec.head_dim)

    def forward(self, ids: Tensor) -> Tensor:
        tape, spec = ids.tape, self.spec
        batch, tokens = ids.shape
        embeds = self.word_embeddings(ids)
        ones = alibi = None
        if spec.alibi:
            ones = empty(tape, (batch, tokens), dtypes.int64, "ones")
            alibi = empty(tape, (batch, spec.num_attention_heads, 1, tokens), embeds.dtype, "alibi")
        positions = add_scalar(empty(tape, (1, tokens), dtypes.int64, "arange"))
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, window=0)  # at any length
        if alibi is not None and mask is not None:
            mask = _biased(mask, alibi, batch, embeds.dtype)
        hidden = embeds
        cos, sin = rotary_table(tape, tokens, spec.head_dim, hidden.dtype)
        for block in self.h:
            outputs = block(hidden, cos, sin, mask, alibi, positions)
            hidden = outputs[0]  # the weights are held until the next layer is done
        out = self.ln_f(hidden)
        del ones, outputs
        return out


def _biased(mask: Tensor, alibi: Tensor, batch: int, dtype: dtypes.DType) -> Tensor:
    """The causal mask with ALiBi's numbers in it: one for each head."""
    if mask.dtype is dtypes.bool_:
        mask = empty(mask.tape, (batch, *mask.shape[1:]), dtype, "where")
    scaled = unary("div", alibi)
    masked = unary("lt", mask, dtypes.bool_)
    return binary("masked_fill", scaled, masked, dtype)


HEADS = decoder_heads(FalconModel)
