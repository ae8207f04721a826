"""GPT-2: learned positions, layer norm, `Conv1D`, a GELU written out in Python, dropout.

After transformers' modeling_gpt2.py (5.23).
"""

from __future__ import annotations

from estimator import dtypes
from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.modules import ACTIVATIONS
from estimator.specs.spec import ModelSpec
from estimator.tape.pointwise import add, add_scalar, dropout
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, reshape, split, transpose


class SelfAttention:
    def __init__(self, spec: ModelSpec, build: Builder, attention: str):
        size = spec.hidden_size
        self.heads = spec.num_attention_heads
        self.c_attn = build.conv1d("attn.c_attn", size, 3 * size)
        self.c_proj = build.conv1d("attn.c_proj", size, size)
        self.dropout = spec.hidden_dropout if build.training else 0.0
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(attention, float32_softmax=False, dropout=spec.attention_dropout if build.training else 0.0)

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
    def __init__(self, spec: ModelSpec, build: Builder):
        self.c_fc = build.conv1d("mlp.c_fc", spec.hidden_size, spec.intermediate_size)
        self.c_proj = build.conv1d("mlp.c_proj", spec.intermediate_size, spec.hidden_size)
        self.act = ACTIVATIONS[spec.hidden_act]
        self.dropout = spec.hidden_dropout if build.training else 0.0

    def __call__(self, x: Tensor) -> Tensor:
        out = self.c_fc(x)
        out = self.act(out)
        out = self.c_proj(out)
        return dropout(out, self.dropout)


class Block:
    def __init__(self, spec: ModelSpec, build: Builder, attention: str):
        self.ln_1 = build.layer_norm("ln_1", spec.hidden_size)
        self.attn = SelfAttention(spec, build, attention)
        self.ln_2 = build.layer_norm("ln_2", spec.hidden_size)
        self.mlp = MLP(spec, build)

    def __call__(self, hidden: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.ln_1(hidden)
        attended, _ = self.attn(out, mask)
        out = add(attended, residual)
        residual = out
        out = self.ln_2(out)
        fed = self.mlp(out)
        return add(residual, fed)


class GPT2:
    """The whole model; `forward` gives the last hidden states, `lm_head` makes logits of them."""

    def __init__(self, spec: ModelSpec, build: Builder, attention: str):
        self.attention = attention
        self.wte = build.embedding("wte", spec.vocab_size, spec.hidden_size)
        self.wpe = build.embedding("wpe", spec.max_position_embeddings, spec.hidden_size)
        self.dropout = spec.embedding_dropout if build.training else 0.0
        self.h = build.layers(spec.num_hidden_layers, lambda: Block(spec, build, attention))
        self.ln_f = build.layer_norm("ln_f", spec.hidden_size)
        self.lm_head = build.head(spec.hidden_size, spec.vocab_size, spec.tie_word_embeddings)

    def forward(self, ids: Tensor) -> Tensor:
        tape = ids.tape
        batch, tokens = ids.shape
        embeds = self.wte(ids)
        positions = add_scalar(empty(tape, (1, tokens), dtypes.int64, "arange"))
        places = self.wpe(positions)
        hidden = add(embeds, places)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None)
        hidden = dropout(hidden, self.dropout)
        for block in self.h:
            hidden = block(hidden, mask, positions)
        return self.ln_f(hidden)
