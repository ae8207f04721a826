"""CLIP and MetaCLIP 2: a tower for images, a tower for texts, and a loss that asks which image belongs to which text.

After transformers' modeling_clip.py and modeling_metaclip_2.py (5.23).

A batch is so many images and as many texts; the loss compares those of one GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from estimator.contract.errors import NotModelled
from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.heads import Batch
from estimator.families.layers import Layers
from estimator.families.model_output import Held
from estimator.families.modules import LayerNorm
from estimator.families.spec import Activation, Depth, ModelSpec, Probability, Size
from estimator.families.vit import patches
from estimator.tape import dtypes
from estimator.tape.autocast import cast_all
from estimator.tape.dtypes import DType
from estimator.tape.loss import cross_entropy
from estimator.tape.matmul import mm
from estimator.tape.pointwise import add, div, exp, mul, mul_scalar, pow_scalar, to
from estimator.tape.reduction import mean, sum_dim
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, contiguous, expand, index, narrow, reshape, select, transpose


class TowerSpec(BaseModel):
    """What a tower says in `text_config` or `vision_config`, with transformers' defaults. Other keys are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    hidden_size: Size = 512
    intermediate_size: Size = 2048
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 8
    hidden_act: Activation = "quick_gelu"
    attention_dropout: Probability = 0.0

    @model_validator(mode="after")
    def _whole(self) -> TowerSpec:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} heads")
        return self


class TextSpec(TowerSpec):
    vocab_size: Size = 49408
    max_position_embeddings: Size = 77
    eos_token_id: int | None = 49407


class VisionSpec(TowerSpec):
    hidden_size: Size = 768
    intermediate_size: Size = 3072
    num_attention_heads: Size = 12
    num_channels: Size = 3
    image_size: Size = 224
    patch_size: Size = 32

    @property
    def tokens(self) -> int:
        """Patches of an image, and one token for its class."""
        return (self.image_size // self.patch_size) ** 2 + 1


class CLIPSpec(ModelSpec):
    """`hidden_size`, `num_hidden_layers` (of both towers) and `max_position_embeddings` (of texts) follow from the towers."""

    made = frozenset({"hidden_size", "num_hidden_layers"})

    learned_positions = embeds = True
    ends_by_height: ClassVar[bool] = True
    """Whether a text ends at the token with the highest number where `eos_token_id` is 2."""

    text_config: TextSpec
    vision_config: VisionSpec
    projection_dim: Size = 512

    @model_validator(mode="before")
    @classmethod
    def _towers(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        made = dict(given)
        for part, kind in (("text_config", TextSpec), ("vision_config", VisionSpec)):
            older = made.pop(part + "_dict", None)  # wins where an older config.json has both
            if (said := older if older is not None else made.get(part)) is not None:
                made[part] = kind.model_validate(said)
        text, vision = made.get("text_config"), made.get("vision_config")
        if isinstance(text, TextSpec) and isinstance(vision, VisionSpec):
            made["hidden_size"] = text.hidden_size
            made["num_hidden_layers"] = text.num_hidden_layers + vision.num_hidden_layers
            made["max_position_embeddings"] = text.max_position_embeddings
        return made

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() | {"text_config_dict", "vision_config_dict"}

    def config(self) -> dict[str, Any]:
        return self.model_dump(exclude={"hidden_size", "num_hidden_layers", "max_position_embeddings"})

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        """Keys and values of texts, whose tokens see those before them alone (vllm/model_executor/models/clip.py,
        `CLIPTextTransformer`: `attn_cls=Attention`)."""
        text = self.text_config
        size = text.hidden_size // text.num_attention_heads
        return (attention(text.num_attention_heads, size),) * text.num_hidden_layers

    @property
    def vocab_size(self) -> int:
        return self.text_config.vocab_size

    @property
    def num_channels(self) -> int:
        return self.vision_config.num_channels

    @property
    def image_size(self) -> int:
        return self.vision_config.image_size


class MetaClip2Spec(CLIPSpec):
    last_vllm = "none"
    in_sglang = "none"
    ends_by_height = False


SPECS = {"clip": CLIPSpec, "metaclip_2": MetaClip2Spec}


class SelfAttention:
    def __init__(self, spec: TowerSpec, build: Builder):
        size = spec.hidden_size
        self.head_dim = size // spec.num_attention_heads
        self.k_proj = build.linear("self_attn.k_proj", size, size, True)
        self.v_proj = build.linear("self_attn.v_proj", size, size, True)
        self.q_proj = build.linear("self_attn.q_proj", size, size, True)
        self.out_proj = build.linear("self_attn.out_proj", size, size, True)
        self.attend = Attention(build.attention, dropout=spec.attention_dropout, causal=isinstance(spec, TextSpec))

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = self.q_proj(hidden)
        k = self.k_proj(hidden)
        v = self.v_proj(hidden)
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        out, weights = self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (batch, tokens, -1)))
        out = self.out_proj(out)
        return out, weights


