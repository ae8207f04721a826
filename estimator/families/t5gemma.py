"""T5Gemma: an encoder and a decoder of Gemma 2's layers, each with embeddings of its own; the decoder looks at the encoder's.

After transformers' modeling_t5gemma.py (5.23), on texts in which nothing is padding; `sdpa` cannot cap scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from pydantic import model_validator

from estimator.families.attention import Attention, bidirectional_mask
from estimator.families.build import Builder
from estimator.families.decoder_layers import Sandwich, dropping
from estimator.families.encoders import refuse_quantization
from estimator.families.feed_forward import GatedMLP
from estimator.families.gemma import Gemma2Spec, RMSNorm
from estimator.families.grouped_query import GroupedQueryAttention, normed_after_all
from estimator.families.heads import Head
from estimator.families.model_output import Held
from estimator.families.modules import rotary_table, rotate, token_positions
from estimator.families.rotary import frequencies
from estimator.families.seq2seq import Seq2SeqLM, shifted_right
from estimator.families.spec import DecoderSpec, ModelSpec, Probability, Size
from estimator.families.windows import FULL, SLIDING, LayerType, causal_masks
from estimator.tape import dtypes
from estimator.tape.checkpoint import EVERY
from estimator.tape.dtypes import DType
from estimator.tape.loss import cross_entropy
from estimator.tape.pointwise import dropout, mul_scalar, tanh, to
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape, transpose

TYPE = "t5_gemma_module"
STACKS = "encoder", "decoder"
OF_ALL = "attention_dropout", "dropout_rate"
"""What the whole configuration says of both stacks."""


class StackSpec(Gemma2Spec):
    """One stack's."""

    model_type: str = TYPE
    vocab_size: Size = 256000
    hidden_size: Size = 2304
    intermediate_size: Size = 9216
    num_hidden_layers: Size = 26
    num_attention_heads: Size = 8
    num_key_value_heads: Size = 4
    head_dim: Size = 256
    dropout_rate: Probability = 0.0


