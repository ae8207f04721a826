"""Qwen3-Omni's encoder of sound: three convolutions in two dimensions, and Whisper's layers over windows of a clip.

After transformers' modeling_qwen3_omni_moe.py (5.23). A clip is cut into chunks of twice `n_window` frames of a spectrogram,
which are convolved by themselves, `conv_chunksize` at once; `n_window_infer`: frames of a window that layers see.
"""

from __future__ import annotations

from estimator.contract.job.audio import Audio
from estimator.families.audio_towers import HOP, halved
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.modules import ACTIVATIONS
from estimator.families.qwen_omni_audio import Layer, OmniAudioSpec
from estimator.families.spec import Size
from estimator.tape import dtypes
from estimator.tape.pointwise import add, gelu, to
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, contiguous, index, narrow, permute, reshape, split, transpose, unsqueeze

OF_A_CHUNK = 13
"""Tokens of a whole chunk, whatever its length (`_get_feat_extract_output_lengths`)."""


class Omni3AudioSpec(OmniAudioSpec):
    biased_keys = True

    n_window: Size = 50
    n_window_infer: Size = 800
    conv_chunksize: Size = 500
    downsample_hidden_size: Size = 480

    def frames(self, audio: Audio, most: int = 0) -> int:
        """Frames of a clip's spectrogram: none is cut or filled up."""
        return audio.samples // HOP

    def tokens(self, frames: int) -> int:
        whole, rest = divmod(frames, 2 * self.n_window)
        return whole * OF_A_CHUNK + (convolved(rest) if rest else 0)

    def windows(self, clips: list[int]) -> list[int]:
        """Tokens of each window that layers see, of all clips."""
        longest = max(self.tokens(chunk) for frames in clips for chunk in self.chunks(frames))
        window = longest * (self.n_window_infer // (2 * self.n_window))
        found: list[int] = []
        for tokens in map(self.tokens, clips):
            whole, rest = divmod(tokens, window)
            found += [window] * whole + [rest] * bool(rest)
        return found


SPECS = {"qwen3_omni_moe_audio_encoder": Omni3AudioSpec}


def convolved(length: int) -> int:
    """After three convolutions with a stride of two."""
    return halved(halved(halved(length)))


class ChunkedTower:
    """What it has in common with Qwen3-ASR's encoder. `clips`: frames of the spectrogram of each clip of a batch; without it the
    tower is loaded and not run."""

    def __init__(self, spec: Omni3AudioSpec, build: Builder, clips: list[int] | None):
        size, inner, self.spec, self.clips = spec.hidden_size, spec.downsample_hidden_size, spec, clips or []
        self.chunks = [chunk for frames in self.clips for chunk in spec.chunks(frames)]
        windows = spec.windows(self.clips) if self.clips else []
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build, windows))
        self.windows = len(windows)
        self.ln_post = build.layer_norm("ln_post", size)
        self.convolutions = [
            build.convolution(f"conv2d{i + 1}", inner if i else 1, inner, (3, 3), 2, 1, first=not i) for i in range(3)
        ]
        self.conv_out = build.linear("conv_out", inner * convolved(spec.num_mel_bins), size)

    def convolved(self, part: Tensor) -> Tensor:
        """[chunks, channels, bins, tokens], of [chunks, 1, bins, frames]."""
        first, second, third = self.convolutions
        out = gelu(first(part))
        out = gelu(second(out))
        return gelu(third(out))


class AudioTower(ChunkedTower):
    def __init__(self, spec: Omni3AudioSpec, build: Builder, clips: list[int] | None = None):
        super().__init__(spec, build, clips)
        size = spec.hidden_size
        self.activation = ACTIVATIONS[spec.activation_function]
        self.proj1 = build.linear("proj1", size, size, True)
        self.proj2 = build.linear("proj2", size, spec.output_dim, True)
        self.positions = build.buffer("positional_embedding", (spec.max_source_positions, size), dtypes.float32)

    def __call__(self, features: Tensor) -> Tensor:
        """What the language model gets, [tokens, width], of spectrograms of all clips in one row."""
        tape, spec, chunks = features.tape, self.spec, len(self.chunks)
        longest = max(self.chunks)
        padded = empty(tape, (chunks, longest, spec.num_mel_bins), features.dtype, "full")
        lengths = empty(tape, (chunks,), dtypes.int64, "where")
        padded = transpose(padded, 1, 2)
        valid = empty(tape, (sum(map(spec.tokens, self.chunks)),), dtypes.int64, "nonzero")
        ends = empty(tape, (self.windows + 1,), dtypes.int32, "cumsum")
        padded = to(unsqueeze(padded, 1), self.convolutions[0].weight.dtype)
        parts = [self.convolved(part) for part in split(padded, self._sizes(), 0)]
        embeds = cat(parts, 0)
        tokens = embeds.shape[-1]
        embeds = self.conv_out(reshape(contiguous(permute(embeds, (0, 3, 1, 2))), (chunks, tokens, -1)))
        positions = to(unsqueeze(narrow(self.positions, 0, tokens), 0), embeds.dtype)
        embeds = add(embeds, positions)
        hidden = index(reshape(embeds, (-1, spec.hidden_size)), (valid,), (valid.shape[0], spec.hidden_size))
        for layer in self.layers:
            hidden = layer(hidden, ends)
        hidden = self.ln_post(hidden)
        hidden = self.proj1(hidden)
        hidden = self.activation(hidden)
        hidden = self.proj2(hidden)
        del padded, lengths, valid, ends, parts, embeds, positions
        return hidden

    def _sizes(self) -> list[int]:
        """Chunks that are convolved at once."""
        whole, rest = divmod(len(self.chunks), self.spec.conv_chunksize)
        return [self.spec.conv_chunksize] * whole + [rest] * bool(rest)


HEADS = {"features": counted(AudioTower)}
