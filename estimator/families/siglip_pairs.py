"""SigLIP, and SigLIP 2 on images of one size: a tower for images, a tower for texts, and a loss that asks of each pair by itself
whether it belongs together.

After transformers' modeling_siglip.py (5.23). A batch is so many images and as many
texts; the loss compares those of one GPU.
"""

from __future__ import annotations

from pydantic import SerializeAsAny

from estimator.families import clip
from estimator.families.build import Builder
from estimator.families.heads import Batch
from estimator.families.model_output import Held
from estimator.families.parts import ComposedSpec
from estimator.families.siglip import SiglipTextSpec, SiglipVisionSpec, VisionModel, encoder
from estimator.families.siglip_pooling import PoolingHead
from estimator.tape import dtypes
from estimator.tape.autocast import cast_all
from estimator.tape.dtypes import DType
from estimator.tape.logprobs import log_sigmoid
from estimator.tape.matmul import mm
from estimator.tape.pointwise import add, div, exp, mul, neg
from estimator.tape.reduction import mean, sum_dim, vector_norm
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import narrow, select, transpose, unsqueeze


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
        self.token_embedding = build.embedding("embeddings.token_embedding", spec.vocab_size, spec.hidden_size, first=True)
        self.position_embedding = build.embedding("embeddings.position_embedding", places, spec.hidden_size, first=False)
        self.position_ids = build.buffer("embeddings.position_ids", (1, places), dtypes.int64)
        self.layers = encoder(spec, build, "text_model.layers")
        self.final_layer_norm = build.layer_norm("final_layer_norm", spec.hidden_size)
        self.head = build.linear("head", spec.hidden_size, spec.projection_size or spec.hidden_size, True)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Last hidden states, and what is compared."""
        hidden = self._embed(ids)
        encoded = clip.encode(self.layers, hidden, None)
        last = self.final_layer_norm(encoded)
        return last, self.head(select(last, 1))

    def _embed(self, ids: Tensor) -> Tensor:
        embeds = self.token_embedding(ids)
        return add(embeds, self.position_embedding(narrow(self.position_ids, 1, ids.shape[1])))


class SigLIP:
    """Both encoders (`SiglipModel`)."""

    def __init__(self, spec: SiglipSpec, build: Builder):
        self.vision = spec.tower
        self.logit_scale = build.parameter("logit_scale", (1,))
        self.logit_bias = build.parameter("logit_bias", (1,))
        with build.part("text_model"):
            self.text_model = TextModel(spec.text_config, build)
        with build.part("vision_model"):
            self.vision_model = VisionModel(spec.tower, build, pooled=False)
            self.head = PoolingHead(spec.tower, build, "head") if spec.tower.vision_use_head else None

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
