"""Kimi K2.5: a DeepSeek-V3 language model that gets squares of a tower's patches through two linear layers.

After transformers' modeling_kimi_k25.py and image_processing_kimi_k25.py (5.23).
"""

from __future__ import annotations

from math import sqrt

from estimator.contract.job.images import Images
from estimator.families.build import Builder
from estimator.families.heads import Model
from estimator.families.image_text import ImageTextToText, by_image, grids_of, language_model
from estimator.families.kimi_k25_vision import KimiK25VisionSpec, VisionModel
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.spec import Size
from estimator.families.voxtral import HEAD
from estimator.tape import dtypes
from estimator.tape.pointwise import gelu
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, reshape

MERGED = 2
"""Patches along the side of a square that its processor makes an image of whole numbers of."""
MOST_PATCHES, MOST_ASIDE = 16384, 512
"""Of an image, and of each of its sides, at most."""


class KimiK25Spec(MultimodalSpec):
    seen_whole_in_vllm = ("mm_projector",)
    runs = True
    captured_in_sglang = True
    pixels_as_weights = True
    kinds = {"text_config": "deepseek_v3", "vision_config": "kimi_k25_vision"}
    fixed = ("text_config", "vision_config")
    towers, languages = ("kimi_k25_vision",), ("deepseek_v3",)

    projection_hidden_size: Size = 1152
    tie_word_embeddings: bool = True

    @property
    def tower(self) -> KimiK25VisionSpec:
        assert isinstance(self.vision_config, KimiK25VisionSpec)
        return self.vision_config

    def grid(self, images: Images) -> tuple[int, int]:
        """Rows and columns of patches of an image."""
        height, width = padded(images.height, images.width, self.tower.patch_size)
        return height // self.tower.patch_size, width // self.tower.patch_size

    def image_tokens(self, images: Images) -> int | None:
        rows, columns = self.grid(images)
        return rows * columns // MERGED**2 if self.tower.merge_kernel_size == (MERGED, MERGED) else None


SPECS = {"kimi_k25": KimiK25Spec}


def padded(height: int, width: int, patch: int) -> tuple[int, int]:
    """Height and width, in pixels, of an image that is made smaller where it has too many patches, and filled up to whole
    squares of them (`navit_resize`)."""
    patches, longest, square = max(1, height // patch) * max(1, width // patch), MOST_ASIDE * patch, MERGED * patch
    scale = min(1.0, sqrt(MOST_PATCHES / patches), longest / height, longest / width)
    tall, wide = (min(max(1, int(side * scale)), longest) for side in (height, width))
    return -(-tall // square) * square, -(-wide // square) * square


class Projector:
    """A norm of patches, squares of them side by side, and two linear layers (`Kimi_K25MultimodalProjection`)."""

    def __init__(self, spec: KimiK25Spec, build: Builder):
        self.seen = spec.tower.hidden_size * spec.tower.square
        self.pre_norm = build.layer_norm("mm_projector.pre_norm", spec.projection_hidden_size)
        self.in_proj = build.linear("mm_projector.in_proj", self.seen, self.seen, True)
        self.out_proj = build.linear("mm_projector.out_proj", self.seen, spec.text_config.hidden_size, True)

    def __call__(self, pooled: Tensor) -> Tensor:
        hidden = reshape(self.pre_norm(pooled), (pooled.shape[0], -1, self.seen))
        hidden = self.in_proj(hidden)
        hidden = gelu(hidden)
        return self.out_proj(hidden)


class Sight:
    """`Kimi_K25Model.get_image_features`."""

    def __init__(self, spec: KimiK25Spec, tower: VisionModel, build: Builder):
        self.spec, self.tower, self.dtype = spec, tower, build.dtype
        self.grid = None if build.images is None else spec.grid(build.images)
        self.projector = Projector(spec, build)

    def pixels(self, tape: Tape, images: int) -> Tensor:
        """The patches of so many images, in the type of the weights, since nothing casts them."""
        assert self.grid is not None
        shape = (images * self.grid[0] * self.grid[1], *self.spec.tower.patch_shape)
        return empty(tape, shape, self.dtype, "pixel_values")

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Each image's features, and the tower's last hidden states."""
        assert self.grid is not None
        last, pooled = self.tower(pixels)
        features = self.projector(pooled)
        each = self.grid[0] * self.grid[1] // self.spec.tower.square
        features = reshape(features, (features.shape[0], features.shape[-1]))
        return *by_image(features, each), last


class KimiK25(ImageTextToText):
    """Token ids are copied, with another token where images and films are, and the copy is looked up. No output has features."""

    def _read(self, ids: Tensor, pixels: Tensor | None = None, types: Tensor | None = None) -> tuple[Tensor, ...]:
        places = empty(ids.tape, ids.shape, dtypes.bool_, "bitwise_or")
        texts = empty(ids.tape, ids.shape, dtypes.int64, "clone")
        hidden, *_ = super()._read(texts, pixels, types)
        del places, _
        return (hidden,)


def kimi_k25(spec: KimiK25Spec, build: Builder) -> Model:
    """The whole model (`Kimi_K25ForConditionalGeneration`)."""
    learns = build.images is not None
    with build.part("model.vision_tower", learns):
        tower = VisionModel(spec.tower, build, None if build.images is None else spec.grid(build.images))
    language = language_model(spec, build)
    with build.part("model", learns), build.ahead(HEAD):
        sight = Sight(spec, tower, build)
    return KimiK25(language, sight, build, lambda seen: cat(seen[:-1], 0), beside=grids_of(build), videos=True)


HEADS = multimodal(Projector, kimi_k25)
