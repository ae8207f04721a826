"""The thinkers of Qwen2.5-Omni and Qwen3-Omni: language models of the Qwen kind that hear, and see images and films.

What speaks (talker, token2wav, code2wav) is a model of its own. After transformers' modeling_qwen2_5_omni.py,
modeling_qwen3_omni_moe.py, processing_qwen2_5_omni.py and processing_qwen3_omni_moe.py (5.23).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import SerializeAsAny

from estimator.contract.job.audio import Audio
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.experts import EXPERTS_HELD_IN
from estimator.families.heads import Batch, CausalLM, FusedHead
from estimator.families.image_text import by_image
from estimator.families.llama import Qwen2Spec, Qwen3Spec
from estimator.families.model_output import Held
from estimator.families.qwen3_omni_audio import AudioTower as Tower3
from estimator.families.qwen3_omni_audio import Omni3AudioSpec
from estimator.families.qwen_omni_audio import AudioTower, OmniAudioSpec
from estimator.families.qwen_vl import Qwen3VLSpec, Qwen25VLSpec, added
from estimator.families.qwen_vl_text import decoder
from estimator.families.qwen_vl_tower import VisionModel
from estimator.families.towers import TowerSpec
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import to
from estimator.tape.scatter import masked_scatter
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, unsqueeze

FRAMES = 30_000
"""Frames that every clip's spectrogram is filled up to, and cut to: 300 seconds, the `chunk_length` of the published models'
preprocessor_config.json (`padding` "max_length" in `Qwen2_5OmniProcessor._process_audio`)."""


class QwenOmniSpec(Qwen25VLSpec):
    """`tie_word_embeddings` is said outside."""

    hears = True
    ears = ("model.audio_tower",)
    whole_ears = True
    in_sglang: ClassVar[Literal["own", "transformers", "none"]] = "none"
    why_not_sglang = "that its backend for transformers' models takes one which also speaks was not seen"
    tells_images_apart = False
    kinds = {
        "text_config": "qwen2_5_omni_text",
        "vision_config": "qwen2_5_omni_vision_encoder",
        "audio_config": "qwen2_5_omni_audio_encoder",
    }
    fixed = ("text_config", "vision_config", "audio_config")
    beside = {"vision_config": TowerSpec, "audio_config": OmniAudioSpec}
    towers, languages = ("qwen2_5_omni_vision_encoder",), ("qwen2_5_omni_text",)

    audio_config: SerializeAsAny[OmniAudioSpec]

    def most_frames(self, audio: Audio) -> int:
        """Frames that every clip's spectrogram is filled up to, and cut to."""
        return FRAMES

    @property
    def tied(self) -> bool:
        return self.tie_word_embeddings

    @property
    def float32_tables(self) -> int:
        """Positions of frames."""
        return self.audio_config.max_source_positions * self.audio_config.hidden_size

    def audio_tokens(self, audio: Audio) -> int | None:
        tower = self.audio_config
        return tower.tokens(tower.frames(audio, self.most_frames(audio)))


class Qwen3OmniSpec(QwenOmniSpec):
    """With experts in the language model."""

    plain = "qwen3_moe"
    whole_ears = False
    in_sglang = "own"
    held_in = EXPERTS_HELD_IN
    lora_by_name = ("q_proj", "k_proj", "v_proj", "o_proj")
    bounds = Qwen3VLSpec.bounds
    kinds = {
        "text_config": "qwen3_omni_moe_text",
        "vision_config": "qwen3_omni_moe_vision_encoder",
        "audio_config": "qwen3_omni_moe_audio_encoder",
    }
    beside = {"vision_config": TowerSpec, "audio_config": Omni3AudioSpec}
    towers, languages = ("qwen3_omni_moe_vision_encoder",), ("qwen3_omni_moe_text",)

    audio_config: SerializeAsAny[Omni3AudioSpec]

    def most_frames(self, audio: Audio) -> int:
        """As many as the clip has."""
        return self.audio_config.frames(audio)


SPECS = {"qwen2_5_omni_thinker": QwenOmniSpec, "qwen3_omni_moe_thinker": Qwen3OmniSpec}


