"""DeepSeek-VL: Llama that sees images through SigLIP's tower and two linear layers.

After transformers' modeling_deepseek_vl.py (5.23).
"""

from __future__ import annotations

from estimator.contract.job.images import Images
from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.heads import Model
from estimator.families.image_text import ImageTextToText, language_model
from estimator.families.parts import MultimodalSpec, multimodal
from estimator.families.siglip import VisionModel
from estimator.families.towers import SquareTowerSpec
from estimator.tape.pointwise import gelu
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor


class DeepseekVLSpec(MultimodalSpec):
    """The tower's pooling head is run where there is one, and nothing reads its result."""

    runs = True
    pools = True
    in_sglang = last_vllm = "none"
    why_not_sglang = "its model class has no attention of a server's"
    towers = ("siglip_vision_model",)
    languages = ("llama",)
    kinds = {"text_config": "llama", "vision_config": "siglip_vision_model"}

    tie_word_embeddings: bool = True

    @property
    def square(self) -> SquareTowerSpec:
        """The tower."""
        assert isinstance(self.vision_config, SquareTowerSpec)
        return self.vision_config

    @property
    def picture(self) -> Picture | None:
        return Picture(self.square.patches, self.square.pixels)

    def image_tokens(self, images: Images) -> int | None:
        """Every image is padded to a square and resized to the tower's."""
        return self.square.patches


SPECS: dict[str, type[MultimodalSpec]] = {"deepseek_vl": DeepseekVLSpec}


class Aligner:
    """Two linear layers (`DeepseekVLAligner`)."""

    def __init__(self, spec: DeepseekVLSpec, build: Builder):
        read = spec.text_config.hidden_size
        self.linear1 = build.linear("aligner.linear1", spec.vision_config.hidden_size, read, True)
        self.linear2 = build.linear("aligner.linear2", read, read, True)

    def __call__(self, seen: Tensor) -> Tensor:
        out = self.linear1(seen)
        out = gelu(out)
        return self.linear2(out)


class Sight:
    """`DeepseekVLModel.get_image_features`."""

    def __init__(self, spec: DeepseekVLSpec, build: Builder):
        self.square, learns = spec.square, build.images is not None
        with build.part("model.vision_model", learns):
            self.tower = VisionModel(spec.square, build)
        with build.part("model", learns):
            self.aligner = Aligner(spec, build)

    def pixels(self, tape: Tape, images: int) -> Tensor:
        return self.square.given(tape, images)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """The images' features, and the tower's last hidden states."""
        last, *_pooled = self.tower.see(pixels)
        return self.aligner(last), last


def deepseek_vl(spec: DeepseekVLSpec, build: Builder) -> Model:
    """The whole model (`DeepseekVLForConditionalGeneration`)."""
    sight = Sight(spec, build)
    return ImageTextToText(language_model(spec, build), sight, build)


HEADS = multimodal(Aligner, deepseek_vl)
