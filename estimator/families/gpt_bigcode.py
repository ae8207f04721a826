"""GPT-BigCode, of SantaCoder and StarCoder: GPT-2 with plain linear layers and one head of keys and values for all queries.

After transformers' modeling_gpt_bigcode.py (5.23; and 4.48.1, of which 4.45 is the like). Up to then the model computed its loss
itself, and kept the keys and values of every layer to its end, under checkpointing too, where other models turned that off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.heads import CausalLM, decoder_heads
from estimator.families.layers import hidden_of
from estimator.families.losses import CausalLoss
from estimator.families.model_output import Held, PerLayer
from estimator.families.modules import token_positions
from estimator.families.spec import Activation, Depth, FullHeadsSpec, Probability, Size, called
from estimator.tape import dtypes
from estimator.tape.pointwise import add, dropout
from estimator.tape.tensor import Tensor
from estimator.tape.views import contiguous, reshape, split, transpose, unsqueeze


class GPTBigCodeSpec(FullHeadsSpec):
    can = Abilities(gguf=True, graph="gpt-2")
    scales_activations = True
    modelled = {"add_cross_attention": (False,)}
    learned_positions = cached = True
    implementations = ("transformers", "fast-kernels")  # these know its cross-entropy, where it calls torch's by its name
    joined_loss = False

    hidden_size: Size = called("n_embd")
    num_hidden_layers: Depth = called("n_layer")
    num_attention_heads: Size = called("n_head")
    intermediate_size: Size = called("n_inner")
    max_position_embeddings: Size = called("n_positions", 1024)
    hidden_act: Activation = called("activation_function", "gelu_pytorch_tanh")
    tie_word_embeddings: bool = True
    multi_query: bool = True
    attention_dropout: Probability = called("attn_pdrop", 0.1)
    resid_pdrop: Probability = 0.1
    embd_pdrop: Probability = 0.1

    @property
    def key_heads(self) -> int:
        return 1 if self.multi_query else self.num_attention_heads

    @model_validator(mode="before")
    @classmethod
    def _one_head_of_keys(cls, given: Any) -> Any:
        multi_query = isinstance(given, Mapping) and given.get("multi_query", True)
        return {**given, "num_key_value_heads": 1} if multi_query and given.get("num_key_value_heads") is None else given


SPECS = {"gpt_bigcode": GPTBigCodeSpec}


class SelfAttention:
    def __init__(self, spec: GPTBigCodeSpec, build: Builder):
        size = spec.hidden_size
        self.spec = spec
        self.c_attn = build.linear("attn.c_attn", size, size + 2 * spec.key_heads * spec.head_dim, bias=True)
        self.c_proj = build.linear("attn.c_proj", size, size, bias=True)
        self.dropout = spec.resid_pdrop if build.training else 0.0
        self.returns_keys = build.training and build.kernels.release != "5"
        self.cache = build.cache() if build.cache else None
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Its result, keys and values where it returns those, else the weights of eager attention."""
        batch, tokens, width = hidden.shape
        heads, size = self.spec.num_attention_heads, self.spec.head_dim
        if self.spec.multi_query:
            q, *k_v = self._split(unsqueeze(self.c_attn(hidden), 1), width)
            q = transpose(reshape(q, (batch, tokens, heads, size)), 1, 2)
        else:
            q, *k_v = self._split(transpose(reshape(self.c_attn(hidden), (batch, tokens, heads, 3 * size)), 1, 2), size)
        k, v = split(k_v[0], (size, size), 3) if self.returns_keys else k_v
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (batch, tokens, width)))
        out = self.c_proj(out)
        out = dropout(out, self.dropout)
        return (out, k_v[0], None) if self.returns_keys else (out, None, weights)

    def _split(self, joined: Tensor, width: int) -> list[Tensor]:
        """Queries of so many numbers, keys and values; these are still one where they are returned."""
        size = self.spec.head_dim
        return split(joined, (width, 2 * size) if self.returns_keys else (width, size, size), 3)


class Block:
    def __init__(self, spec: GPTBigCodeSpec, build: Builder):
        self.ln_1 = build.layer_norm("ln_1", spec.hidden_size)
        self.attn = SelfAttention(spec, build)
        self.ln_2 = build.layer_norm("ln_2", spec.hidden_size)
        self.mlp = TwoLayerMLP(spec, build, ("c_fc", "c_proj"), bias=True, drops=spec.resid_pdrop)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
        residual = hidden
        out = self.ln_1(hidden)
        attended, keys, _weights = self.attn(out, mask)
        out = add(attended, residual)
        residual = out
        out = self.ln_2(out)
        fed = self.mlp(out)
        out = add(residual, fed)
        return out if keys is None else (out, keys)


class GPTBigCode:
    """The body of the model."""

    def __init__(self, spec: GPTBigCodeSpec, build: Builder):
        self.attention = build.attention
        self.keys = PerLayer(build.tape)
        self.wte = build.embedding("wte", spec.vocab_size, spec.hidden_size)
        self.wpe = build.embedding("wpe", spec.max_position_embeddings, spec.hidden_size)
        self.dropout = spec.embd_pdrop if build.training else 0.0
        self.h = build.layers(spec.num_hidden_layers, lambda _: Block(spec, build))
        self.ln_f = build.layer_norm("ln_f", spec.hidden_size)
        self.bias = build.buffer("bias", (spec.max_position_embeddings, spec.max_position_embeddings), dtypes.bool_)

    def forward(self, ids: Tensor) -> Tensor:
        tape = ids.tape
        batch, tokens = ids.shape
        embeds = self.wte(ids)
        positions = token_positions(tape, tokens)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None)
        places = self.wpe(positions)
        hidden = add(embeds, places)
        hidden = dropout(hidden, self.dropout)
        for block in self.h:
            out = block(hidden, mask)
            hidden = hidden_of(out)
            if not isinstance(out, Tensor):
                self.keys.append(out[1])
        return self.ln_f(hidden)

    def returned(self) -> PerLayer:
        """Keys and values of every layer, where layers return them. The caller holds them."""
        keys, self.keys = self.keys, PerLayer(self.keys.tape)
        return keys


class GPTBigCodeCausalLM(CausalLM):
    """Up to transformers 4.48.1 it computed its loss itself, in the logits' own type."""

    def __init__(self, spec: GPTBigCodeSpec, build: Builder):
        self.decoder = GPTBigCode(spec, build)
        super().__init__(self.decoder, spec, build)
        if build.kernels.release == "5":
            self.loss = CausalLoss(fused=self.loss.fused)
        else:
            self.loss = replace(self.loss, upcasts_first=False, widens=False)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        loss, held = super().forward(*inputs)
        assert isinstance(held, Tensor)
        return loss, (held, self.decoder.returned())


HEADS = {**decoder_heads(GPTBigCode), "causal-lm": GPTBigCodeCausalLM}