class T5GemmaSpec(ModelSpec):
    """`dropout_rate` and `attention_dropout` are both stacks'. Widths and layers follow from the stacks."""

    last_vllm = "none"
    why_not_vllm = "of encoder-decoders its registry has those that hear or see"
    attentions = ("eager", "flash_attention_2")
    modelled = {"is_encoder_decoder": (True,)}
    made = frozenset({"hidden_size", "num_hidden_layers"})
    by_position = EVERY - {1, 2}

    encoder: StackSpec
    decoder: StackSpec
    dropout_rate: Probability = 0.0
    attention_dropout: Probability = 0.0
    tie_word_embeddings: bool = True
    vocab_size: Size = 256000

    @model_validator(mode="before")
    @classmethod
    def _stacks(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        made, kept = dict(given), StackSpec.keys()
        for name in STACKS:
            said = made.get(name) or {}
            if isinstance(said, Mapping):
                own = {key: value for key, value in said.items() if key in kept and key not in OF_ALL}
                made[name] = StackSpec.model_validate(own | {key: given[key] for key in OF_ALL if key in given})
        encoder, decoder = made["encoder"], made["decoder"]
        if isinstance(encoder, StackSpec) and isinstance(decoder, StackSpec):
            made["hidden_size"], made["vocab_size"] = decoder.hidden_size, decoder.vocab_size
            made["num_hidden_layers"] = encoder.num_hidden_layers + decoder.num_hidden_layers
            made["max_position_embeddings"] = encoder.max_position_embeddings
        return made

    @model_validator(mode="after")
    def _alike(self) -> Self:
        if self.encoder.vocab_size != self.decoder.vocab_size:
            raise ValueError("encoder and decoder should have one vocabulary: their vocab_size differ")
        return self

    @property
    def intermediate_size(self) -> int:
        """Of the decoder."""
        return self.decoder.intermediate_size

    def config(self) -> dict[str, Any]:
        own = self.model_dump(mode="json", by_alias=True, exclude={*STACKS, "hidden_size", "num_hidden_layers"})
        return own | {name: getattr(self, name).config() for name in STACKS}


SPECS = {"t5gemma": T5GemmaSpec}


class MLP(GatedMLP):
    """With dropout of `before` before its last layer."""

    def __init__(self, spec: DecoderSpec, build: Builder, before: float):
        super().__init__(spec, build)
        self.before = before if build.training else 0.0

    def __call__(self, x: Tensor) -> Tensor:
        hidden = dropout(self.gated(x, self.gate_proj, self.up_proj), self.before)
        return self.down_proj(hidden)


class CrossAttention:
    """Queries of the decoder over keys and values of the encoder's hidden states, which are not rotated."""

    def __init__(self, spec: StackSpec, other: int, build: Builder):
        size, bias, self.head_dim = spec.hidden_size, spec.attention_bias, spec.head_dim
        queries, keys = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
        self.q_proj = build.linear("cross_attn.q_proj", size, queries, bias)
        self.k_proj = build.linear("cross_attn.k_proj", other, keys, bias)
        self.v_proj = build.linear("cross_attn.v_proj", other, keys, bias)
        self.o_proj = build.linear("cross_attn.o_proj", queries, size, bias)
        dropped = spec.attention_dropout if build.training else 0.0
        self.attend = Attention(build.attention, dropout=dropped, softcap=spec.softcap, causal=False)

    def __call__(self, hidden: Tensor, encoded: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        q = transpose(reshape(self.q_proj(hidden), (batch, tokens, -1, self.head_dim)), 1, 2)
        heads = (*encoded.shape[:2], -1, self.head_dim)
        k = transpose(reshape(self.k_proj(encoded), heads), 1, 2)
        v = transpose(reshape(self.v_proj(encoded), heads), 1, 2)
        out, weights = self.attend(q, k, v, None)
        out = self.o_proj(reshape(out, (batch, tokens, -1)))
        return out, weights


class EncoderLayer(Sandwich):
    """Gemma 2's, with dropout of what each block gives."""

    def __init__(self, spec: StackSpec, build: Builder, decodes: bool = False):
        norm = partial(RMSNorm, build, size=spec.hidden_size)
        bias = spec.attention_bias
        attention = GroupedQueryAttention(
            spec, build, bias, bias, project=normed_after_all, rotate=rotate, softcap=spec.softcap, causal=decodes
        )
        before, after = norm("pre_self_attn_layernorm"), norm("post_self_attn_layernorm")
        mlp = MLP(spec, build, spec.dropout_rate)
        norms = before, after, norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm")
        super().__init__(attention, mlp, norms, dropping(build, spec.dropout_rate))


class DecoderLayer(EncoderLayer):
    """With attention to what the encoder made between the two blocks."""

    own = 1

    def __init__(self, spec: StackSpec, other: int, build: Builder):
        super().__init__(spec, build, decodes=True)
        self.cross_attn = CrossAttention(spec, other, build)
        self.before_cross = RMSNorm(build, "pre_cross_attn_layernorm", spec.hidden_size)
        self.after_cross = RMSNorm(build, "post_cross_attn_layernorm", spec.hidden_size)

    def __call__(self, hidden: Tensor, *shared: Any) -> Tensor:
        *rotary_and_mask, _positions, encoded = shared
        residual = hidden
        out = self.before_attention(hidden)
        out, weights = self.self_attn(out, *rotary_and_mask)
        out = self.after_attention(out)
        out = self.join(out, residual)
        residual = out
        out = self.before_cross(out)
        out, weights = self.cross_attn(out, encoded)
        out = self.after_cross(out)
        out = self.join(out, residual)
        residual = out
        out = self.before_mlp(out)
        out = self.mlp(out)
        out = self.after_mlp(out)
        out = self.join(out, residual)
        del weights
        return out


class Stack:
    """Encoder or decoder (`T5GemmaEncoder`, `T5GemmaDecoder`)."""

    def __init__(self, name: str, spec: StackSpec, other: int, build: Builder):
        decodes = name == "decoder"
        self.spec, self.decodes, self.attention = spec, decodes, build.attention
        self.words = build.embedding(f"{name}.embed_tokens", spec.vocab_size, spec.hidden_size)
        self.words.require_grad = build.recomputes
        self.norm = RMSNorm(build, f"{name}.norm", spec.hidden_size)

        def layer(_: LayerType) -> Sandwich:
            return DecoderLayer(spec, other, build) if decodes else EncoderLayer(spec, build)

        self.layers = build.layers(spec.kinds, layer, name, f"{name}.", last=int(decodes))
        self.buffers = frequencies(build, spec.head_dim)

    def __call__(self, ids: Tensor, encoded: Tensor | None = None) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = self.words(ids)
        positions = token_positions(tape, tokens)
        _padding = empty(tape, ids.shape, dtypes.int64, "_to_copy")
        masks = self._masks(tape, batch, tokens, embeds.dtype)
        hidden = mul_scalar(embeds)
        hidden = dropout(hidden, self.spec.dropout_rate)
        table = rotary_table(tape, tokens, self.spec.head_dim, hidden.dtype)
        behind = (positions, encoded) if self.decodes else (positions,)
        for kind, layer in self.layers.by_kind():
            hidden = layer(hidden, *table, masks[kind], *behind)
        hidden = self.norm(hidden)
        return dropout(hidden, self.spec.dropout_rate)

    def _masks(self, tape: Tape, batch: int, tokens: int, dtype: DType) -> dict[LayerType, Tensor | None]:
        """None of the encoder's layers that see everything, where nothing is padding."""
        if self.decodes:
            return causal_masks(self.spec, tape, batch, tokens, dtype, self.attention)
        if self.attention != "eager":
            return {FULL: None, SLIDING: None}
        return {FULL: None, SLIDING: bidirectional_mask(tape, batch, tokens, dtype, self.attention, self.spec.sliding_window)}


class T5Gemma:
    """The body of the model."""

    def __init__(self, spec: T5GemmaSpec, build: Builder):
        refuse_quantization(build, spec.model_type)
        self.encoder = Stack("encoder", spec.encoder, 0, build)
        self.decoder = Stack("decoder", spec.decoder, spec.encoder.hidden_size, build)

    def encode(self, ids: Tensor) -> Tensor:
        return self.encoder(ids)

    def decode(self, targets: Tensor, encoded: Tensor) -> Tensor:
        return self.decoder(targets, encoded)


class CappedSeq2SeqLM(Seq2SeqLM):
    """Logits go through a tanh where they are `capped`, the loss is taken in float32, and the output may hold the decoder's
    hidden states, too (`shows`)."""

    capped = True
    shows = True

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids, labels = inputs
        _targets = shifted_right(labels)
        encoded = self.body.encode(ids)
        hidden = self.body.decode(_targets, encoded)
        with ids.tape.losing():
            logits = self.predict(hidden)
            if self.capped:
                logits = mul_scalar(logits)
                logits = tanh(logits)
                logits = mul_scalar(logits)
            wide = to(logits, dtypes.float32)
            loss = cross_entropy(reshape(wide, (-1, wide.shape[-1])), reshape(labels, (-1,)))
        return loss, (logits, encoded, hidden) if self.shows else (logits, encoded)


def _seq2seq_lm(spec: T5GemmaSpec, build: Builder) -> Seq2SeqLM:
    body, decoder = T5Gemma(spec, build), spec.decoder
    first, build.words = build.words, body.decoder.words
    head = build.head(decoder.hidden_size, decoder.vocab_size, spec.tie_word_embeddings, name="lm_head.out_proj")
    build.words = first
    model = CappedSeq2SeqLM(body, head)
    model.capped = decoder.final_logit_softcapping is not None
    return model


HEADS: dict[str, Head] = {"seq2seq-lm": _seq2seq_lm}
