"""Gemma 3 and PaliGemma: language models of the Gemma kind that see images through SigLIP's tower.

After transformers' modeling_gemma3.py and modeling_paligemma.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isqrt

from estimator.contract.job.images import Images
from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.decoder import Decoder
from estimator.families.gemma import RMSNorm, causal_lm
from estimator.families.heads import Model
from estimator.families.image_text import ImageTextToText, Made, block_masks, language_model, prefix_masks, types_of
from estimator.families.modules import Module
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.siglip import VisionModel
from estimator.families.spec import ModelSpec, Size
from estimator.families.towers import SquareTowerSpec
from estimator.families.windows import WindowedSpec, causal_masks
from estimator.tape.matmul import times
from estimator.tape.pointwise import to
from estimator.tape.pooling import avg_pool2d
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor
from estimator.tape.views import contiguous, reshape, transpose

PICTURE = 256
"""Tokens of an image in Gemma 3: the default of its configuration (`mm_tokens_per_image`), which the published models have."""


class Gemma3Spec(MultimodalSpec):
    """`stretched` is the published models' linear scaling of rotary positions, which leaves parameters as they are."""

    runs = True
    stretched = 8
    towers = ("siglip_vision_model",)
    languages = ("gemma3_text",)
    images_in_sglang = "unread"
    kinds = {"text_config": "gemma3_text", "vision_config": "siglip_vision_model"}
    fixed = ("text_config",)
    images_by_mask = True

    tie_word_embeddings: bool = True
    mm_tokens_per_image: Size = PICTURE

    @property
    def picture(self) -> Picture | None:
        tower = self.vision_config
        return Picture(PICTURE, tower.pixels) if isinstance(tower, SquareTowerSpec) else None

    @property
    def side(self) -> int:
        """Tokens of a row of an image."""
        return isqrt(self.mm_tokens_per_image)

    @property
    def pooled(self) -> int:
        """Height and width, in patches, of what becomes one token."""
        tower = self.vision_config
        assert isinstance(tower, SquareTowerSpec)
        return tower.image_size // tower.patch_size // self.side

    def image_tokens(self, images: Images) -> int | None:
        """Every image is resized to the tower's square; pan and scan, which adds further crops, is off unasked."""
        return self.side**2


class PaliGemmaSpec(MultimodalSpec):
    """The images and the question are a prefix whose tokens all see each other; its processor says which tokens they are."""

    seen_whole_in_vllm = ("multi_modal_projector",)
    runs = True
    towers = ("siglip_vision_model",)
    languages = ("gemma", "gemma2")
    images_by_mask = True
    in_sglang = "transformers"
    kinds = {"text_config": "gemma", "vision_config": "siglip_vision_model"}
    unread = ("use_bidirectional_attention",)

    projection_dim: Size = 2048
    tie_word_embeddings: bool = True

    @property
    def picture(self) -> Picture | None:
        tower = self.vision_config
        return Picture(tower.patches, tower.pixels) if isinstance(tower, SquareTowerSpec) else None

    def image_tokens(self, images: Images) -> int | None:
        """Every image is resized to the tower's square."""
        tower = self.vision_config
        return tower.patches if isinstance(tower, SquareTowerSpec) else None


SPECS: dict[str, type[MultimodalSpec]] = {"gemma3": Gemma3Spec, "paligemma": PaliGemmaSpec}


def between(spec: Gemma3Spec | PaliGemmaSpec, build: Builder) -> None:
    """What is between the tower and the language model."""
    seen = spec.vision_config.hidden_size
    if isinstance(spec, PaliGemmaSpec):
        build.linear("multi_modal_projector.linear", seen, spec.projection_dim, True)
    else:
        build.parameter("multi_modal_projector.mm_input_projection_weight", (seen, spec.text_config.hidden_size))
        RMSNorm(build, "multi_modal_projector.mm_soft_emb_norm", seen)


class Sight:
    """The tower and what follows it: the tower's last hidden states, and what is made of them."""

    def __init__(self, tower: ModelSpec, build: Builder, project: Callable[[], Module]):
        assert isinstance(tower, SquareTowerSpec)
        self.square, learns = tower, build.images is not None
        with build.part("model.vision_tower", learns):
            self.tower = VisionModel(tower, build)
        with build.part("model", learns):
            self.project = project()

    def pixels(self, tape: Tape, images: int) -> Tensor:
        return self.square.given(tape, images)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """The images' features, and the tower's last hidden states."""
        (last,) = self.tower.see(pixels)
        return self.project(last), last


class Projector:
    """`PaliGemmaMultiModalProjector`."""

    def __init__(self, spec: PaliGemmaSpec, build: Builder):
        self.linear = build.linear("multi_modal_projector.linear", spec.vision_config.hidden_size, spec.projection_dim, True)

    def __call__(self, seen: Tensor) -> Tensor:
        return self.linear(seen)


class Pooled:
    """Means of squares, a norm, a product (`Gemma3MultiModalProjector`)."""

    def __init__(self, spec: Gemma3Spec, build: Builder):
        self.spec, size, name = spec, spec.vision_config.hidden_size, "multi_modal_projector."
        self.weight = build.parameter(name + "mm_input_projection_weight", (size, spec.text_config.hidden_size))
        self.norm = RMSNorm(build, name + "mm_soft_emb_norm", size)

    def __call__(self, seen: Tensor) -> Tensor:
        images, patches, size = seen.shape
        side = isqrt(patches)
        image = contiguous(reshape(transpose(seen, 1, 2), (images, size, side, side)))
        pooled = avg_pool2d(image, self.spec.pooled)
        pooled = transpose(reshape(pooled, (images, size, -1)), 1, 2)
        normed = self.norm(pooled)
        projected = times(normed, self.weight)
        return to(projected, seen.dtype)


def gemma3(spec: Gemma3Spec | PaliGemmaSpec, build: Builder) -> Model:
    """The whole model (`Gemma3ForConditionalGeneration`, `PaliGemmaForConditionalGeneration`)."""
    prefixes = isinstance(spec, PaliGemmaSpec)
    project = partial(Projector, spec, build) if isinstance(spec, PaliGemmaSpec) else partial(Pooled, spec, build)
    sight = Sight(spec.vision_config, build, project)
    language = language_model(spec, build, make=partial(causal_lm, looks_back=not prefixes))

    assert isinstance(language.body, Decoder)
    text, attention = spec.text_config, language.body.attention

    def masks(ids: Tensor, embeds: Tensor, types: Tensor | None) -> Made:
        if types is None:
            return (causal_masks(text, ids.tape, ids.shape[0], ids.shape[1], embeds.dtype, attention),)
        if prefixes:
            return prefix_masks(types, embeds.dtype, attention, windows=isinstance(text, WindowedSpec))
        return block_masks(types, embeds.dtype, attention)

    return ImageTextToText(language, sight, build, masks=masks, beside=types_of, counts_first=prefixes, caps=prefixes)


HEADS = multimodal(between, gemma3)
