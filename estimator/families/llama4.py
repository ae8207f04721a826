"""Llama 4: a mixture of experts that gets an image's patches through one linear layer.

An image is cut into tiles, and comes once more as a whole, in the size of a tile. After transformers' modeling_llama4.py and
image_processing_llama4.py (5.23).
"""

from __future__ import annotations

from pydantic import SerializeAsAny

from estimator.contract.job.images import Images
from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.heads import Batch
from estimator.families.llama4_text import Llama4TextSpec
from estimator.families.llama4_text import llama4 as decoder
from estimator.families.llama4_vision import Llama4VisionSpec, VisionModel
from estimator.families.model_output import Held
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import to
from estimator.tape.scatter import masked_scatter
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape, unsqueeze

MOST = 16
"""Tiles that an image is cut into, at most (`max_patches`), beside the whole one."""


class Llama4Spec(MultimodalSpec):
    runs = narrow_pixels = True
    window_pool = "0.5.8"
    images_in_sglang = "left out"
    without_lora = Llama4TextSpec.without_lora
    towers, languages = ("llama4_vision_model",), ("llama4_text",)
    kinds = {"text_config": "llama4_text", "vision_config": "llama4_vision_model"}
    fixed = ("text_config", "vision_config")

    vision_config: SerializeAsAny[Llama4VisionSpec]

    @property
    def forward_modelled(self) -> bool:
        return super().forward_modelled and self.vision_config.fits

    @property
    def refusal(self) -> str:
        if self.vision_config.fits:
            return super().refusal
        sizes = (
            "hidden_size, pixel_shuffle_ratio, intermediate_size, projector_input_dim, projector_output_dim, vision_output_dim"
        )
        return f"the forward pass of llama4 models whose tower's layers do not fit each other is not modelled: see its {sizes}"

    @property
    def picture(self) -> Picture | None:
        tiles, shuffled = MOST + 1, self.vision_config.merged**2
        return Picture(tiles * self.vision_config.patches // shuffled, tiles * self.vision_config.pixels)

    def squares(self, images: Images) -> int:
        """Tiles of an image, the whole one among them."""
        rows, columns = cut(images.height, images.width, self.vision_config.image_size)
        return rows * columns + (rows * columns > 1)

    def image_tokens(self, images: Images) -> int | None:
        """Those that stand for tiles; what separates them is text."""
        return self.squares(images) * (self.vision_config.patches // self.vision_config.merged**2)

    @property
    def tied(self) -> bool:
        return self.text_config.tie_word_embeddings


SPECS = {"llama4": Llama4Spec}


def cut(height: int, width: int, side: int) -> tuple[int, int]:
    """Rows and columns of tiles of `side` pixels that an image is cut into: those that enlarge it least, or where all of them
    make it smaller, least; of several the smallest (`get_best_fit`)."""
    shapes = [(rows, count // rows) for count in range(MOST, 0, -1) for rows in range(1, count + 1) if count % rows == 0]
    scales = {shape: min(shape[0] * side / height, shape[1] * side / width) for shape in _as_listed(shapes)}
    enlarging = [scale for scale in scales.values() if scale >= 1]
    best = min(enlarging) if enlarging else max(scales.values())
    return min((shape for shape, scale in scales.items() if scale == best), key=lambda shape: shape[0] * shape[1])


def _as_listed(shapes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """By their proportions, in the order in which these come first (`find_supported_resolutions`)."""
    proportions = list(dict.fromkeys(rows / columns for rows, columns in shapes))
    return sorted(shapes, key=lambda shape: proportions.index(shape[0] / shape[1]))


class Llama4:
    """The whole model (`Llama4ForConditionalGeneration`), whose language model has made its logits when the loss is computed."""

    def __init__(self, spec: Llama4Spec, build: Builder):
        text, tower, seen = spec.language_model, spec.vision_config, build.images is not None
        assert isinstance(text, Llama4TextSpec)
        with build.part("vision_model", learns=seen):
            self.vision_model = VisionModel(tower, build)
        with build.part("", learns=seen):
            self.projector = build.linear("multi_modal_projector.linear_1", tower.vision_output_dim, text.hidden_size)
        with build.part("language_model.model"):
            self.body = decoder(text, build)
        self.lm_head = build.head(text.hidden_size, text.vocab_size, text.tie_word_embeddings, within="language_model")
        self.loss, self.images, self.tower = build.kernels.loss, build.images, tower
        self.squares = spec.squares(build.images) if build.images else 0

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Token ids, which are the labels too; and tiles, in bfloat16."""
        ids = empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids")
        if self.images is None:
            return (ids,)
        side, tiles = self.tower.image_size, batch.sequences * self.images.count * self.squares
        return ids, empty(tape, (tiles, self.tower.num_channels, side, side), dtypes.bfloat16, "pixel_values")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids = inputs[0]
        embeds = self.body.embed_tokens(ids)
        seen: tuple[Tensor, ...] = ()
        held: tuple[Tensor, ...] = ()
        if len(inputs) > 1:
            seen = (self.vision_model(inputs[1]),)
            features = to(self.projector(reshape(seen[0], (-1, seen[0].shape[-1]))), embeds.dtype)
            places = unsqueeze(empty(ids.tape, ids.shape, dtypes.bool_, "eq"), 2)
            embeds = masked_scatter(embeds, places, features)
            held = (features, places)
            del features, places
        logits = self._logits(ids, embeds)
        with ids.tape.losing():
            loss = self.loss(logits, ids)
        del embeds, held
        return loss, (logits, *seen)

    def _logits(self, ids: Tensor, embeds: Tensor) -> Tensor:
        hidden = self.body.decode(ids, embeds)
        with ids.tape.losing():
            return self.lm_head(hidden)


def between(spec: Llama4Spec, build: Builder) -> None:
    """What is between the tower and the language model."""
    build.linear("multi_modal_projector.linear_1", spec.vision_config.vision_output_dim, spec.text_config.hidden_size)


HEADS = multimodal(between, Llama4)
