"""SigLIP, and SigLIP 2 on images of one size: a tower for images, a tower for texts, and a loss that asks of each pair by itself
whether it belongs together.

After transformers' modeling_siglip.py (5.23), and torch's multi_head_attention_forward. A batch is so many images and as many
texts; the loss compares those of one GPU.
"""

from __future__ import annotations

from pydantic import SerializeAsAny

from estimator.contract.errors import NotModelled
from estimator.families import clip
from estimator.families.build import Builder
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.heads import Batch
from estimator.families.model_output import Held
from estimator.families.modules import Linear, Module
from estimator.families.parts import ComposedSpec
from estimator.families.siglip import SiglipTextSpec, SiglipVisionSpec, VisionModel, encoder
from estimator.tape import dtypes
from estimator.tape.autocast import cast_all
from estimator.tape.dtypes import DType
from estimator.tape.logprobs import log_sigmoid
from estimator.tape.matmul import bmm, linear, mm
from estimator.tape.pointwise import add, div, exp, mul, mul_scalar, neg, softmax
from estimator.tape.reduction import mean, sum_dim, vector_norm
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, narrow, permute, repeat_first, reshape, select, split, transpose, unsqueeze


class SiglipSpec(ComposedSpec):
    runs = learned_positions = True
    embeds = True
    kinds = {"text_config": "siglip_text_model", "vision_config": "siglip_vision_model"}
    fixed = ("text_config", "vision_config")
    text_class = SiglipTextSpec

    text_config: SerializeAsAny[SiglipTextSpec]

    @property
    def forward_modelled(self) -> bool:
        return self.tower.vision_use_head

    @property
    def refusal(self) -> str:
        return "a siglip model without its pooling head (vision_use_head: false) has nothing to compare texts with"

    @property
    def tower(self) -> SiglipVisionSpec:
        """The image encoder."""
        assert isinstance(self.vision_config, SiglipVisionSpec)
        return self.vision_config

    @property
    def vocab_size(self) -> int:
        return self.text_config.vocab_size

    @property
    def num_channels(self) -> int:
        return self.tower.num_channels

    @property
    def image_size(self) -> int:
        return self.tower.image_size


SPECS = {"siglip": SiglipSpec}


class TextModel:
    """The text encoder (`SiglipTextModel`): what a text's last token gets goes through a linear layer."""

    def __init__(self, spec: SiglipTextSpec, build: Builder):
        places = spec.max_position_embeddings
        self.token_embedding = build.embedding("text_model.token_embedding", spec.vocab_size, spec.hidden_size, first=True)
        self.position_embedding = build.embedding("text_model.position_embedding", places, spec.hidden_size, first=False)
        self.position_ids = build.buffer("text_model.position_ids", (1, places), dtypes.int64)
        self.layers = encoder(spec, build, "text_model.layers", path="text_model.")
        self.final_layer_norm = build.layer_norm("text_model.final_layer_norm", spec.hidden_size)
        self.head = build.linear("text_model.head", spec.hidden_size, spec.projection_size or spec.hidden_size, True)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Last hidden states, and what is compared."""
        hidden = self._embed(ids)
        encoded = clip.encode(self.layers, hidden, None)
        last = self.final_layer_norm(encoded)
        return last, self.head(select(last, 1))

    def _embed(self, ids: Tensor) -> Tensor:
        embeds = self.token_embedding(ids)
        return add(embeds, self.position_embedding(narrow(self.position_ids, 1, ids.shape[1])))


class PoolingHead:
    """A learned query that attends to all patches (`SiglipMultiheadAttentionPoolingHead`)"""

    def __init__(self, spec: SiglipVisionSpec, build: Builder):
        size, name = spec.hidden_size, "vision_model.head"
        self.heads = spec.num_attention_heads
        self.probe = build.parameter(name + ".probe", (1, 1, size))
        self.in_proj_weight = build.parameter(name + ".attention.in_proj_weight", (3 * size, size))
        self.in_proj_bias = build.parameter(name + ".attention.in_proj_bias", (3 * size,))
        self.out_proj, self.not_called = bypassed(build, name + ".attention.out_proj", size)
        self.layernorm = build.layer_norm(name + ".layernorm", size)
        self.mlp = TwoLayerMLP(spec, build, ("fc1", "fc2"), bias=True, name=name + ".mlp")

    def __call__(self, hidden: Tensor) -> Tensor:
        """One vector of each image, of its patches [images, patches, width]."""
        probe = repeat_first(self.probe, hidden.shape[0])
        attended = self._attend(probe, hidden)
        out = self.layernorm(attended)
        out = add(attended, self.mlp(out))
        del probe
        return select(out, 1)

    def _attend(self, probe: Tensor, hidden: Tensor) -> Tensor:
        images, patches, size = hidden.shape
        query, key = transpose(probe, 0, 1), transpose(hidden, 0, 1)
        q, k, v = self._projected(query, key)
        q = transpose(reshape(q, (1, images * self.heads, -1)), 0, 1)
        k = transpose(reshape(k, (patches, images * self.heads, -1)), 0, 1)
        v = transpose(reshape(v, (patches, images * self.heads, -1)), 0, 1)
        scaled = mul_scalar(q)
        weights = bmm(scaled, transpose(k, 1, 2))
        weights = softmax(weights)
        out = bmm(weights, v)
        out = reshape(contiguous(transpose(out, 0, 1)), (images, size))
        out = linear(out, self.out_proj.weight, self.out_proj.bias)
        out = reshape(out, (1, images, size))
        averaged = mean(reshape(weights, (images, self.heads, 1, patches)), 1)
        out = transpose(out, 0, 1)
        del averaged, scaled
        return out

    def _projected(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`_in_projection_packed`: queries by themselves, keys and values together."""
        patches, images, size = key.shape
        w_q, w_kv = split(self.in_proj_weight, (size, 2 * size), 0)
        b_q, b_kv = split(self.in_proj_bias, (size, 2 * size), 0)
        q = linear(query, w_q, b_q)
        both = linear(key, w_kv, b_kv)
        both = contiguous(permute(reshape(both, (patches, images, 2, size)), (2, 0, 1, 3)))
        return q, select(both, 0), select(both, 0)


