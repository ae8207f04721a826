"""Llama 3.2 Vision: a Llama of which some layers read, instead of the text before, what the vision tower gives.

After transformers' modeling_mllama.py (5.23).
"""

from __future__ import annotations

from typing import Any

from pydantic import SerializeAsAny

from estimator.contract.job.images import Images
from estimator.families.build import Builder
from estimator.families.heads import Batch, CausalLM, Model
from estimator.families.image_text import ImageTextToText
from estimator.families.mllama_text import Body, MllamaTextSpec, decoder
from estimator.families.mllama_vision import MllamaVisionSpec, VisionModel
from estimator.families.model_output import Held
from estimator.families.modules import Module
from estimator.families.parts import MultimodalSpec
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import to
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape


class MllamaSpec(MultimodalSpec):
    """Its output layer is never tied: the input embedding has more rows."""

    runs = beside_texts = True
    attentions = ("sdpa", "eager")
    towers, languages = ("mllama_vision_model",), ("mllama_text_model",)
    last_vllm = "0.10.2"
    kinds = {"text_config": "mllama_text_model", "vision_config": "mllama_vision_model"}
    fixed = ("text_config", "vision_config")

    vision_config: SerializeAsAny[MllamaVisionSpec]

    def image_tokens(self, images: Images) -> int | None:
        """One stands for all of it, which other layers read."""
        return 1 if self.vision_config.fits else None

    def config(self) -> dict[str, Any]:
        return {name: value for name, value in super().config().items() if name != "tie_word_embeddings"}


SPECS = {"mllama": MllamaSpec}


class Mllama:
    """The whole model (`MllamaForConditionalGeneration`), on texts with images."""

    def __init__(self, body: Body, tower: VisionModel, projector: Module, spec: MllamaSpec, build: Builder):
        assert build.images is not None
        self.body, self.tower, self.projector, self.spec = body, tower, projector, spec.vision_config
        self.images, self.loss = build.images.count, build.kernels.loss
        self.lm_head = build.head(spec.text_config.hidden_size, spec.text_config.vocab_size, tied=False)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Token ids, which are the labels too; tiles; the proportions of each image; which tiles there are; and which tokens see
        which of them."""
        spec, sequences, each = self.spec, batch.sequences, (batch.sequences, self.images)
        side, tiles = spec.image_size, spec.max_num_tiles
        ids = empty(tape, (sequences, batch.tokens), dtypes.int64, "input_ids")
        pixels = empty(tape, (*each, tiles, spec.num_channels, side, side), dtypes.float32, "pixel_values")
        ratios = empty(tape, each, dtypes.int64, "aspect_ratio_ids")
        there = empty(tape, (*each, tiles), dtypes.int64, "aspect_ratio_mask")
        return ids, pixels, ratios, there, empty(tape, (sequences, batch.tokens, self.images, tiles), dtypes.int64, "mask")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids, pixels, ratios = inputs[:3]
        hidden = self._read(ids, pixels, ratios)
        with ids.tape.losing():
            logits = self.lm_head(hidden)
            return self.loss(logits, ids), logits

    def _read(self, ids: Tensor, pixels: Tensor, ratios: Tensor) -> Tensor:
        """`MllamaModel.forward`: last hidden states. What the tower gave lives until they are there."""
        (sequences, images, *shape), tokens = pixels.shape, self.spec.patches + 1
        seen = self.tower(reshape(pixels, (sequences * images, *shape)), reshape(ratios, (sequences * images, 1)))
        states = reshape(self.projector(seen), (-1, tokens, self.body.spec.hidden_size))
        mask, seeing = self._masks(ids, states.shape[0] * tokens // sequences)
        hidden = self.body.see(ids, states, mask, reshape(seeing, (*ids.shape, 1)))
        del seen, states, mask, seeing
        return hidden

    def _masks(self, ids: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        """What of the images each token sees, in numbers that are added, and which tokens see any."""
        tape, (batch, tokens), dtype = ids.tape, ids.shape, self.tower.class_embedding.dtype
        shape = (batch, 1, tokens, keys)
        repeated = empty(tape, shape, dtypes.int64, "clone")
        inverted = to(empty(tape, shape, dtypes.float32, "rsub"), dtype)
        chosen = empty(tape, shape, dtypes.bool_, "_to_copy")
        mask = empty(tape, shape, dtype, "masked_fill")
        del repeated, chosen
        compared = empty(tape, shape, dtypes.bool_, "ne")
        some = empty(tape, (batch, 1, tokens), dtypes.bool_, "any")
        del compared
        seeing = empty(tape, (batch, 1, tokens, 1), dtype, "_to_copy")
        del some, inverted
        return mask, seeing


def mllama(spec: MllamaSpec, build: Builder) -> Model:
    """The whole model (`MllamaForConditionalGeneration`)."""
    text, learns = spec.language_model, build.images is not None
    assert isinstance(text, MllamaTextSpec)
    with build.part("model.language_model"):  # first, since transformers counts no layer of the tower for checkpoints
        body = decoder(text, build)
        language = None if learns else CausalLM(body, text.model_copy(update={"tie_word_embeddings": False}), build)
    with build.part("model.vision_model", learns), build.ahead():
        tower = VisionModel(spec.vision_config, build)
    with build.part("model", learns), build.ahead("lm_head.weight"):
        projector = build.linear("multi_modal_projector", spec.vision_config.vision_output_dim, text.hidden_size, True)
    if language is None:
        return Mllama(body, tower, projector, spec, build)
    return ImageTextToText(language, None, build, held=(tower, projector))


HEADS = {"image-text-to-text": mllama}