class EncoderLayer:
    """`norms_first`: each norm is made before its block, as SigLIP's are."""

    def __init__(self, spec: TowerSpec, build: Builder, norms_first: bool = False):
        norms = [build.layer_norm("layer_norm1", spec.hidden_size)] if norms_first else []
        self.self_attn = SelfAttention(spec, build)
        norms.append(build.layer_norm("layer_norm2" if norms_first else "layer_norm1", spec.hidden_size))
        self.mlp = TwoLayerMLP(spec, build, ("fc1", "fc2"), bias=True)
        norms += [] if norms_first else [build.layer_norm("layer_norm2", spec.hidden_size)]
        self.layer_norm1, self.layer_norm2 = norms

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        residual = hidden
        out = self.layer_norm1(hidden)
        out, _ = self.self_attn(out, mask)
        out = add(residual, out)
        residual = out
        out = self.layer_norm2(out)
        out = self.mlp(out)
        return add(residual, out)


class TextModel:
    def __init__(self, spec: TextSpec, build: Builder, ends_by_height: bool = True):
        self.attention = build.attention
        self.by_token = spec.eos_token_id != 2 or not ends_by_height
        self.token_embedding = build.embedding("embeddings.token_embedding", spec.vocab_size, spec.hidden_size, first=True)
        places = spec.max_position_embeddings
        self.position_embedding = build.embedding("embeddings.position_embedding", places, spec.hidden_size, first=False)
        self.position_ids = build.buffer("embeddings.position_ids", (1, places), dtypes.int64)
        self.layers = build.layers(
            spec.num_hidden_layers, lambda _: EncoderLayer(spec, build), "text_model.layers", places="encoder.layers"
        )
        self.final_layer_norm = build.layer_norm("final_layer_norm", spec.hidden_size)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Last hidden states, and those of each text's last token."""
        batch, tokens = ids.shape
        hidden = self._embed(ids)
        mask = causal_mask(ids.tape, batch, tokens, hidden.dtype, self.attention, None)
        encoded = encode(self.layers, hidden, mask)
        last = self.final_layer_norm(encoded)
        rows = empty(ids.tape, (batch,), dtypes.int64, "arange")
        return last, index(last, (rows, self._ends(ids)), (batch, last.shape[-1]))

    def _embed(self, ids: Tensor) -> Tensor:
        embeds = self.token_embedding(ids)
        positions = self.position_embedding(narrow(self.position_ids, 1, ids.shape[1]))
        return add(embeds, positions)

    def _ends(self, ids: Tensor) -> Tensor:
        """The place of each text's end: of the token that ends it, else of the token with the highest number."""
        found = empty(ids.tape, ids.shape, dtypes.int32, "_to_copy")
        if self.by_token:
            found = empty(ids.tape, ids.shape, dtypes.bool_, "eq")
            found = empty(ids.tape, ids.shape, dtypes.int32, "_to_copy")
        ends = empty(ids.tape, ids.shape[:1], dtypes.int64, "argmax")
        del found
        return ends


