"""Qwen2-Audio: a Qwen2 that gets means of two frames of Whisper's encoder through a linear layer.

After transformers' modeling_qwen2_audio.py and processing_qwen2_audio.py (5.23).
"""

from __future__ import annotations

from estimator.contract.job.audio import Audio
from estimator.families.audio_towers import AudioTower
from estimator.families.build import Builder
from estimator.families.cache_layers import Picture
from estimator.families.decoder import Decoder
from estimator.families.heads import Batch
from estimator.families.hearing import HearingSpec
from estimator.families.image_text import language_model
from estimator.families.model_output import Held
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.loss import cross_entropy
from estimator.tape.pointwise import to
from estimator.tape.scatter import masked_scatter, picked
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, narrow, reshape, unsqueeze


class Qwen2AudioSpec(HearingSpec):
    """Its processor fills each clip up to a spectrogram of the encoder's length, or cuts it."""

    runs = True
    whole_ears_in_sglang = True
    kinds = {"text_config": "qwen2", "audio_config": "qwen2_audio_encoder"}
    fixed = ("audio_config",)
    towers, languages = ("qwen2_audio_encoder",), ("qwen2", "llama", "mistral", "qwen3")

    def most_frames(self, audio: Audio) -> int:
        """Frames that every clip's spectrogram is filled up to, and cut to."""
        return 2 * self.audio_config.max_source_positions

    def clip(self, context: int) -> Picture:
        """Thirty seconds (vllm/model_executor/models/qwen2_audio.py, `get_mm_max_tokens_per_item`)."""
        frames = self.audio_config.max_source_positions
        return Picture(frames // 2, 2 * frames * self.audio_config.num_mel_bins, patches=frames)

    def audio_tokens(self, audio: Audio) -> int | None:
        tower = self.audio_config
        return tower.tokens(tower.frames(audio, self.most_frames(audio)))


SPECS = {"qwen2_audio": Qwen2AudioSpec}


class Qwen2Audio:
    """The whole model (`Qwen2AudioForConditionalGeneration`); the loss is of the logits of all tokens but the last, copied."""

    def __init__(self, spec: Qwen2AudioSpec, build: Builder):
        self.spec, self.audio, self.attention = spec, build.audio, build.attention
        learns = self.audio is not None
        with build.part("model.audio_tower", learns):
            self.tower = AudioTower(spec.audio_config, build)
        with build.part("model", learns):
            size = spec.audio_config.hidden_size, spec.text_config.hidden_size
            self.projector = build.linear("multi_modal_projector.linear", *size, True)
        language = language_model(spec, build)
        assert isinstance(language.body, Decoder)
        self.body, self.lm_head = language.body, language.lm_head

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Token ids, which are the labels too; spectrograms, and which of their frames are of a clip."""
        ids = empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids")
        if self.audio is None:
            return (ids,)
        clips, frames = batch.sequences * self.audio.count, self.spec.most_frames(self.audio)
        heard = empty(tape, (clips, self.spec.audio_config.num_mel_bins, frames), dtypes.float32, "input_features")
        return ids, heard, empty(tape, (clips, frames), dtypes.int32, "feature_attention_mask")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids = inputs[0]
        hidden = self._read(*inputs)
        with ids.tape.losing():
            logits = self.lm_head(hidden)
            shifted = contiguous(narrow(logits, 1, ids.shape[1] - 1))
            labels = contiguous(narrow(ids, 1, ids.shape[1] - 1))
            loss = cross_entropy(reshape(shifted, (-1, logits.shape[-1])), reshape(labels, (-1,)))
        del shifted, labels
        return loss, logits

    def _read(self, ids: Tensor, features: Tensor | None = None, told: Tensor | None = None) -> Tensor:
        """Last hidden states. What was heard, and what it was made of, lives until they are there."""
        tape = ids.tape
        embeds = self.body.embed_tokens(ids)
        if features is None:
            return self.body.decode(ids, embeds)
        assert self.audio is not None
        clips, frames = features.shape[0], self.spec.audio_config.max_source_positions
        each = self.spec.audio_tokens(self.audio) or 0
        lengths = [empty(tape, (clips,), dtypes.int64, "add") for _ in ("convolved", "tokens")]
        places = empty(tape, (frames,), dtypes.int64, "arange")
        padding = empty(tape, (clips, frames), dtypes.bool_, "ge")
        real = empty(tape, (clips, frames), dtypes.int64, "_to_copy")
        dummy = empty(tape, (clips, frames, 1), embeds.dtype, "zeros")
        mask = self._mask(clips, frames, embeds)
        last = self.tower(features, mask)
        heard = self.projector(last)
        given = empty(tape, ids.shape, dtypes.bool_, "eq")
        legacy = empty(tape, (), dtypes.bool_, "eq")
        chosen = empty(tape, heard.shape[:2], dtypes.bool_, "lt")
        heard = picked(heard, chosen, (clips * each, heard.shape[2]))
        there = unsqueeze(empty(tape, ids.shape, dtypes.bool_, "eq"), 2)
        heard = to(heard, embeds.dtype)
        embeds = masked_scatter(embeds, there, heard)
        hidden = self.body.decode(ids, embeds)
        del lengths, places, padding, real, dummy, mask, last, heard, given, legacy, chosen, there
        return hidden

    def _mask(self, clips: int, frames: int, embeds: Tensor) -> Tensor | None:
        """Which frames are of a clip, for each frame; none where all are (`create_bidirectional_mask`)."""
        tape, spec = embeds.tape, self.spec.audio_config
        assert self.audio is not None
        if -(-spec.frames(self.audio, 2 * frames) // 2) >= frames:
            return None
        mask = empty(tape, (clips, 1, frames, frames), dtypes.bool_, "bitwise_and")
        return mask if self.attention == "sdpa" else empty(tape, mask.shape, embeds.dtype, "where")


HEADS = {"audio-text-to-text": Qwen2Audio}