class SigLIP:
    """Both encoders (`SiglipModel`)."""

    def __init__(self, spec: SiglipSpec, build: Builder):
        self.vision = spec.tower
        self.logit_scale = build.parameter("logit_scale", (1,))
        self.logit_bias = build.parameter("logit_bias", (1,))
        self.text_model = TextModel(spec.text_config, build)
        self.vision_model = VisionModel(spec.tower, build, pooled=False)
        self.head = PoolingHead(spec.tower, build) if spec.tower.vision_use_head else None

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        size = self.vision.image_size
        ids = empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids")
        return ids, empty(tape, (batch.sequences, self.vision.num_channels, size, size), dtype, "pixel_values")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids, pixels = inputs
        assert self.head is not None
        (seen,) = self.vision_model.see(pixels)
        image = self.head(seen)
        read, text = self.text_model.forward(ids)
        with ids.tape.losing():
            image_embeds = div(image, unsqueeze(vector_norm(image, 1), 1))
            text_embeds = div(text, unsqueeze(vector_norm(text, 1), 1))
            logits = mm(*cast_all(text_embeds, transpose(image_embeds, 0, 1)))
            logits = mul(logits, exp(self.logit_scale))
            logits = add(logits, self.logit_bias)
            loss = _pairwise(logits)
        return loss, (logits, text_embeds, image_embeds, read, text, seen, image)


def bypassed(build: Builder, name: str, size: int) -> tuple[Linear, Module]:
    """A layer whose weights `torch.nn.MultiheadAttention` takes without calling it: an adapter on it is trained, and gets no
    gradients. The layer, and the module that the adapter makes of it."""
    found: list[Linear] = []

    def taken(weight: Tensor, bias: Tensor | None) -> Linear:
        found.append(Linear(weight, bias))
        return found[0]

    build.bypassed.append(name)
    adapter = build.adapter if build.training else None
    adapted = adapter is not None and adapter.targets(name)
    if adapted and adapter is not None and adapter.trains(name + ".bias", True):
        raise NotModelled(
            "the bias of an adapted layer whose adapter is not run is not modelled yet: write none", "training.adapter.bias"
        )
    with build.unlearning(adapted):
        module = build.linear(name, size, size, True, taken, quantized=False)
    return found[0], module


def _pairwise(logits: Tensor) -> Tensor:
    """The sigmoid loss of every pair; those that belong together are on the diagonal."""
    tape, pairs = logits.tape, logits.shape
    diagonal = empty(tape, pairs, dtypes.float32, "eye")
    signs = empty(tape, pairs, dtypes.float32, "add")
    likelihood = log_sigmoid(mul(signs, logits))
    losses = neg(sum_dim(likelihood, -1))
    loss = mean(losses, 0)
    del diagonal
    return loss


HEADS = {"contrastive": SigLIP}
