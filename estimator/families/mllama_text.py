"""Llama 3.2 Vision's language model: Llama with layers that attend to images in the place of some that attend to text.

After transformers' modeling_mllama.py (5.23). On texts alone the layers that attend to images are passed over.
"""

from __future__ import annotations

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.layers import Layer
from estimator.families.llama import LlamaSpec, decoder_layer
from estimator.families.modules import token_positions
from estimator.families.windows import FULL
from estimator.tape.pointwise import add, mul, tanh
from estimator.tape.tensor import Tensor
from estimator.tape.views import contiguous, reshape, transpose

SPECIAL = 8
"""Rows of the input embedding beyond the vocabulary."""


class MllamaTextSpec(LlamaSpec):
    """`cross_attention_layers` are among `num_hidden_layers`."""

    runs = False
    modelled = {"dropout": (0, 0.0), "attention_bias": (False,), "mlp_bias": (False,)}

    cross_attention_layers: tuple[int, ...] = (3, 8, 13, 18, 23, 28, 33, 38)

    @property
    def crossing(self) -> list[bool]:
        """Whether each layer attends to images."""
        return [i in self.cross_attention_layers for i in range(self.num_hidden_layers)]


SPECS = {"mllama_text_model": MllamaTextSpec}


class CrossLayer:
    """A layer that attends to images; its parameters get no gradients where there are none."""

    def __init__(self, spec: MllamaTextSpec, build: Builder):
        size, keys = spec.hidden_size, spec.num_key_value_heads * spec.head_dim
        self.head_dim = spec.head_dim
        self.attn_gate = build.parameter("cross_attn_attn_gate", (1,))
        self.mlp_gate = build.parameter("cross_attn_mlp_gate", (1,))
        self.q_proj = build.linear("cross_attn.q_proj", size, spec.num_attention_heads * spec.head_dim)
        self.k_proj = build.linear("cross_attn.k_proj", size, keys)
        self.v_proj = build.linear("cross_attn.v_proj", size, keys)
        self.o_proj = build.linear("cross_attn.o_proj", spec.num_attention_heads * spec.head_dim, size)
        self.q_norm = build.rms_norm("cross_attn.q_norm", spec.head_dim)
        self.k_norm = build.rms_norm("cross_attn.k_norm", spec.head_dim)
        self.attend = Attention(build.attention)
        self.input_layernorm = build.rms_norm("input_layernorm", size)
        self.mlp = GatedMLP(spec, build)
        self.post_attention_layernorm = build.rms_norm("post_attention_layernorm", size)

    def __call__(self, hidden: Tensor, states: Tensor, mask: Tensor, seeing: Tensor, *_own: Tensor | None) -> Tensor:
        """`states`: what the tower gave, [images x tiles, tokens, hidden]; `mask`: what of it each token sees; `seeing`: which
        tokens see any of it, [batch, tokens, 1]."""
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self._attended(out, states, mask)
        out = add(residual, mul(tanh(self.attn_gate), out))
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        out = mul(seeing, out)
        return add(residual, mul(tanh(self.mlp_gate), out))

    def _attended(self, hidden: Tensor, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        q = self.q_proj(hidden)
        q = transpose(reshape(q, (batch, tokens, -1, self.head_dim)), 1, 2)
        q = self.q_norm(q)
        k = self.k_proj(states)
        v = self.v_proj(states)
        keys = (batch, states.shape[0] * states.shape[1] // batch, -1, self.head_dim)
        k = transpose(reshape(k, keys), 1, 2)
        v = transpose(reshape(v, keys), 1, 2)
        k = self.k_norm(k)
        out, weights = self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (batch, tokens, -1)))
        out = self.o_proj(out)
        return out, weights


class BesideImages:
    """A layer that attends to text, which gets what the others read, too: where it is recomputed it holds that."""

    def __init__(self, layer: PreNorm):
        self.layer = layer

    def __call__(self, hidden: Tensor, states: Tensor, mask: Tensor, seeing: Tensor, *shared: Tensor | None) -> Tensor:
        return self.layer(hidden, *shared)


class Body(Decoder):
    """The body of the language model, in which some layers get what the tower gave."""

    def see(self, ids: Tensor, states: Tensor, mask: Tensor, seeing: Tensor) -> Tensor:
        """Last hidden states."""
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = self.embed_tokens(ids)
        positions = token_positions(tape, tokens)
        masks = self.masks(self.spec, tape, batch, tokens, embeds.dtype, self.attention)
        tables = self.rotary.tables(ids, embeds.dtype)
        hidden = embeds
        for layer in self.layers:
            hidden = layer(hidden, states, mask, seeing, *tables[FULL], masks[FULL], positions)
        return self.norm(hidden)


def decoder(spec: MllamaTextSpec, build: Builder) -> Body:
    """The body of the language model. Each layer that attends to images has a slot of its own, since all of them add to one
    gradient."""
    kinds = [i if crossing else None for i, crossing in enumerate(spec.crossing)]

    def layer(crossing: int | None) -> Layer:
        with build.unlearning(crossing is not None and build.images is None):
            if crossing is not None:
                return CrossLayer(spec, build)
            own = decoder_layer(spec, build)
            return own if build.images is None else BesideImages(own)

    wide = spec.model_copy(update={"vocab_size": spec.vocab_size + SPECIAL})
    return Body(wide, build, layer, kinds, passes_over=lambda crossing: crossing is not None)


def causal_lm(spec: MllamaTextSpec, build: Builder) -> Decoder:
    """The language model, for its parameters."""
    body = decoder(spec, build)
    build.head(spec.hidden_size, spec.vocab_size, tied=False)
    return body


HEADS = {"causal-lm": counted(causal_lm)}
