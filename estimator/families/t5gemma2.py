"""T5Gemma 2: an encoder and a decoder of Gemma 3's layers with one table of words; each layer of the decoder attends to itself
and to the encoder at once. What it sees with is loaded, and not run on texts.

After transformers' modeling_t5gemma2.py (5.23), on texts in which nothing is padding and no image ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Self

from pydantic import SerializeAsAny, model_validator

from estimator.families.build import Builder
from estimator.families.decoder import Rotary
from estimator.families.decoder_layers import Sandwich, dropping
from estimator.families.encoders import refuse_quantization
from estimator.families.gemma import Gemma3Spec, RMSNorm
from estimator.families.grouped_query import GroupedQueryAttention, normed_after_all
from estimator.families.heads import Head
from estimator.families.modules import Embedding, rotate, token_positions
from estimator.families.seq2seq import Seq2SeqLM
from estimator.families.siglip import SiglipVisionSpec, VisionModel
from estimator.families.spec import ModelSpec, Probability, Size
from estimator.families.t5gemma import MLP, CappedSeq2SeqLM
from estimator.families.windows import FULL, SLIDING, LayerType
from estimator.tape import dtypes
from estimator.tape.checkpoint import EVERY
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import dropout, to
from estimator.tape.scatter import fill_picked
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, reshape, transpose

OF_ALL = "attention_dropout", "dropout_rate"
"""What the whole configuration says of both stacks."""
MADE = "hidden_size", "num_hidden_layers", "max_position_embeddings", "vocab_size"


class T5Gemma2StackSpec(Gemma3Spec):
    """One stack's."""

    model_type: str = "t5gemma2_text"
    vocab_size: Size = 262208
    hidden_size: Size = 2304
    intermediate_size: Size = 9216
    num_hidden_layers: Size = 26
    num_attention_heads: Size = 8
    num_key_value_heads: Size = 4
    head_dim: Size = 256
    dropout_rate: Probability = 0.0

    def config(self) -> dict[str, Any]:
        said = super().config()
        return {name: value for name, value in said.items() if name not in ("use_bidirectional_attention", "model_type")}


KINDS: Mapping[str, tuple[type[ModelSpec], str]] = {
    "text_config": (T5Gemma2StackSpec, "t5gemma2_text"),
    "vision_config": (SiglipVisionSpec, "siglip_vision_model"),
}
"""The parts of an encoder, and what they are."""


class T5Gemma2EncoderSpec(ModelSpec):
    """An encoder of texts with what it sees with."""

    text_config: T5Gemma2StackSpec
    vision_config: SerializeAsAny[SiglipVisionSpec]
    mm_tokens_per_image: Size = 256

    @model_validator(mode="before")
    @classmethod
    def _parts(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        made = dict(given)
        for name, (kind, model_type) in KINDS.items():
            if isinstance(said := made.get(name) or {}, Mapping):
                known = {key: said[key] for key in kind.keys() & said.keys()}
                made[name] = kind.model_validate(known | {"model_type": model_type})
        made["hidden_size"], made["num_hidden_layers"] = made["text_config"].hidden_size, made["text_config"].num_hidden_layers
        return made

    def config(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).config() for name in ("text_config", "vision_config")}
        return parts | {"mm_tokens_per_image": self.mm_tokens_per_image}


