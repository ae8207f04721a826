"""GPT-2: learned positions, layer norm, `Conv1D`, a GELU written out in Python, dropout.

After transformers' modeling_gpt2.py (5.23).
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from estimator.families.abilities import BATCHES, Abilities
from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.heads import decoder_heads
from estimator.families.modules import ACTIVATIONS, token_positions
from estimator.families.spec import Activation, DecoderSpec, Depth, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.pointwise import add, dropout
from estimator.tape.tensor import Tensor
from estimator.tape.views import contiguous, reshape, split, transpose


class GPT2Spec(DecoderSpec):
    can = Abilities(batches=BATCHES, prompts=True, bottleneck="pre-norm", megatron="classic", gguf=True, graph="gpt-2")
    own_products = True
    input_first = ("c_attn", "c_proj", "c_fc")
    module_dropouts = ("attention_dropout",)
    modelled = {"add_cross_attention": (False,), "reorder_and_upcast_attn": (False,), "scale_attn_weights": (True,)}
    learned_positions = cached = True

    hidden_size: Size = called("n_embd")
    num_hidden_layers: Depth = called("n_layer")
    num_attention_heads: Size = called("n_head")
    intermediate_size: Size = called("n_inner")
    max_position_embeddings: Size = called("n_positions", 1024)
    hidden_act: Activation = called("activation_function", "gelu_new")
    tie_word_embeddings: bool = True
    attention_dropout: Probability = called("attn_pdrop", 0.1)
    resid_pdrop: Probability = 0.1
    embd_pdrop: Probability = 0.1

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return super().follows(hidden, heads) | {"intermediate_size": 4 * hidden}

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.head_dim * self.num_attention_heads != self.hidden_size:
            raise ValueError(f"hidden_size {self.hidden_size} is not head_dim {self.head_dim} x {self.num_attention_heads} heads")
        return self


SPECS = {"gpt2": GPT2Spec}


class SelfAttention:
    def __init__(self, spec: GPT2Spec, build: Builder):
        size = spec.hidden_size
        self.heads = spec.num_attention_heads
        if build.kernels.release == "4.57":
            longest = spec.max_position_embeddings
            self.masks = (
                build.buffer("bias", (1, 1, longest, longest), dtypes.bool_),
                build.buffer("masked_bias", (), dtypes.float32),
            )
        self.c_attn = build.conv1d("attn.c_attn", size, 3 * size)
        self.c_proj = build.conv1d("attn.c_proj", size, size)
        self.dropout = spec.resid_pdrop if build.training else 0.0
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(build.attention, float32_softmax=False, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, size = hidden.shape
        heads = (batch, tokens, self.heads, size // self.heads)
        q, k, v = split(self.c_attn(hidden), (size, size, size), 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        q = transpose(reshape(q, heads), 1, 2)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (batch, tokens, size)))
        out = self.c_proj(out)
        return dropout(out, self.dropout), weights


class MLP:
    def __init__(self, spec: GPT2Spec, build: Builder):
        self.c_fc = build.conv1d("mlp.c_fc", spec.hidden_size, spec.intermediate_size)
        self.c_proj = build.conv1d("mlp.c_proj", spec.intermediate_size, spec.hidden_size)
        self.act = ACTIVATIONS[spec.hidden_act]
        self.dropout = spec.resid_pdrop if build.training else 0.0

    def __call__(self, x: Tensor) -> Tensor:
        out = self.c_fc(x)
        out = self.act(out)
        out = self.c_proj(out)
        return dropout(out, self.dropout)


class Block:
    def __init__(self, spec: GPT2Spec, build: Builder):
        self.ln_1 = build.layer_norm("ln_1", spec.hidden_size)
        self.attn = SelfAttention(spec, build)
        self.ln_2 = build.layer_norm("ln_2", spec.hidden_size)
        self.mlp = MLP(spec, build)
        self.attention_join = build.join("mh_adapter", spec.hidden_size)
        self.output_join = build.join("output_adapter", spec.hidden_size)

    def __call__(self, hidden: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.ln_1(hidden)
        attended, _ = self.attn(out, mask)
        out = self.attention_join(attended, residual)
        residual = out
        out = self.ln_2(out)
        fed = self.mlp(out)
        return self.output_join(fed, residual)


class GPT2:
    """The body of the model."""

    def __init__(self, spec: GPT2Spec, build: Builder):
        self.attention = build.attention
        self.wte = build.embedding("wte", spec.vocab_size, spec.hidden_size)
        self.wpe = build.embedding("wpe", spec.max_position_embeddings, spec.hidden_size)
        self.dropout = spec.embd_pdrop if build.training else 0.0
        self.h = build.layers(spec.num_hidden_layers, lambda _: Block(spec, build))
        self.ln_f = build.layer_norm("ln_f", spec.hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        tape = ids.tape
        batch, tokens = ids.shape
        embeds = self.wte(ids)
        positions = token_positions(tape, tokens)
        places = self.wpe(positions)
        hidden = add(embeds, places)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None)
        hidden = dropout(hidden, self.dropout)
        for block in self.h:
            hidden = block(hidden, mask, positions)
        return self.ln_f(hidden)


HEADS = decoder_heads(GPT2)
