"""Gemma 3n's language model: four streams of hidden states, of which layers see one and correct all (AltUp).

Each layer gets something of each token beside hidden states, a bypass of low rank beside attention (LAuReL) and, in the first
layers, a feed-forward layer that lets its largest values through; the last layers take keys and values of earlier ones.
After transformers' modeling_gemma3n.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.encoders import refuse_quantization
from estimator.families.gemma import Cap, Gemma2CausalLM
from estimator.families.gemma4_per_layer import Beside, PerLayer, RMSNorm
from estimator.families.gemma4_spec import Kind, SharingSpec
from estimator.families.gemma4_text import Gemma4Attention, States, turned
from estimator.families.modules import ACTIVATIONS, Linear, token_positions
from estimator.families.spec import Activation, Size, called
from estimator.families.windows import LayerType
from estimator.tape import dtypes
from estimator.tape.matmul import linear, matmul
from estimator.tape.pointwise import (
    add,
    add_,
    add_scalar,
    clamp,
    div,
    div_scalar,
    mean_last,
    mul,
    mul_,
    pow_scalar,
    relu,
    sqrt,
    sub,
    tanh,
    to,
)  # fmt: skip
from estimator.tape.reduction import mean, std_last
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import (
    add_within_,
    clone,
    contiguous,
    narrow,
    permute,
    repeat,
    reshape,
    select,
    stack_first,
    transpose,
    unsqueeze,
    write_part,
)  # fmt: skip

SPARSE = 0.95, 10
"""How much of the first layers' feed-forward layers is zero, and of how many, where nothing is said and there are more layers."""
BY_LAYER = "intermediate_size", "activation_sparsity_pattern"


class Place(NamedTuple):
    """A layer's kind. `sparse`: whether its feed-forward layer lets its largest values through."""

    role: Kind
    sparse: bool


class Gemma3nSpec(SharingSpec):
    """`activation_sparsity_pattern`: how much of each feed-forward layer's middle is zero. `laurel_rank`: of the bypass."""

    can = Abilities(gguf=True, graph="gemma-3n")
    default_period = 5

    vocab_size: Size = 262400
    max_position_embeddings: Size | None = 32768
    hidden_act: Activation = called("hidden_activation", "gelu_pytorch_tanh")
    tie_word_embeddings: bool = True
    sliding_window: Size = 512
    final_logit_softcapping: Cap = 30.0
    vocab_size_per_layer_input: Size = 262144
    hidden_size_per_layer_input: Size = 256
    altup_active_idx: Annotated[int, Field(ge=0)] = 0
    altup_coef_clip: Annotated[float, Field(gt=0)] = 120.0
    altup_correct_scale: bool = True
    altup_num_inputs: Annotated[int, Field(ge=2, le=64)] = 4
    num_kv_shared_layers: Annotated[int, Field(ge=0, le=2**12)] = 15
    laurel_rank: Size = 64
    activation_sparsity_pattern: tuple[Annotated[float, Field(ge=0, lt=1)], ...] | None = None

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": 2, "head_dim": 256}

    @staticmethod
    def usual_sparsity(layers: int) -> tuple[float, ...]:
        """What is zero where nothing is said."""
        share, count = SPARSE
        count = count if layers > count else 0
        return (share,) * count + (0.0,) * (layers - count)

    @property
    def idle_in_sglang(self) -> int:
        """Layers that take keys of others, for which SGLang has room in its pool, and layers that would make them, all the same
        (sglang/srt/models/gemma3n_causal.py, configs/model_config.py: `num_attention_layers`)."""
        return self.num_kv_shared_layers

    @property
    def places(self) -> tuple[Place, ...]:
        """The kind of each layer."""
        shares = self.activation_sparsity_pattern or self.usual_sparsity(self.num_hidden_layers)
        return tuple([Place(role, share > 0) for role, share in zip(self.roles, shares, strict=True)])

    @model_validator(mode="before")
    @classmethod
    def _each(cls, given: Any) -> Any:
        """Widths of all layers that are one; what is zero unasked follows the number of layers."""
        if not isinstance(given, Mapping):
            return given
        made, layers = dict(given), given.get("num_hidden_layers")
        widths, shares = (given.get(name) for name in BY_LAYER)
        if isinstance(widths, list | tuple) and widths and set(widths) == {widths[0]}:
            made["intermediate_size"] = widths[0]
        if isinstance(shares, list | tuple) and isinstance(layers, int) and tuple(shares) == cls.usual_sparsity(layers):
            del made["activation_sparsity_pattern"]
        return made

    @model_validator(mode="after")
    def _whole(self) -> Self:
        shares = self.activation_sparsity_pattern
        if shares is not None and len(shares) != self.num_hidden_layers:
            raise ValueError(f"activation_sparsity_pattern has {len(shares)} values for {self.num_hidden_layers} layers")
        if self.altup_active_idx >= self.altup_num_inputs:
            raise ValueError(f"altup_active_idx {self.altup_active_idx} is none of {self.altup_num_inputs} streams")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} attention heads")
        return self


