"""Phi-4 multimodal: Phi-4 mini's decoder, and what it sees and hears with, which is loaded and not run on texts.

After transformers' modeling_phi4_multimodal.py (5.23). The adapters that its checkpoint brings for images and for sound are
PEFT's there, loaded beside the model: they are none of its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SerializeAsAny, model_validator

from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm, dropping
from estimator.families.feed_forward import FusedGatedMLP
from estimator.families.heads import CausalLM
from estimator.families.phi3 import Phi3Attention, Phi3Rotary, Phi3Spec, rotate_joined, split_heads
from estimator.families.phi4_multimodal_towers import Phi4AudioSpec, Phi4VisionSpec, audio_model, vision_model
from estimator.families.spec import ModelSpec, Size
from estimator.tape import dtypes
from estimator.tape.tensor import Tensor, empty

PARTS: Mapping[str, tuple[str, type[ModelSpec]]] = {
    "vision_config": ("phi4_multimodal_vision", Phi4VisionSpec),
    "audio_config": ("phi4_multimodal_audio", Phi4AudioSpec),
}


class Phi4MultimodalSpec(Phi3Spec):
    """Its decoder's settings are the model's own. What engines hold of it, with its checkpoint's adapters, is not modelled."""

    sees = hears = True
    cached = False

    max_position_embeddings: Size | None = 131072
    vision_config: SerializeAsAny[Phi4VisionSpec]
    audio_config: SerializeAsAny[Phi4AudioSpec]

    @model_validator(mode="before")
    @classmethod
    def _parts(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        made = dict(given)
        for name, (kind, wanted) in PARTS.items():
            if isinstance(said := made.get(name) or {}, Mapping):
                keys = wanted.keys() - {"model_type"}
                made[name] = wanted.model_validate({key: said[key] for key in keys & said.keys()} | {"model_type": kind})
        return made

    @property
    def depth(self) -> int:
        return self.num_hidden_layers + self.vision_config.num_hidden_layers

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        return ()

    @property
    def instead(self) -> str:
        return "for its language model alone, name phi-4-mini"

    def config(self) -> dict[str, Any]:
        return super().config() | {name: getattr(self, name).config() for name in PARTS}


SPECS = {"phi4_multimodal": Phi4MultimodalSpec}


class Phi4Decoder(Decoder):
    """Which tokens are of images is asked of texts, too. `towers`: what sees and hears, which lies in memory."""

    towers: tuple[object, ...] = ()

    def forward(self, ids: Tensor, given: Tensor | None = None, prepared: Any = None) -> Tensor:
        embeds = self.embed_tokens(ids) if given is None else given
        self._asked(ids)
        return self.decode(ids, embeds, prepared)

    def _asked(self, ids: Tensor) -> None:
        """`Phi4MultimodalFeatureEmbedding.forward`."""
        places = empty(ids.tape, ids.shape, dtypes.bool_, "eq")
        others = empty(ids.tape, ids.shape, dtypes.bool_, "bitwise_not")
        del places, others


def phi4_multimodal(spec: Phi4MultimodalSpec, build: Builder) -> Decoder:
    """The body of the model, its towers declared after its layers."""
    join = dropping(build, spec.resid_pdrop)

    def layer(_: None) -> PreNorm:
        attention = Phi3Attention(spec, build, project=split_heads, rotate=rotate_joined)
        return PreNorm(spec, build, attention, FusedGatedMLP(spec, build), join=join)

    with build.part("model"):
        body = Phi4Decoder(spec, build, layer, rotary=Phi3Rotary(spec))
    body.towers = _image_embed(spec, build), _audio_embed(spec, build)
    return body


def _image_embed(spec: Phi4MultimodalSpec, build: Builder) -> object:
    name, size, tower = "model.embed_tokens_extend.image_embed", spec.hidden_size, spec.vision_config.hidden_size
    with build.part(name, learns=False):
        for feature, shape in (("global_img", (1, 1, tower)), ("sub_img", (1, 1, 1, tower))):
            build.parameter(f"{feature}_feature_extensor", shape)
    with build.part(f"{name}.img_processor", learns=False):
        held = vision_model(spec.vision_config, build)
    with build.part(name, learns=False):
        build.linear("img_projection_up", tower, size, True)
        build.linear("img_projection_down", size, size, True)
    return held


def _audio_embed(spec: Phi4MultimodalSpec, build: Builder) -> object:
    name, size = "model.embed_tokens_extend.audio_embed", spec.hidden_size
    heard = spec.audio_config.hidden_size * spec.audio_config.downsample_rate
    with build.part(f"{name}.encoder", learns=False):
        held = audio_model(spec.audio_config, build)
    with build.part(name, learns=False):
        for mode in ("speech", "vision_speech"):
            build.linear(f"up_proj_for_{mode}", heard, size, True)
            build.linear(f"down_proj_for_{mode}", size, size, True)
    return held


HEADS = {"causal-lm": lambda spec, build: CausalLM(phi4_multimodal(spec, build), spec, build)}
