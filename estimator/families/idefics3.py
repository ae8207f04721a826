"""Idefics 3 and SmolVLM: a language model that gets squares of an image's patches through one linear layer.

An image is cut into tiles, and comes once more as a whole, in the size of a tile. After transformers' modeling_idefics3.py,
modeling_smolvlm.py and image_processing_idefics3.py (5.23).
"""

from __future__ import annotations

from math import ceil

from estimator.contract.job.images import Images
from estimator.families import clip
from estimator.families.build import Builder
from estimator.families.heads import Model
from estimator.families.image_text import ImageTextToText, language_model
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.siglip import Idefics3VisionSpec, VisionModel
from estimator.families.spec import Size
from estimator.families.towers import unshuffled
from estimator.families.vit import patches
from estimator.tape import dtypes
from estimator.tape.pointwise import add, to
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, index, reshape, split

LONGEST = 4
"""Tiles along an image's longer side, which it is resized to: as the published models' preprocessor_config.json say."""


class Idefics3Spec(MultimodalSpec):
    """`scale_factor`: patches along the side of a square."""

    seen_whole_in_vllm = ("connector",)
    runs = True
    in_sglang = "transformers"
    towers = ("idefics3_vision", "smolvlm_vision")
    languages = ("llama",)

    kinds = {"text_config": "llama", "vision_config": "idefics3_vision"}
    fixed = ("vision_config",)

    scale_factor: Size = 2

    @property
    def tower(self) -> Idefics3VisionSpec:
        assert isinstance(self.vision_config, Idefics3VisionSpec)
        return self.vision_config

    def tiles(self, images: Images) -> int:
        """Tiles of an image, the whole one among them."""
        rows, columns = cut(images.height, images.width, self.tower.image_size)
        return rows * columns + (rows * columns > 1)

    def image_tokens(self, images: Images) -> int | None:
        """Those that stand for tiles; the rows and columns that its processor names, too, are text."""
        squares = self.tower.image_size // self.tower.patch_size % self.scale_factor == 0
        return self.tiles(images) * (self.tower.patches // self.scale_factor**2) if squares else None


class SmolVLMSpec(Idefics3Spec):
    kinds = {"text_config": "llama", "vision_config": "smolvlm_vision"}


SPECS = {"idefics3": Idefics3Spec, "smolvlm": SmolVLMSpec}


def cut(height: int, width: int, side: int) -> tuple[int, int]:
    """Rows and columns of tiles of `side` pixels that an image is cut into, resized to `LONGEST` of them along its longer side
    and to whole ones along the other (`Idefics3ImageProcessor.resize` and `resize_for_vision_encoder`)."""
    longest, shape = LONGEST * side, width / height
    if width >= height:
        short = int(longest / shape)
        wide, tall = longest, max(short + short % 2, 1)
    else:
        short = int(longest * shape)
        wide, tall = max(short + short % 2, 1), longest
    if max(wide, tall) > MOST:
        wide, tall = (MOST, max(int(MOST / (wide / tall)), 1)) if wide >= tall else (max(int(MOST * (wide / tall)), 1), MOST)
    shape = wide / tall
    if wide >= tall:
        columns = ceil(wide / side)
        return ceil(int(columns * side / shape) / side), columns
    rows = ceil(tall / side)
    return rows, ceil(int(rows * side * shape) / side)


MOST = 4096
"""Pixels of an image's longer side, at most (`MAX_IMAGE_SIZE`)."""


def between(spec: Idefics3Spec, build: Builder) -> None:
    """What is between the tower and the language model."""
    Connector(spec, build)


class Connector:
    """Squares of patches side by side, and a linear layer."""

    def __init__(self, spec: Idefics3Spec, build: Builder):
        self.factor, seen = spec.scale_factor, spec.vision_config.hidden_size * spec.scale_factor**2
        self.proj = build.linear("connector.modality_projection.proj", seen, spec.text_config.hidden_size)

    def __call__(self, seen: Tensor) -> Tensor:
        shuffled = self._shuffled(seen)
        return self.proj(shuffled)

    def _shuffled(self, seen: Tensor) -> Tensor:
        tiles, tokens, size = seen.shape
        side, factor = round(tokens**0.5), self.factor
        x = unshuffled(reshape(seen, (tiles, side, side, size)), factor)
        return reshape(x, (tiles, tokens // factor**2, size * factor**2))


class Sight:
    """`Idefics3Model.get_image_features`: the tiles, of which those that only pad are left out; the tower; what follows it."""

    def __init__(self, spec: Idefics3Spec, build: Builder):
        self.spec, learns = spec, build.images is not None
        self.tiles = 0 if build.images is None else spec.tiles(build.images)
        self.sequences = build.sequences
        with build.part("model.vision_model", learns):
            self.tower = VisionModel(spec.tower, build)
        with build.part("model", learns):
            self.connector = Connector(spec, build)
        self.hooked = build.recomputes

    def pixels(self, tape: Tape, images: int) -> Tensor:
        """The tiles of each sequence."""
        tower = self.spec.tower
        shape = (self.sequences, images // self.sequences * self.tiles, tower.num_channels, tower.image_size, tower.image_size)
        return empty(tape, shape, dtypes.float32, "pixel_values")

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Each sequence's features, and the tower's last hidden states."""
        sequences, each, *shape = pixels.shape
        tape, tiles, (channels, side, _) = pixels.tape, sequences * each, shape
        cast = reshape(to(pixels, self.tower.patch_embedding.weight.dtype), (tiles, channels, side, side))
        real = _not_blank(cast)
        counts = empty(tape, (sequences,), dtypes.int64, "sum")
        cast = index(cast, (real,), cast.shape)
        mask = empty(tape, (tiles, side, side), dtypes.int64, "index")
        across = side // self.spec.tower.patch_size
        there = empty(tape, (tiles, across, across), dtypes.bool_, "gt")
        last = self._see(cast)
        features = self.connector(last)
        parts = [reshape(part, (-1, part.shape[-1])) for part in split(features, [each] * sequences, 0)]
        del real, counts, mask, there
        return (*parts, last)

    def _see(self, pixels: Tensor) -> Tensor:
        """Last hidden states, [tiles, patches, width]."""
        embeds = self._embedded(pixels)
        if self.hooked and embeds.tape.grad_enabled:
            embeds.requires_grad = True
        (last,) = clip.encoded(self.tower.layers, embeds, ())
        return self.tower.post_layernorm(last)

    def _embedded(self, pixels: Tensor) -> Tensor:
        """Patches, and the places of each, counted for a tile of any shape (`Idefics3VisionEmbeddings`)."""
        grid = self.tower.patch_embedding(pixels)
        embeds = patches(grid)
        counted, places = (empty(pixels.tape, embeds.shape[:2], dtypes.int64, name) for name in ("add", "where"))
        added = add(embeds, self.tower.position_embedding(places))
        del grid, counted
        return added


def _not_blank(tiles: Tensor) -> Tensor:
    """Which tiles are not all zeros."""
    zeros = empty(tiles.tape, tiles.shape, dtypes.bool_, "eq")
    counts = empty(tiles.tape, tiles.shape[:1], dtypes.int64, "sum")
    del zeros
    found = empty(tiles.tape, tiles.shape[:1], dtypes.bool_, "ne")
    del counts
    return found


def idefics3(spec: Idefics3Spec, build: Builder) -> Model:
    """The whole model (`Idefics3ForConditionalGeneration`, `SmolVLMForConditionalGeneration`)."""
    sight = Sight(spec, build)
    language = language_model(spec, build, "model.text_model")

    def beside(ids: Tensor, pixels: Tensor) -> Tensor:
        shape = (*pixels.shape[:2], *pixels.shape[3:])
        return empty(ids.tape, shape, dtypes.int64, "pixel_attention_mask")

    smol = isinstance(spec, SmolVLMSpec)
    return ImageTextToText(language, sight, build, _joined, beside=beside, gives_all=smol, keeps_places=smol)


def _joined(seen: tuple[Tensor, ...]) -> Tensor:
    return cat(seen[:-1], 0)


HEADS = multimodal(between, idefics3)