SPECS = {"gemma3n_text": Gemma3nSpec}


class KeysAndValues:
    """A layer's own: keys are normalised and rotated, then values made and normalised without a weight."""

    def __init__(self, spec: Gemma3nSpec, build: Builder):
        size, keys, self.head_dim = spec.hidden_size, spec.num_key_value_heads * spec.head_dim, spec.head_dim
        self.k_proj = build.linear("self_attn.k_proj", size, keys, spec.attention_bias)
        self.v_proj = build.linear("self_attn.v_proj", size, keys, spec.attention_bias)
        self.k_norm = RMSNorm(build, "self_attn.k_norm", self.head_dim)
        self.v_norm = RMSNorm(build, "self_attn.v_norm", self.head_dim, weighted=False)
        self.cache = build.cache() if build.cache else None

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        heads = (*hidden.shape[:2], -1, self.head_dim)
        k = reshape(self.k_proj(hidden), heads)
        k = self.k_norm(k)
        k = turned(k, cos, sin)
        k = transpose(k, 1, 2)
        v = reshape(self.v_proj(hidden), heads)
        v = self.v_norm(v)
        v = transpose(v, 1, 2)
        return (k, v) if self.cache is None else self.cache.update(k, v)


def largest(x: Tensor) -> Tensor:
    """What of `x` is above its mean by so many standard deviations (`_gaussian_topk`)."""
    share = empty(x.tape, (), dtypes.float32, "tensor")
    factor = to(empty(x.tape, (), dtypes.float32, "icdf"), x.dtype)
    average = mean_last(x)
    deviation = std_last(x)
    cutoff = add(average, mul(deviation, factor))
    out = relu(sub(x, cutoff))
    del share
    return out


class MLP:
    """down(activation(gate(x)) * up(x)), of which all but the largest gates may be zero."""

    def __init__(self, spec: Gemma3nSpec, build: Builder, sparse: bool):
        size, width, self.sparse = spec.hidden_size, spec.intermediate_size, sparse
        self.gate_proj = build.linear("mlp.gate_proj", size, width)
        self.up_proj = build.linear("mlp.up_proj", size, width)
        self.down_proj = build.linear("mlp.down_proj", width, size)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x)
        if self.sparse:
            gate = largest(gate)
        activated = self.act(gate)
        up = self.up_proj(x)
        return self.down_proj(mul(activated, up))


