"""OPT: learned positions that start at 2, dropout, and for the 350M layer norms after the residuals and a narrow embedding.

After transformers' modeling_opt.py (5.23).
"""

from __future__ import annotations

from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.heads import decoder_heads
from estimator.families.modules import ACTIVATIONS
from estimator.families.spec import Activation, FullHeadsSpec, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.pointwise import add, add_scalar, dropout, mul_scalar
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, alias, empty
from estimator.tape.views import contiguous, narrow, reshape, transpose

OFFSET = 2
"""Positions that the table has before the first (`OPTLearnedPositionalEmbedding`)."""


class OPTSpec(FullHeadsSpec):
    modelled = {"layerdrop": (0, 0.0)}
    learned_positions = cached = True

    intermediate_size: Size = called("ffn_dim")
    hidden_act: Activation = called("activation_function", "relu")
    max_position_embeddings: Size = 2048
    tie_word_embeddings: bool = True
    dropout: Probability = 0.1
    word_embed_proj_dim: Size
    do_layer_norm_before: bool = True
    remove_final_layer_norm: bool = called("_remove_final_layer_norm", False)
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return super().follows(hidden, heads) | {"word_embed_proj_dim": hidden}

    @property
    def output_size(self) -> int:
        return self.word_embed_proj_dim


SPECS = {"opt": OPTSpec}


class SelfAttention:
    def __init__(self, spec: OPTSpec, build: Builder):
        size = spec.hidden_size
        self.heads = spec.num_attention_heads
        self.k_proj = build.linear("self_attn.k_proj", size, size, spec.enable_bias)
        self.v_proj = build.linear("self_attn.v_proj", size, size, spec.enable_bias)
        self.q_proj = build.linear("self_attn.q_proj", size, size, spec.enable_bias)
        self.out_proj = build.linear("self_attn.out_proj", size, size, spec.enable_bias)
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, size = hidden.shape
        heads = (batch, tokens, self.heads, size // self.heads)
        q = mul_scalar(self.q_proj(hidden))
        q = transpose(reshape(q, heads), 1, 2)
        k = self.k_proj(hidden)
        v = self.v_proj(hidden)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (batch, tokens, size)))
        out = self.out_proj(out)
        return out, weights


class DecoderLayer:
    def __init__(self, spec: OPTSpec, build: Builder):
        size, wide, bias, affine = spec.hidden_size, spec.intermediate_size, spec.enable_bias, spec.layer_norm_elementwise_affine
        self.before = spec.do_layer_norm_before
        self.dropout = spec.dropout if build.training else 0.0
        self.self_attn = SelfAttention(spec, build)
        self.act = ACTIVATIONS[spec.hidden_act]
        self.self_attn_layer_norm = build.layer_norm("self_attn_layer_norm", size, affine, affine)
        self.fc1 = build.linear("fc1", size, wide, bias)
        self.fc2 = build.linear("fc2", wide, size, bias)
        self.final_layer_norm = build.layer_norm("final_layer_norm", size, affine, affine)

    def __call__(self, hidden: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = out = hidden
        if self.before:
            out = self.self_attn_layer_norm(out)
        out, _ = self.self_attn(out, mask)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        if not self.before:
            out = self.self_attn_layer_norm(out)
        shape = out.shape
        out = reshape(out, (-1, shape[-1]))
        residual = out
        if self.before:
            out = self.final_layer_norm(out)
        out = self.fc1(out)
        out = self.act(out)
        out = self.fc2(out)
        out = dropout(out, self.dropout)
        out = reshape(add(residual, out), shape)
        if not self.before:
            out = self.final_layer_norm(out)
        return out


class OPT:
    """The body of the model."""

    def __init__(self, spec: OPTSpec, build: Builder):
        size, narrow, affine = spec.hidden_size, spec.word_embed_proj_dim, spec.layer_norm_elementwise_affine
        last = spec.do_layer_norm_before and not spec.remove_final_layer_norm
        self.attention = build.attention
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, narrow)
        self.embed_positions = build.embedding("embed_positions", spec.max_position_embeddings + OFFSET, size)
        self.project_out = build.linear("project_out", size, narrow) if narrow != size else None
        self.project_in = build.linear("project_in", narrow, size) if narrow != size else None
        self.final_layer_norm = build.layer_norm("final_layer_norm", size, affine, affine) if last else None
        self.layers = build.layers(spec.num_hidden_layers, lambda _: DecoderLayer(spec, build))

    def forward(self, ids: Tensor) -> Tensor:
        tape = ids.tape
        batch, tokens = ids.shape
        embeds = self.embed_tokens(ids)
        seen = batch, tape.past + tokens
        if tape.mask_given:
            positions = narrow(self._counted(tape, seen), 1, tokens)
        else:
            ones = empty(tape, seen, dtypes.float32, "ones")
            positions = narrow(self._positions(ones), 1, tokens)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None)
        places = self.embed_positions(add_scalar(positions))
        if self.project_in is not None:
            embeds = self.project_in(embeds)
        hidden = add(embeds, places)
        for layer in self.layers:
            hidden = layer(hidden, mask, positions)
        if self.final_layer_norm is not None:
            hidden = self.final_layer_norm(hidden)
        if self.project_out is not None:
            hidden = self.project_out(hidden)
        return hidden

    def _counted(self, tape: Tape, shape: tuple[int, int]) -> Tensor:
        """Places of the tokens, counted from the batch's own mask, whose numbers are whole already."""
        counted = empty(tape, shape, dtypes.int64, "cumsum")
        product = mul_scalar(counted)
        return add_scalar(product)

    def _positions(self, ones: Tensor) -> Tensor:
        """Places of the tokens, counted from a mask of ones."""
        counted = empty(ones.tape, ones.shape, dtypes.float32, "cumsum")
        product = mul_scalar(counted)
        less = add_scalar(product)
        del product
        positions = empty(ones.tape, ones.shape, dtypes.int64, "_to_copy")
        del less, counted
        return alias(positions, positions.shape)


HEADS = decoder_heads(OPT)
