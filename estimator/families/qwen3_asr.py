"""Qwen3-ASR: Qwen3 that writes down what it hears through Qwen3-Omni's encoder of sound.

After transformers' modeling_qwen3_asr.py and processing_qwen3_asr.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SerializeAsAny, model_validator

from estimator.contract.job.audio import Audio
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer
from estimator.families.heads import Model
from estimator.families.hearing import AudioTextToText, HearingSpec
from estimator.families.image_text import language_model
from estimator.families.modules import ACTIVATIONS
from estimator.families.qwen3_asr_audio import AudioTower, Qwen3ASREncoderSpec
from estimator.families.voxtral import HEAD
from estimator.tape import dtypes
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty

USUAL: Mapping[str, Mapping[str, Any]] = {
    "audio_config": {},
    "text_config": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 65536,
    },
}
"""What a part has of which a config.json says nothing at all (`sub_configs_defaults`)."""


class Qwen3ASRSpec(HearingSpec):
    """A text has one clip."""

    runs = one_clip = pixels_as_weights = True
    kinds = {"text_config": "qwen3", "audio_config": "qwen3_asr_encoder"}
    beside = {"audio_config": Qwen3ASREncoderSpec}
    towers, languages = ("qwen3_asr_encoder",), ("qwen3",)
    mask_of_sound = "input_features_mask"

    audio_config: SerializeAsAny[Qwen3ASREncoderSpec]
    tie_word_embeddings: bool = True

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, given: Any) -> Any:
        return {**USUAL, **given} if isinstance(given, Mapping) else given

    def most_frames(self, audio: Audio) -> int:
        """Frames that a clip's spectrogram is filled up to: whole chunks."""
        chunk = 2 * self.audio_config.n_window
        return -(-self.audio_config.frames(audio) // chunk) * chunk

    @property
    def cached_per_token(self) -> int | None:
        """What engines take of its convolutions over chunks, which is more than the layers', is not modelled."""
        return None

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        return ()

    @property
    def cache_places(self) -> tuple[int, ...]:
        return ()

    def audio_tokens(self, audio: Audio) -> int | None:
        return self.audio_config.tokens(self.audio_config.frames(audio))


SPECS = {"qwen3_asr": Qwen3ASRSpec}


class Hearing:
    """`Qwen3ASRModel.get_audio_features`: the tower, and the projector (`Qwen3ASRMultiModalProjector`)."""

    def __init__(self, spec: Qwen3ASRSpec, tower: AudioTower, build: Builder):
        self.spec, self.tower, self.dtype, size = spec, tower, build.dtype, spec.audio_config.hidden_size
        self.frames = 0 if build.audio is None else spec.most_frames(build.audio)
        self.linear_1 = build.linear("multi_modal_projector.linear_1", size, size, True)
        self.activation = ACTIVATIONS[spec.audio_config.activation_function]
        self.linear_2 = build.linear("multi_modal_projector.linear_2", size, spec.audio_config.output_dim, True)

    def pixels(self, tape: Tape, clips: int) -> Tensor:
        """The spectrograms of so many clips, in the type of the weights, since nothing casts them."""
        return empty(tape, (clips, self.spec.audio_config.num_mel_bins, self.frames), self.dtype, "input_features")

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """What the language model gets; `pixels`: spectrograms."""
        last = self.tower(pixels)
        out = self.linear_1(last)
        out = self.activation(out)
        out = self.linear_2(out)
        del last
        return (out,)


def qwen3_asr(spec: Qwen3ASRSpec, build: Builder) -> Model:
    """The whole model (`Qwen3ASRForConditionalGeneration`)."""
    learns = build.audio is not None
    clips = None if build.audio is None else [spec.audio_config.frames(build.audio)] * build.sequences
    with build.part("model.audio_tower", learns):
        tower = AudioTower(spec.audio_config, build, clips)
    language = language_model(spec, build)
    with build.part("model", learns), build.ahead(HEAD):
        hearing = Hearing(spec, tower, build)

    def told(ids: Tensor, features: Tensor) -> Tensor:
        """Which frames are of a clip."""
        return empty(ids.tape, (features.shape[0], features.shape[2]), dtypes.int32, "input_features_mask")

    return AudioTextToText(language, hearing, build, beside=told, given=build.audio)


HEADS = {"audio-text-to-text": qwen3_asr}