class AltUp:
    """Predicts all streams before a layer and corrects them after it, by what the layer made of one."""

    def __init__(self, spec: Gemma3nSpec, build: Builder):
        streams, size = spec.altup_num_inputs, spec.hidden_size
        self.streams, self.training = streams, build.training
        self.scale = build.parameter("altup.correct_output_scale", (size,), read=spec.altup_correct_scale)
        build.bypassed.append("altup.correction_coefs")
        with build.unlearning(build.training and build.adapter is not None):  # an adapter on it is not run
            self.correction_coefs = build.linear("altup.correction_coefs", streams, streams, kind=self._bypassed)
        self.prediction_coefs = build.linear("altup.prediction_coefs", streams, streams**2)
        self.modality_router = build.linear("altup.modality_router", size, streams)
        self.router_norm = RMSNorm(build, "altup.router_norm", size)
        self.router_input_scale = build.buffer("altup.router_input_scale", (), build.dtype)

    def _bypassed(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Training takes its weight and multiplies by that itself."""
        self.correction = weight
        return Linear(weight, bias)

    def route(self, x: Tensor) -> Tensor:
        inputs = mul(self.router_norm(x), self.router_input_scale)
        routed = self.modality_router(inputs)
        return to(tanh(to(routed, dtypes.float32)), x.dtype)

    def predict(self, hidden: Tensor) -> Tensor:
        """[streams, batch, tokens, hidden] of the same."""
        modalities = self.route(select(hidden, 0))
        shape = (*modalities.shape[:-1], self.streams, self.streams)
        coefs = permute(reshape(self.prediction_coefs(modalities), shape), (0, 1, 3, 2))
        mixed = matmul(permute(hidden, (1, 2, 3, 0)), coefs)
        order = (3, 0, 1, 2)
        mixed = permute(add_within_(mixed, lambda x: permute(x, order), hidden), order)
        return to(contiguous(mixed), hidden.dtype)

    def correct(self, predictions: Tensor, activated: Tensor) -> Tensor:
        """[streams, batch, tokens, hidden] of the predictions and [batch, tokens, hidden] of a layer."""
        modalities = self.route(activated)
        innovation = sub(activated, select(predictions, 0))
        innovation = repeat(unsqueeze(innovation, 0), self.streams)
        if self.training:
            weight = clamp(self.correction)
            coefs = add_scalar(linear(modalities, weight))
        else:
            coefs = add_scalar(self.correction_coefs(modalities))
        coefs = unsqueeze(permute(coefs, (2, 0, 1)), 3)
        corrected = mul(innovation, coefs)
        corrected = add_(corrected, predictions)
        return to(contiguous(corrected), activated.dtype)

    def scaled(self, x: Tensor) -> Tensor:
        return to(mul(to(x, self.scale.dtype), self.scale), x.dtype)


class Laurel:
    """A bypass of low rank."""

    def __init__(self, spec: Gemma3nSpec, build: Builder):
        self.left = build.linear("laurel.linear_left", spec.hidden_size, spec.laurel_rank)
        self.right = build.linear("laurel.linear_right", spec.laurel_rank, spec.hidden_size)
        self.norm = RMSNorm(build, "laurel.post_laurel_norm", spec.hidden_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self.left(hidden)
        out = self.right(out)
        normed = self.norm(out)
        return add(hidden, normed)


class Gemma3nLayer:
    """`Gemma3nTextDecoderLayer`."""

    def __init__(self, spec: Gemma3nSpec, build: Builder, place: Place):
        norm = partial(RMSNorm, build, size=spec.hidden_size)
        self.self_attn = Gemma4Attention(spec, build, place.role, lambda: KeysAndValues(spec, build))
        self.mlp = MLP(spec, build, place.sparse)
        self.before_attention, self.after_attention = norm("input_layernorm"), norm("post_attention_layernorm")
        self.before_mlp, self.after_mlp = norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm")
        self.altup, self.laurel = AltUp(spec, build), Laurel(spec, build)
        self.beside, self.scales = Beside(spec, build), spec.altup_correct_scale

    def __call__(self, hidden: Tensor, own: Tensor, *shared: Any) -> Tensor:
        predictions = self.altup.predict(hidden)
        active = select(predictions, 0)
        normed = self.before_attention(active)
        bypassed = self.laurel(normed)
        attended, weights = self.self_attn(normed, *shared[:-1])
        attended = self.after_attention(attended)
        gated = add(active, attended)
        joined = div_scalar(add(gated, bypassed))
        fed_with = self.before_mlp(joined)
        fed = self.mlp(fed_with)
        fed_normed = self.after_mlp(fed)
        out = add(joined, fed_normed)
        corrected = self.altup.correct(predictions, out)
        first = clone(select(corrected, 0))
        if self.scales:
            first = self.altup.scaled(first)
        beside = self.beside
        first = beside.gate(first)
        first = beside.activation(first)
        first = mul(first, own)
        first = beside.projection(first)
        first = beside.norm(first)
        others = corrected.shape[0] - 1
        corrected = add_within_(corrected, lambda x: narrow(x, 0, others), first)
        corrected = write_part(corrected, narrow(corrected, 0, others))
        del weights, fed, fed_normed
        return corrected


class Gemma3nPerLayer(PerLayer):
    """Ids that the table has no row for become the first; its factors are tensors."""

    def add_scales(self, build: Builder) -> None:
        """They stand after the streams' projections."""
        self.scales = [build.buffer(name, (), build.dtype) for name in ("per_layer_projection_scale", "per_layer_input_scale")]

    def by_id(self, ids: Tensor) -> Tensor:
        known = empty(ids.tape, ids.shape, dtypes.int64, "where")
        return reshape(self.table(known), (*ids.shape, *self.shape))

    def joined(self, embeds: Tensor, by_id: Tensor) -> Tensor:
        projected = self.projection(embeds)
        projected = mul_(projected, to(self.scales[0], embeds.dtype))
        projected = reshape(projected, (*embeds.shape[:-1], *self.shape))
        projected = self.norm(projected)
        return mul(add(projected, by_id), to(self.scales[1], embeds.dtype))


class Gemma3nBody(Decoder):
    """The body of the model (`Gemma3nTextModel`)."""

    def __init__(self, spec: Gemma3nSpec, build: Builder):
        refuse_quantization(build, spec.model_type)
        super().__init__(
            spec, build, lambda place: Gemma3nLayer(spec, build, place), spec.places,
            rotary=Rotary(spec.head_dim, kinds=spec.kinds), norm=partial(RMSNorm, build),
            scale=build.buffer("embed_scale", (), build.dtype), tail=spec.tail,
        )  # fmt: skip
        self.per_layer = Gemma3nPerLayer(spec, build)
        size, further = spec.hidden_size, range(spec.altup_num_inputs - 1)
        self.spread = [build.linear(f"altup_projections.{i}", size, size) for i in further]
        self.unspread = [build.linear(f"altup_unembed_projections.{i}", size, size) for i in further]
        self.per_layer.add_scales(build)

    def forward(self, ids: Tensor, given: Tensor | None = None, prepared: dict[LayerType, Tensor | None] | None = None) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = self.embed_tokens(ids) if given is None else given
        each = self.per_layer.by_id(ids)
        each = self.per_layer.joined(embeds, each)
        positions = token_positions(tape, tokens)
        masks = prepared or self.masks(self.spec, tape, batch, tokens, embeds.dtype, self.attention)
        magnitude = pow_scalar(mean_last(pow_scalar(embeds)))
        parts = [embeds]
        for projection in self.spread:
            projected = projection(embeds)  # the last one's stays until the end, as its copy in another type does not
            current = to(projected, embeds.dtype)
            own = mean_last(pow_scalar(current))
            own = sqrt(clamp(own, lower=False))
            current = div(mul(current, magnitude), own)
            parts.append(current)
        hidden = stack_first(parts)
        tables = self.rotary.tables(ids, hidden.dtype)
        states: States = {}
        for (role, _), layer in self.layers.by_kind():
            beside = select(each, 2)
            hidden = layer(hidden, beside, *tables[role.sees], masks[role.sees], states, positions)
        magnitude = pow_scalar(mean_last(pow_scalar(select(hidden, 0))))
        parts = [select(hidden, 0)]
        for projection in self.unspread:
            unprojected = projection(select(hidden, 0))
            current = to(unprojected, embeds.dtype)
            own = mean_last(pow_scalar(current))
            own = sqrt(clamp(own, lower=False))
            current = div(mul(current, magnitude), own)
            parts.append(current)
        hidden = stack_first(parts)
        hidden = mean(hidden, 0)
        return self.norm(hidden)


HEADS = {"causal-lm": lambda spec, build: Gemma2CausalLM(Gemma3nBody(spec, build), spec, build)}
