"""Voxtral: a Llama that gets frames of Whisper's encoder, four side by side, through two linear layers.

After transformers' modeling_voxtral.py and processing_voxtral.py (5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import model_validator

from estimator.contract.job.audio import Audio
from estimator.families.audio_towers import HOP, AudioTower
from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.heads import Model
from estimator.families.hearing import AudioTextToText, HearingSpec
from estimator.families.image_text import language_model
from estimator.tape import dtypes
from estimator.tape.pointwise import gelu
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape

HEAD = "lm_head.weight"
"""What stands after all parts of the body."""
FOURIER = 400
"""Samples that each frame of a spectrogram is made of (`window_size` of the checkpoint's params.json)."""
USUAL = {
    "vocab_size": 131072,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "head_dim": 128,
}
"""Of the language model (configuration_voxtral.py)."""


class VoxtralSpec(HearingSpec):
    """Its processor fills each clip up to whole spectrograms of the encoder's length."""

    runs = True
    kinds = {"text_config": "llama", "audio_config": "voxtral_encoder"}
    fixed = ("audio_config",)
    towers, languages = ("voxtral_encoder",), ("llama", "mistral", "qwen2", "qwen3")
    modelled = {"projector_hidden_act": ("gelu",)}
    ears_in_float32 = ("embed_positions",)

    @property
    def joined(self) -> int:
        """Numbers of a token that the tower gives: frames side by side."""
        return self.audio_config.encoder_ffn_dim

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, given: Any) -> Any:
        """What its configuration's class takes of a Llama where that is left out."""
        if not isinstance(given, Mapping) or not isinstance(text := given.get("text_config"), Mapping):
            return given
        return {**given, "text_config": USUAL | dict(text)}

    @model_validator(mode="after")
    def _frames(self) -> Self:
        tower = self.audio_config
        if tower.max_source_positions * tower.hidden_size % self.joined:
            raise ValueError(f"{tower.max_source_positions} frames of {tower.hidden_size} are no whole rows of {self.joined}")
        return self

    def spectrograms(self, audio: Audio) -> int:
        """Of a clip."""
        return -(-audio.samples // (2 * self.audio_config.max_source_positions * HOP))

    def clip(self, context: int) -> Picture:
        """As long as the context, filled up to whole spectrograms; the sound itself, and its spectrograms twice, are there with
        them (vllm/model_executor/models/voxtral.py, `get_max_audio_tokens` and `prepare_inputs_for_conv`)."""
        tower = self.audio_config
        each = tower.max_source_positions * tower.hidden_size // self.joined
        frames = -(-context // each) * tower.max_source_positions
        return Picture(frames // tower.max_source_positions * each, 2 * frames * (HOP + 2 * tower.num_mel_bins), patches=frames)

    @property
    def float32_tables(self) -> int:
        """Filters that make spectrograms of sound."""
        return (FOURIER // 2 + 1) * self.audio_config.num_mel_bins

    def audio_tokens(self, audio: Audio) -> int | None:
        tower = self.audio_config
        return self.spectrograms(audio) * (tower.max_source_positions * tower.hidden_size // self.joined)


SPECS = {"voxtral": VoxtralSpec}


class Hearing:
    """`VoxtralModel.get_audio_features`: the tower, and the projector (`VoxtralMultiModalProjector`)."""

    def __init__(self, spec: VoxtralSpec, tower: AudioTower, build: Builder):
        self.spec, self.tower, read = spec, tower, spec.text_config.hidden_size
        self.spectrograms = 0 if build.audio is None else spec.spectrograms(build.audio)
        self.linear_1 = build.linear("multi_modal_projector.linear_1", spec.joined, read)
        self.linear_2 = build.linear("multi_modal_projector.linear_2", read, read)

    def pixels(self, tape: Tape, clips: int) -> Tensor:
        """The spectrograms of so many clips."""
        tower = self.spec.audio_config
        shape = clips * self.spectrograms, tower.num_mel_bins, 2 * tower.max_source_positions
        return empty(tape, shape, dtypes.float32, "input_features")

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """What the language model gets; `pixels`: spectrograms."""
        hidden = reshape(self.tower(pixels), (-1, self.spec.joined))
        out = self.linear_1(hidden)
        out = gelu(out)
        out = self.linear_2(out)
        del hidden
        return (out,)


def voxtral(spec: VoxtralSpec, build: Builder) -> Model:
    """The whole model (`VoxtralForConditionalGeneration`)."""
    learns = build.audio is not None
    with build.part("model.audio_tower", learns):
        tower = AudioTower(spec.audio_config, build)
    language = language_model(spec, build)
    with build.part("model", learns), build.ahead(HEAD):
        hearing = Hearing(spec, tower, build)
    return AudioTextToText(language, hearing, build, given=build.audio, shown=False)


HEADS = {"audio-text-to-text": voxtral}
