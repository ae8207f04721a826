"""MPT: linear biases (ALiBi) as long as the longest sequence, no biases in any layer, attention of its own.

After transformers' modeling_mpt.py (5.23), which ignores some of what its config.json says: dropout, learned positions and
the factors of feed-forward layers, embeddings and logits.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from estimator.families.abilities import Abilities
from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.heads import decoder_heads
from estimator.families.spec import Depth, FullHeadsSpec, Size, called
from estimator.tape import dtypes
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, clamp, gelu, mul_scalar, softmax, to
from estimator.tape.selection import masked_fill
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, narrow, reshape, split, transpose


class AttentionSpec(BaseModel):
    """`attn_config`; what else stands in it is not read by transformers."""

    model_config = ConfigDict(frozen=True)

    attn_type: Literal["multihead_attention"] = "multihead_attention"
    attn_pdrop: Literal[0] = 0
    clip_qkv: float | None = None
    softmax_scale: float | None = None
    prefix_lm: Literal[False] = False
    qk_ln: Literal[False] = False
    attn_uses_sequence_id: Literal[False] = False
    alibi: Literal[True] = True
    alibi_bias_max: int = 8


class MptSpec(FullHeadsSpec):
    in_sglang = "none"
    can = Abilities(gguf=True, graph="mpt-1")
    last_vllm = "0.28"
    scales_activations = True
    modelled = {
        "no_bias": (True,),
        "expansion_ratio": (4,),
        "emb_pdrop": (0, 0.0),
        "resid_pdrop": (0, 0.0),
        "logit_scale": (None,),
        "embedding_fraction": (1, 1.0),
    }
    attentions = ("eager",)
    learned_positions = True

    hidden_size: Size = called("d_model")
    num_hidden_layers: Depth = called("n_layers")
    num_attention_heads: Size = called("n_heads")
    max_position_embeddings: Size = called("max_seq_len", 2048)
    hidden_act: Literal["gelu"] = "gelu"
    tie_word_embeddings: bool = True
    attn_config: AttentionSpec = Field(default_factory=AttentionSpec)

    @model_validator(mode="after")
    def _four_times(self) -> Self:
        if self.intermediate_size != 4 * self.hidden_size:
            raise ValueError(f"intermediate_size {self.intermediate_size} is not 4 x hidden_size {self.hidden_size}")
        return self


SPECS = {"mpt": MptSpec}


class SelfAttention:
    def __init__(self, spec: MptSpec, build: Builder):
        size = spec.hidden_size
        self.heads = spec.num_attention_heads
        self.clip = spec.attn_config.clip_qkv
        self.wqkv = build.linear("attn.Wqkv", size, 3 * size)
        self.out_proj = build.linear("attn.out_proj", size, size)

    def __call__(self, hidden: Tensor, alibi: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        batch, tokens, size = hidden.shape
        heads = (batch, tokens, self.heads, size // self.heads)
        mixed = self.wqkv(hidden)
        if self.clip:
            mixed = clamp(mixed)
        q, k, v = split(mixed, (size, size, size), 2)
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        scores = mul_scalar(matmul(q, transpose(k, 2, 3)))
        scores = add(scores, narrow(alibi, 2, tokens))
        scores = masked_fill(scores, mask)
        weights = to(softmax(to(scores, dtypes.float32)), v.dtype)
        context = matmul(weights, v)
        context = reshape(contiguous(transpose(context, 1, 2)), (batch, tokens, size))
        return self.out_proj(context), weights


class MLP:
    def __init__(self, spec: MptSpec, build: Builder):
        self.up_proj = build.linear("ffn.up_proj", spec.hidden_size, spec.intermediate_size)
        self.down_proj = build.linear("ffn.down_proj", spec.intermediate_size, spec.hidden_size)

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        out = gelu(self.up_proj(x))
        down = self.down_proj(out)
        return add(down, residual)


class Block:
    def __init__(self, spec: MptSpec, build: Builder):
        self.norm_1 = build.layer_norm("norm_1", spec.hidden_size, bias=False)
        self.attn = SelfAttention(spec, build)
        self.norm_2 = build.layer_norm("norm_2", spec.hidden_size, bias=False)
        self.ffn = MLP(spec, build)

    def __call__(self, hidden: Tensor, alibi: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.norm_1(hidden)
        attended, weights = self.attn(normed, alibi, mask)
        out = add(attended, hidden)
        normed = self.norm_2(out)
        return self.ffn(normed, out), weights


class Mpt:
    """The body of the model."""

    def __init__(self, spec: MptSpec, build: Builder):
        self.spec = spec
        self.wte = build.embedding("wte", spec.vocab_size, spec.hidden_size)
        self.blocks = build.layers(spec.num_hidden_layers, lambda _: Block(spec, build), holding=True)
        self.norm_f = build.layer_norm("norm_f", spec.hidden_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        tape = ids.tape
        batch, tokens = ids.shape
        embeds = hidden = self.wte(ids)
        alibi = self._alibi(tape)
        mask = _mask(tape, batch, tokens, embeds.dtype)
        for block in self.blocks:
            outputs = block(hidden, alibi, mask)  # the attention weights live until the next block is done
            hidden = outputs[0]
        return self.norm_f(hidden)

    def _alibi(self, tape: Tape) -> Tensor:
        """A bias for each head and distance, [heads, 1, longest sequence], in float32."""
        return empty(tape, (self.spec.num_attention_heads, 1, self.spec.max_position_embeddings), dtypes.float32, "mul")


def _mask(tape: Tape, batch: int, tokens: int, dtype: dtypes.DType) -> Tensor:
    """The usual mask of numbers, turned back to booleans."""
    numbers = causal_mask(tape, batch, tokens, dtype, "eager", None)
    assert numbers is not None
    return to(numbers, dtypes.bool_)


HEADS = decoder_heads(Mpt)