class Thinker(FusedHead):
    """`Qwen2_5OmniThinkerForConditionalGeneration`, on texts with sound, images, or both."""

    def __init__(self, spec: QwenOmniSpec, build: Builder):
        self.spec, self.images, self.audio = spec, build.images, build.audio
        clips = None if self.audio is None else [self.frames] * (build.sequences * self.audio.count)
        with build.part("model.audio_tower", learns=self.audio is not None):
            ears = spec.audio_config
            self.ears = Tower3(ears, build, clips) if isinstance(ears, Omni3AudioSpec) else AudioTower(ears, build, clips)
        with build.part("model.visual", learns=self.images is not None):
            self.eyes = VisionModel(spec.vision, build, None if self.images is None else spec.grid(self.images))
        with build.part("model.language_model"):
            text = spec.alone
            assert isinstance(text, Qwen2Spec | Qwen3Spec)
            deep = 0 if self.images is None else len(spec.vision.read)
            language = CausalLM(decoder(text, build, deep, counts=True), text, build)
        assert isinstance(language.body, Decoder)
        self.body, self.lm_head, self.loss = language.body, language.lm_head, language.loss

    @property
    def frames(self) -> int:
        """Of a clip."""
        assert self.audio is not None
        return self.spec.audio_config.frames(self.audio, self.spec.most_frames(self.audio))

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Token ids, which are the labels too; spectrograms, and which of their frames are of a clip; patches, and rows and
        columns of each image."""
        rows, spec = batch.sequences, self.spec
        ids = empty(tape, (rows, batch.tokens), dtypes.int64, "input_ids")
        made: tuple[Tensor, ...] = (ids,)
        if self.audio is not None:
            clips = rows * self.audio.count
            frames = spec.most_frames(self.audio)
            heard = empty(tape, (clips, spec.audio_config.num_mel_bins, frames), dtypes.float32, "input_features")
            made = *made, heard, empty(tape, (clips, frames), dtypes.int32, "feature_attention_mask")
        if self.images is not None:
            tower, images = spec.vision, rows * self.images.count
            patches, columns = spec.grid(self.images)
            size = tower.num_channels * tower.temporal_patch_size * tower.patch_size**2
            pixels = empty(tape, (images * patches * columns, size), dtypes.float32, "pixel_values")
            made = *made, pixels, empty(tape, (images, 3), dtypes.int64, "image_grid_thw")
        return made

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids = inputs[0]
        hidden = self._read(*inputs)
        with ids.tape.losing():
            if self.loss.fused is not None:
                return self.loss.fused(hidden, self.lm_head.weight, ids), ()
            logits = self.lm_head(hidden)
            return self.loss(logits, ids), logits

    def _read(self, ids: Tensor, *beside: Tensor) -> Tensor:
        """Last hidden states. What the towers gave lives until they are there, with where it was put, and a mask of films."""
        embeds = self.body.embed_tokens(ids)
        heard = places = films = lengths = after = None
        given: tuple[Any, ...] = ()
        if self.audio is not None:
            heard = to(self._hear(*beside[:2]), embeds.dtype)
            films, places = self._places(ids)[1:]
            embeds = masked_scatter(embeds, unsqueeze(places, 2), heard)
        if self.images is not None:
            given = self._see(beside[-2])
            seen = to(cat(given[1], 0), embeds.dtype)
            there, films = self._places(ids)[::2]
            embeds = masked_scatter(embeds, unsqueeze(there, 2), seen)
            joined = [cat(parts, 0) for parts in given[2:]]
            after, given = added(there, joined), (*given, seen, there)
        if self.audio is not None:
            lengths = empty(ids.tape, (len(self.ears.clips),), dtypes.int64, "sum")
        hidden = self.body.decode(ids, embeds, after=after)
        del heard, places, films, lengths, given
        return hidden

    def _places(self, ids: Tensor) -> list[Tensor]:
        """Where images, films and sound are (`get_placeholder_mask`)."""
        return [empty(ids.tape, ids.shape, dtypes.bool_, "eq") for _ in range(3)]

    def _hear(self, features: Tensor, mask: Tensor) -> Tensor:
        """`get_audio_features`: the frames that are of a clip, in one row, through the tower."""
        tape, (clips, bins, _) = features.tape, features.shape
        lengths = [empty(tape, (clips,), dtypes.int64, "sum")]
        frames = self._of_clips(features, mask, clips * self.frames, bins)
        if not isinstance(self.ears, Tower3):
            lengths += [empty(tape, (clips,), dtypes.int64, "add") for _ in ("convolved", "tokens")]
        heard = self.ears(frames)
        del frames, lengths
        return heard

    def _of_clips(self, features: Tensor, mask: Tensor, count: int, bins: int) -> Tensor:
        tape = features.tape
        chosen = empty(tape, mask.shape, dtypes.bool_, "_to_copy")
        numbers = empty(tape, (2, count), dtypes.int64, "nonzero")
        frames = empty(tape, (count, bins), features.dtype, "index")
        del chosen, numbers
        return frames

    def _see(self, pixels: Tensor) -> tuple[Any, ...]:
        """`get_image_features`: the tower's last hidden states, and of each image what the language model gets."""
        cast = to(pixels, self.eyes.proj.weight.dtype)
        last, *given = self.eyes(cast)
        assert self.images is not None
        each = self.spec.image_tokens(self.images) or 1
        return last, *[by_image(part, each) for part in given]


HEADS = {"image-text-to-text": Thinker}