class T5Gemma2Spec(ModelSpec):
    """`dropout_rate` and `attention_dropout` are both stacks'. Widths and layers follow from the stacks."""

    sees = True
    last_vllm = "none"
    why_not_vllm = "of encoder-decoders its registry has those that hear or see"
    attentions = ("sdpa", "eager")
    modelled = {"is_encoder_decoder": (True,), "tie_word_embeddings": (True,)}
    made = frozenset({"hidden_size", "num_hidden_layers"})
    by_position = EVERY - {1, 2}
    written_over: ClassVar[int] = 0
    """Tokens of a text whose embedding is that of the end of an image."""

    encoder: T5Gemma2EncoderSpec
    decoder: T5Gemma2StackSpec
    dropout_rate: Probability = 0.0
    attention_dropout: Probability = 0.0
    vocab_size: Size = 262208

    @model_validator(mode="before")
    @classmethod
    def _stacks(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        made, asked = dict(given), {key: given[key] for key in OF_ALL if key in given}
        if isinstance(said := made.get("encoder") or {}, Mapping):
            known = {key: said[key] for key in T5Gemma2EncoderSpec.keys() & said.keys()}
            text = said.get("text_config") or {}
            words = {**text, **asked} if isinstance(text, Mapping) else text
            made["encoder"] = T5Gemma2EncoderSpec.model_validate(known | {"model_type": "t5gemma2_encoder", "text_config": words})
        if isinstance(said := made.get("decoder") or {}, Mapping):
            known = {key: said[key] for key in T5Gemma2StackSpec.keys() & said.keys()}
            made["decoder"] = T5Gemma2StackSpec.model_validate(known | asked | {"model_type": "t5gemma2_decoder"})
        encoder, decoder = made["encoder"].text_config, made["decoder"]
        made["hidden_size"], made["vocab_size"] = decoder.hidden_size, decoder.vocab_size
        made["num_hidden_layers"] = encoder.num_hidden_layers + decoder.num_hidden_layers
        made["max_position_embeddings"] = encoder.max_position_embeddings
        return made

    @model_validator(mode="after")
    def _alike(self) -> Self:
        for name in ("vocab_size", "hidden_size"):
            if getattr(self.encoder.text_config, name) != getattr(self.decoder, name):
                raise ValueError(f"encoder and decoder have one table of words: their {name} differ")
        return self

    @property
    def depth(self) -> int:
        return self.num_hidden_layers + self.encoder.vision_config.num_hidden_layers

    @property
    def intermediate_size(self) -> int:
        """Of the decoder."""
        return self.decoder.intermediate_size

    def config(self) -> dict[str, Any]:
        own = self.model_dump(mode="json", by_alias=True, exclude={"encoder", "decoder", *MADE})
        return own | {name: getattr(self, name).config() for name in ("encoder", "decoder")}


SPECS = {"t5gemma2": T5Gemma2Spec}


class Words:
    """A table of words, scaled, in which the end of an image has a row of its own (`T5Gemma2TextScaledWordEmbedding`).

    `asks`: as `require_grad` of `Embedding`.
    """

    def __init__(self, table: Embedding, end: Tensor, asks: bool):
        self.table, self.end, self.asks = table, end, asks

    def __call__(self, ids: Tensor) -> Tensor:
        embeds = self.table(ids)
        mask = empty(ids.tape, ids.shape, dtypes.bool_, "eq")
        embeds = fill_picked(embeds, mask, to(self.end, embeds.dtype), 0)
        if self.asks:
            embeds.requires_grad = True
        return embeds


class MergedAttention(GroupedQueryAttention):
    """A decoder's attention to itself and to the encoder, of which the same layers make keys and values."""

    def merged(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, encoded: Tensor) -> Tensor:
        """What each token gets."""
        assert self.k_norm is not None
        batch, tokens, _ = hidden.shape
        q, k, v, *_ = self.project(self, hidden, (batch, tokens, -1, self.head_dim))
        q, k, *_rotated = self.rotate(q, k, cos, sin)
        heads = (*encoded.shape[:2], -1, self.head_dim)
        other_k = transpose(reshape(self.k_proj(encoded), heads), 1, 2)
        other_v = transpose(reshape(self.v_proj(encoded), heads), 1, 2)
        other_k = self.k_norm(other_k)
        k = cat((k, other_k), 2)
        v = cat((v, other_v), 2)
        out, weights = self.attend(q, k, v, mask)
        out = self.o_proj(reshape(out, (batch, tokens, -1)))
        del weights
        return out


class Layer(Sandwich):
    """Gemma 3's, with dropout of what each block gives; a decoder's gets what the encoder made, too."""

    def __init__(self, spec: T5Gemma2StackSpec, build: Builder, decodes: bool):
        norm, bias = partial(RMSNorm, build, size=spec.hidden_size), spec.attention_bias
        kind = MergedAttention if decodes else GroupedQueryAttention
        attention = kind(
            spec,
            build,
            bias,
            bias,
            norm=lambda which, heads: RMSNorm(build, f"self_attn.{which}_norm", spec.head_dim),
            project=normed_after_all,
            rotate=rotate,
            causal=False,
        )
        before, after = norm("pre_self_attn_layernorm"), norm("post_self_attn_layernorm")
        mlp = MLP(spec, build, spec.dropout_rate)
        norms = before, after, norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm")
        super().__init__(attention, mlp, norms, dropping(build, spec.dropout_rate))

    def __call__(self, hidden: Tensor, *shared: Any) -> Tensor:
        if not isinstance(self.self_attn, MergedAttention):
            return super().__call__(hidden, *shared)
        cos, sin, mask, _positions, encoded = shared
        residual = hidden
        out = self.before_attention(hidden)
        out = self.self_attn.merged(out, cos, sin, mask, encoded)
        out = self.after_attention(out)
        out = self.join(out, residual)
        residual = out
        out = self.before_mlp(out)
        out = self.mlp(out)
        out = self.after_mlp(out)
        return self.join(out, residual)


class Stack:
    """Encoder or decoder (`T5Gemma2TextEncoder`, `T5Gemma2Decoder`)."""

    def __init__(self, spec: T5Gemma2StackSpec, words: Words, decodes: bool, build: Builder):
        self.spec, self.words, self.decodes, self.attention = spec, words, decodes, build.attention
        self.norm = RMSNorm(build, "norm", spec.hidden_size)
        self.layers = build.layers(spec.kinds, lambda _: Layer(spec, build, decodes), last=int(decodes))
        self.rotary = Rotary(spec.head_dim, kinds=spec.kinds)
        self.buffers = self.rotary.buffers(build)

    def __call__(self, ids: Tensor, encoded: Tensor | None = None) -> Tensor:
        tape, (_, tokens) = ids.tape, ids.shape
        embeds = self.words(ids)
        positions = token_positions(tape, tokens)
        made, held = self._masks(embeds, encoded)
        tables = self.rotary.tables(ids, embeds.dtype)
        hidden = dropout(embeds, self.spec.dropout_rate)
        behind = (positions, encoded) if self.decodes else (positions,)
        for kind, layer in self.layers.by_kind():
            hidden = layer(hidden, *tables[kind], made[kind], *behind)
        hidden = self.norm(hidden)
        del held
        return dropout(hidden, self.spec.dropout_rate)

    def _masks(self, embeds: Tensor, encoded: Tensor | None) -> tuple[dict[LayerType, Tensor | None], list[Tensor]]:
        """The masks of each kind of layers, and what is held beside them."""
        tape, (batch, tokens, _), way = embeds.tape, embeds.shape, self.attention
        if encoded is None:
            return {FULL: None, SLIDING: _near(tape, batch, tokens, embeds.dtype, way)}, []
        length = encoded.shape[1]
        own = [_forced(tape, batch, tokens, tokens, embeds.dtype, way) for _ in (FULL, SLIDING)]
        other = _forced(tape, batch, tokens if way == "eager" else 1, length, encoded.dtype, way)
        shape, dtype = (batch, 1, tokens, tokens + length), own[0].dtype
        both: dict[LayerType, Tensor | None] = {kind: empty(tape, shape, dtype, "cat") for kind in (FULL, SLIDING)}
        return both, [*own, other]


def _forced(tape: Tape, batch: int, tokens: int, keys: int, dtype: DType, implementation: str) -> Tensor:
    """A mask that is made whether it is needed or not."""
    if implementation == "eager":
        return empty(tape, (batch, 1, tokens, keys), dtype, "where")
    return empty(tape, (1, 1, tokens, keys), dtypes.bool_, "bitwise_and")


def _near(tape: Tape, batch: int, tokens: int, dtype: DType, implementation: str) -> Tensor:
    """The encoder's mask of a window in both directions (`sliding_window_mask_function`)."""
    square = (1, 1, tokens, tokens)

    def compared(operation: str) -> Tensor:
        return empty(tape, square, dtypes.bool_, operation)

    places = [empty(tape, (size,), dtypes.int64, "arange") for size in (batch, 1, tokens, tokens)]
    ones = empty(tape, (tokens,), dtypes.bool_, "bitwise_and")
    distance = empty(tape, square, dtypes.int64, "sub")
    first, second = compared("ge"), compared("lt")
    left = compared("bitwise_and")
    del first, second
    behind = compared("lt")
    negative = empty(tape, square, dtypes.int64, "neg")
    near = compared("lt")
    del negative
    right = compared("bitwise_and")
    del behind, near
    either = compared("bitwise_or")
    del distance, left, right
    made = compared("bitwise_and")
    del either, ones, places
    return made if implementation == "sdpa" else empty(tape, (batch, 1, tokens, tokens), dtype, "where")


class T5Gemma2:
    """The body of the model."""

    def __init__(self, spec: T5Gemma2Spec, build: Builder):
        refuse_quantization(build, spec.model_type)
        text = spec.encoder.text_config
        with build.part("model.encoder.text_model"):
            scale = build.buffer("embed_scale", (), build.dtype)
            table = build.embedding("embed_tokens", text.vocab_size, text.hidden_size, scale)
            table.require_grad = False
            end = build.parameter("embed_tokens.eoi_embedding", (text.hidden_size,))
            self.encoder = Stack(text, Words(table, end, build.recomputes), False, build)
        with build.part("model.encoder.vision_tower", learns=False):
            tower = VisionModel(spec.encoder.vision_config, build)
        with build.part("model.encoder", learns=False):
            name, seen = "multi_modal_projector", spec.encoder.vision_config.hidden_size
            build.parameter(f"{name}.mm_input_projection_weight", (seen, text.hidden_size))
            norm = RMSNorm(build, f"{name}.mm_soft_emb_norm", seen)
        self.unread = tower, norm
        with build.part("model.decoder"):
            again = build.buffer("embed_scale", (), build.dtype)
            self.decoder = Stack(spec.decoder, Words(Embedding(table.weight, False, again), end, build.recomputes), True, build)

    def encode(self, ids: Tensor) -> Tensor:
        return self.encoder(ids)

    def decode(self, targets: Tensor, encoded: Tensor) -> Tensor:
        return self.decoder(targets, encoded)


def _seq2seq_lm(spec: T5Gemma2Spec, build: Builder) -> Seq2SeqLM:
    body, decoder = T5Gemma2(spec, build), spec.decoder
    head = build.head(decoder.hidden_size, decoder.vocab_size, True, name="lm_head.out_proj")
    model = CappedSeq2SeqLM(body, head)
    model.capped, model.shows = decoder.final_logit_softcapping is not None, False
    return model


HEADS: dict[str, Head] = {"seq2seq-lm": _seq2seq_lm}