class VisionModel:
    def __init__(self, spec: VisionSpec, build: Builder, whole: bool, states: Sequence[int] = ()):
        """`whole`: in a model of both towers, which reads the class token; `patch_embedding` is one of its input embeddings.

        `states`: which hidden states are read, where it is not the last ones: those before the layer of that number.
        """
        size, patch = spec.hidden_size, (spec.patch_size, spec.patch_size)
        self.class_embedding = build.parameter("embeddings.class_embedding", (size,))
        self.patch_embedding = build.convolution(
            "embeddings.patch_embedding", spec.num_channels, size, patch, spec.patch_size, bias=False, first=whole
        )
        self.position_embedding = build.embedding("embeddings.position_embedding", spec.tokens, size, first=False)
        self.position_ids = build.buffer("embeddings.position_ids", (1, spec.tokens), dtypes.int64)
        self.pre_layrnorm = build.layer_norm("pre_layrnorm", size)
        self.states = frozenset(states)
        self.layers = layers_of(spec, build, self.states, "vision_model.layers")
        trained = None if whole else False  # what no head reads gets no gradient
        with build.unlearning(bool(states)):
            weights = [build.parameter(f"post_layernorm.{part}", (size,), trainable=trained) for part in ("weight", "bias")]
        self.post_layernorm = LayerNorm(*weights)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Last hidden states, and those of each image's class token."""
        last, pooled, *_ = self.see(pixels)
        return last, pooled

    def see(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """The same, and the hidden states that are read."""
        hidden = self._embed(pixels)
        hidden = self.pre_layrnorm(hidden)
        last, *states = encoded(self.layers, hidden, self.states)
        pooled = select(last, 1)
        pooled = self.post_layernorm(pooled)
        return last, pooled, *states

    def _embed(self, pixels: Tensor) -> Tensor:
        embeds = patches(self.patch_embedding(to(pixels, self.patch_embedding.weight.dtype)))
        class_embeds = expand(self.class_embedding, (pixels.shape[0], 1, embeds.shape[-1]))
        embeddings = cat((class_embeds, embeds), 1)
        embeddings = add(embeddings, self.position_embedding(self.position_ids))
        del embeds
        return embeddings


def layers_of(spec: TowerSpec, build: Builder, states: Collection[int], label: str, norms_first: bool = False) -> Layers:
    """The layers of a tower of which only some hidden `states` are read: those before the layer of that number.

    From the first of them on each layer is of a kind of its own. What comes after the last is run, but the loss does not depend
    on it.
    """
    depth = spec.num_hidden_layers
    first, last = (min(states), max(states)) if states else (depth, depth)

    def layer(number: int | None) -> EncoderLayer:
        with build.unlearning(number is not None and number >= last):
            return EncoderLayer(spec, build, norms_first)

    return build.layers([None if i < first else i for i in range(depth)], layer, label, places="encoder.layers")


def encoded(layers: Layers, embeds: Tensor, states: Collection[int]) -> tuple[Tensor, ...]:
    """Last hidden states, and those that are read."""
    hidden, read = embeds, []
    depth = layers.stack.layers
    for number, layer in layers.by_kind():
        if number in states:
            read.append(hidden)
        hidden = layer(hidden, None)
    if depth in states:
        read.append(hidden)
    return hidden, *read


def encode(layers: Layers, embeds: Tensor, mask: Tensor | None) -> Tensor:
    hidden = embeds
    for layer in layers:
        hidden = layer(hidden, mask)
    return hidden


def norm(x: Tensor) -> Tensor:
    """Length of the vectors in the last dimension, out of plain operations (`_get_vector_norm`)."""
    square = pow_scalar(x)
    summed = sum_dim(square, -1, keepdim=True)
    root = pow_scalar(summed)
    del square
    return root


def contrastive_loss(logits: Tensor) -> Tensor:
    return cross_entropy(logits, empty(logits.tape, logits.shape[:1], dtypes.int64, "arange"))


class CLIP:
    """CLIP's text encoder and image encoder, each with its projection (`CLIPModel`, `MetaClip2Model`)."""

    def __init__(self, spec: CLIPSpec, build: Builder):
        self.vision = spec.vision_config
        self.logit_scale = build.parameter("logit_scale", ())
        with build.part("text_model"):
            self.text_model = TextModel(spec.text_config, build, spec.ends_by_height)
        with build.part("vision_model"):
            self.vision_model = VisionModel(spec.vision_config, build, whole=True)
        self.visual_projection = build.linear("visual_projection", spec.vision_config.hidden_size, spec.projection_dim)
        self.text_projection = build.linear("text_projection", spec.text_config.hidden_size, spec.projection_dim)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        ids = empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids")
        return ids, images(tape, batch, self.vision, dtype)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids, pixels = inputs
        seen, image = self.vision_model.forward(pixels)
        image_projected = self.visual_projection(image)
        del image
        read, text = self.text_model.forward(ids)
        text_projected = self.text_projection(text)
        del text
        with ids.tape.losing():
            image_embeds = div(image_projected, norm(image_projected))
            text_embeds = div(text_projected, norm(text_projected))
            logits = mm(*cast_all(text_embeds, transpose(image_embeds, 0, 1)))
            logits = mul(logits, exp(self.logit_scale))
            caption_loss = contrastive_loss(logits)
            image_loss = contrastive_loss(transpose(logits, 0, 1))
            loss = mul_scalar(add(caption_loss, image_loss))
        return loss, (logits, text_embeds, image_embeds, read, text_projected, seen, image_projected)


class ImageClassification:
    """The vision tower with a linear layer on the mean of its patches (`CLIPForImageClassification`)."""

    def __init__(self, spec: CLIPSpec, build: Builder):
        if build.checkpointing.segment:
            raise NotModelled(
                "segments of layers in CLIP's tower are not modelled yet; use full or {every: k}",
                "training.activation_checkpointing",
            )
        self.vision = spec.vision_config
        with build.part("vision_model"):
            self.vision_model = VisionModel(spec.vision_config, build, whole=False)
        self.classifier = build.linear("classifier", spec.vision_config.hidden_size, build.labels, True, quantized=False)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        return images(tape, batch, self.vision, dtype), empty(tape, (batch.sequences,), dtypes.int64, "labels")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        pixels, labels = inputs
        outputs = self.vision_model.forward(pixels)
        with pixels.tape.losing():
            sequence = mean(narrow(outputs[0], 1, outputs[0].shape[1] - 1), 1)
            logits = self.classifier(sequence)
            loss = cross_entropy(logits, labels)
        return loss, logits


def images(tape: Tape, batch: Batch, spec: VisionSpec, dtype: DType) -> Tensor:
    return empty(tape, (batch.sequences, spec.num_channels, spec.image_size, spec.image_size), dtype, "pixel_values")


HEADS = {"contrastive": CLIP, "image-classification": ImageClassification}
