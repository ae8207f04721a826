"""Qwen3-ASR's encoder of sound: Qwen3-Omni's convolutions and layers over chunks that a clip is filled up to.

After transformers' modeling_qwen3_asr.py and feature_extraction_qwen3_asr.py (5.23).
"""

from __future__ import annotations

from typing import Any

from estimator.contract.job.audio import Audio
from estimator.families.audio_towers import HOP
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.qwen3_omni_audio import ChunkedTower, Omni3AudioSpec
from estimator.families.spec import Depth, Size, called
from estimator.tape import dtypes
from estimator.tape.pointwise import add_, to
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, index, narrow, permute, reshape

SHORTEST = 8000
"""Samples that a clip is filled up to (`min_length`)."""
UNSAID = {"conv_chunksize", "max_source_positions"}
"""Settings of Qwen3-Omni's encoder that it has not."""


class Qwen3ASREncoderSpec(Omni3AudioSpec):
    """`max_position_embeddings`: tokens of a chunk, of which transformers' code has 13, as a chunk of 100 frames gives."""

    modelled = {"scale_embedding": (False,), "n_window": (50,)}

    hidden_size: Size = called("d_model", 1024)
    num_hidden_layers: Depth = called("encoder_layers", 24)
    encoder_attention_heads: Size = 16
    encoder_ffn_dim: Size = 4096
    max_position_embeddings: Size = 13

    @classmethod
    def keys(cls) -> set[str]:
        return super().keys() - UNSAID

    def config(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude=UNSAID)

    def frames(self, audio: Audio, most: int = 0) -> int:
        return max(audio.samples, SHORTEST) // HOP


SPECS = {"qwen3_asr_encoder": Qwen3ASREncoderSpec}


class AudioTower(ChunkedTower):
    """`Qwen3ASREncoder`."""

    def __init__(self, spec: Qwen3ASREncoderSpec, build: Builder, clips: list[int] | None = None):
        shape = spec.max_position_embeddings, spec.hidden_size
        self.positions = build.buffer("positional_embedding", shape, dtypes.float32)
        super().__init__(spec, build, clips)

    def __call__(self, features: Tensor) -> Tensor:
        """Last hidden states, [tokens, width], of spectrograms [clips, bins, frames] in whole chunks."""
        tape, spec, (clips, bins, frames) = features.tape, self.spec, features.shape
        count, length = clips * (frames // (2 * spec.n_window)), 2 * spec.n_window
        lengths = [empty(tape, (number,), dtypes.int64, "sum") for number in (clips, count)]
        ends = empty(tape, (self.windows + 1,), dtypes.int32, "cumsum")
        chunks = permute(reshape(features, (clips, bins, count // clips, length)), (0, 2, 1, 3))
        chunks = reshape(chunks, (count, 1, bins, length))
        embeds = self.convolved(chunks)
        tokens = embeds.shape[-1]
        embeds = self.conv_out(reshape(contiguous(permute(embeds, (0, 3, 1, 2))), (count, tokens, -1)))
        embeds = add_(embeds, to(narrow(self.positions, 0, tokens), embeds.dtype))
        convolved = empty(tape, (count,), dtypes.int64, "where")
        real = empty(tape, (count, tokens), dtypes.bool_, "lt")
        valid = empty(tape, (sum(map(spec.tokens, self.chunks)),), dtypes.int64, "nonzero")
        hidden = index(reshape(embeds, (-1, spec.hidden_size)), (valid,), (valid.shape[0], spec.hidden_size))
        for layer in self.layers:
            hidden = layer(hidden, ends)
        hidden = self.ln_post(hidden)
        del lengths, ends, chunks, embeds, convolved, real, valid
        return hidden


HEADS = {"features": counted(AudioTower)}
