"""EXAONE 4.5: EXAONE 4 that sees images and films through Qwen2.5-VL's tower, whose heads of queries share those of keys.

After transformers' modeling_exaone4_5.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from estimator.families.build import Builder
from estimator.families.exaone4_5_vision import Exaone45VisionSpec, tower
from estimator.families.heads import CausalLM, Model
from estimator.families.image_text import ImageTextToText, by_image, grids_of, language_model
from estimator.families.modules import Module
from estimator.families.qwen_vl import MakeTower, Spec
from estimator.tape import dtypes
from estimator.tape.pointwise import to
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat


class Exaone45Spec(Spec):
    """Each part is of one type, whatever its configuration names: the language model's was exaone4_5_text at first. `bounds` are
    the defaults of its processor's class."""

    tells_images_apart = False
    in_sglang = "not read"
    plain = "exaone4"
    bounds = (56 * 56, 28 * 28 * 1280)
    kinds = {"text_config": "exaone4", "vision_config": "exaone4_5_vision"}
    towers, languages = ("exaone4_5_vision",), ("exaone4",)


SPECS = {"exaone4_5": Exaone45Spec}


class Sight:
    """`Qwen2VLModel.get_image_features`.

    `make_tower`: of rows and columns of patches. `called`: the tower's path. `project`: makes what is between the tower and the
    language model, if anything.
    """

    def __init__(
        self,
        spec: Spec,
        build: Builder,
        make_tower: MakeTower,
        called: str = "model.visual",
        project: Callable[[], Module] | None = None,
    ):
        self.spec, images = spec, build.images
        self.grid = None if images is None else spec.grid(images)
        with build.part(called, learns=images is not None):
            self.tower = make_tower(self.grid)
        with build.part("model", learns=images is not None):
            self.project = project() if project else None

    def pixels(self, tape: Tape, images: int) -> Tensor:
        """The patches of so many images."""
        assert self.grid is not None
        shape = (images * self.grid[0] * self.grid[1], *self.spec.vision.patch_shape)
        return empty(tape, shape, dtypes.float32, "pixel_values")

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Each image's features, and the tower's last hidden states."""
        assert self.grid is not None
        last, merged = self.tower(to(pixels, self.tower.proj.weight.dtype))
        features = merged if self.project is None else self.project(merged)
        each = self.grid[0] * self.grid[1] // self.spec.vision.spatial_merge_size**2
        return *by_image(features, each), last


class SeesPatches(ImageTextToText):
    """Texts with the patches of their images, and rows and columns of each. No output has features."""

    def __init__(self, language: CausalLM, sight: Sight, build: Builder, caps: bool = False):
        super().__init__(language, sight, build, lambda seen: cat(seen[:-1], 0), beside=grids_of(build), videos=True, caps=caps)

    def _read(self, ids: Tensor, pixels: Tensor | None = None, types: Tensor | None = None) -> tuple[Tensor, ...]:
        hidden, *_ = super()._read(ids, pixels, types)
        del _
        return (hidden,)


def exaone4_5(spec: Exaone45Spec, build: Builder) -> Model:
    """The whole model (`Exaone4_5_ForConditionalGeneration`)."""
    assert isinstance(spec.vision, Exaone45VisionSpec)
    sight = Sight(spec, build, partial(tower, spec.vision, build))
    return SeesPatches(language_model(spec, build), sight, build)


HEADS = {"image-text-to-text": exaone4_5}
