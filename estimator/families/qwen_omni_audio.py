"""Qwen2.5-Omni's encoder of sound: Whisper's layers, in which each chunk of a clip sees itself alone.

After transformers' modeling_qwen2_5_omni.py (5.23). Frames of all clips lie in one row; a clip is cut into chunks of twice
`n_window` frames of a spectrogram.
"""

from __future__ import annotations

from typing import ClassVar

from estimator.families.attention import Attention
from estimator.families.audio_towers import AudioTowerSpec, halved
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.modules import ACTIVATIONS
from estimator.families.spec import Size
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, clamp, div_scalar, gelu, mul, to
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, contiguous, index, narrow, reshape, split, transpose, unsqueeze


class OmniAudioSpec(AudioTowerSpec):
    modelled = {"scale_embedding": (False,)}
    biased_keys: ClassVar[bool] = False
    """Whether the layer that makes keys has a bias."""

    n_window: Size = 100
    output_dim: Size = 3584

    def chunks(self, frames: int) -> list[int]:
        """Frames of each chunk of a clip."""
        whole, rest = divmod(frames, 2 * self.n_window)
        return [2 * self.n_window] * whole + [rest] * bool(rest)


SPECS = {"qwen2_5_omni_audio_encoder": OmniAudioSpec}


class SelfAttention:
    """`lengths`: frames that see each other, of all clips. What is not FlashAttention's is run part by part."""

    def __init__(self, spec: OmniAudioSpec, build: Builder, lengths: list[int]):
        size = spec.hidden_size
        self.heads, self.lengths = spec.encoder_attention_heads, lengths
        self.k_proj = build.linear("self_attn.k_proj", size, size, spec.biased_keys)
        self.v_proj = build.linear("self_attn.v_proj", size, size, True)
        self.q_proj = build.linear("self_attn.q_proj", size, size, True)
        self.out_proj = build.linear("self_attn.out_proj", size, size, True)
        self.attend = Attention(build.attention, causal=False)

    def __call__(self, hidden: Tensor) -> Tensor:
        frames = hidden.shape[0]
        q = self._heads(self.q_proj(hidden))
        k = self._heads(self.k_proj(hidden))
        v = self._heads(self.v_proj(hidden))
        lengths = empty(hidden.tape, (len(self.lengths),), dtypes.int32, "sub")
        splits = [split(x, self.lengths, 2) for x in (q, k, v)]
        outs = [self.attend(part_q, part_k, part_v, None)[0] for part_q, part_k, part_v in zip(*splits, strict=True)]
        out = cat(outs, 1)
        out = contiguous(reshape(out, (frames, -1)))
        out = self.out_proj(out)
        del lengths
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """[1, heads, frames, size]"""
        return unsqueeze(transpose(reshape(x, (x.shape[0], self.heads, -1)), 0, 1), 0)


class Layer:
    def __init__(self, spec: OmniAudioSpec, build: Builder, lengths: list[int]):
        size = spec.hidden_size
        self.activation = ACTIVATIONS[spec.activation_function]
        self.self_attn = SelfAttention(spec, build, lengths)
        self.self_attn_layer_norm = build.layer_norm("self_attn_layer_norm", size)
        self.fc1 = build.linear("fc1", size, spec.encoder_ffn_dim, True)
        self.fc2 = build.linear("fc2", spec.encoder_ffn_dim, size, True)
        self.final_layer_norm = build.layer_norm("final_layer_norm", size)

    def __call__(self, hidden: Tensor, ends: Tensor) -> Tensor:
        """`ends`: where what sees each other ends, which attention computes lengths from."""
        residual = hidden
        out = self.self_attn_layer_norm(hidden)
        out = self.self_attn(out)
        out = add(residual, out)
        residual = out
        out = self.final_layer_norm(out)
        out = self.fc1(out)
        out = self.activation(out)
        out = self.fc2(out)
        out = add(residual, out)
        if out.dtype is dtypes.float16:
            out = clamp(out)
        return out


class AudioTower:
    """`clips`: frames of the spectrogram of each clip of a batch; without it the tower is loaded and not run."""

    def __init__(self, spec: OmniAudioSpec, build: Builder, clips: list[int] | None = None):
        size, self.spec, self.clips = spec.hidden_size, spec, clips or []
        self.chunks = [chunk for frames in self.clips for chunk in spec.chunks(frames)]
        lengths = [halved(chunk) for chunk in self.chunks]
        self.conv1 = build.convolution("conv1", spec.num_mel_bins, size, (3,), padding=1, first=True)
        self.conv2 = build.convolution("conv2", size, size, (3,), stride=2, padding=1)
        build.parameter("audio_bos_eos_token.weight", (2, spec.output_dim), read=False)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build, lengths), last=1)
        self.ln_post = build.layer_norm("ln_post", size)
        self.proj = build.linear("proj", size, spec.output_dim, True)
        self.positions = build.buffer("positional_embedding", (spec.max_source_positions, size), dtypes.float32)

    def __call__(self, features: Tensor) -> Tensor:
        """What the language model gets, [tokens, width], of spectrograms [bins, frames] of all clips in one row."""
        tape, spec, chunks = features.tape, self.spec, len(self.chunks)
        longest = max(self.chunks)
        padded = empty(tape, (chunks, longest, spec.num_mel_bins), features.dtype, "full")
        lengths = empty(tape, (chunks,), dtypes.int64, "where")
        padded = transpose(padded, 1, 2)
        valid = empty(tape, (sum(map(halved, self.chunks)),), dtypes.int64, "nonzero")
        pairs = empty(tape, (sum(map(spec.tokens, self.clips)),), dtypes.int64, "add")
        ends = empty(tape, (chunks + 1,), dtypes.int32, "_to_copy")
        padded = to(padded, self.conv1.weight.dtype)
        inside = empty(tape, (chunks, 1, longest), dtypes.int64, "_to_copy")
        embeds = mul(gelu(self.conv1(padded)), inside)
        embeds = transpose(gelu(self.conv2(embeds)), 1, 2)
        embeds = add(embeds, self._positions(embeds.shape[1], embeds.dtype))
        hidden = index(reshape(embeds, (-1, spec.hidden_size)), (valid,), (valid.shape[0], spec.hidden_size))
        for layer in self.layers:
            hidden = layer(hidden, ends)
        hidden = self._pooled(hidden, pairs)
        hidden = self.proj(self.ln_post(hidden))
        del padded, lengths, valid, pairs, ends, inside, embeds
        return hidden

    def _positions(self, frames: int, dtype: DType) -> Tensor:
        return to(unsqueeze(narrow(self.positions, 0, frames), 0), dtype)

    def _pooled(self, hidden: Tensor, pairs: Tensor) -> Tensor:
        """Means of two frames each."""
        shape = pairs.shape[0], hidden.shape[1]
        first = index(hidden, (pairs,), shape)
        second = index(hidden, (empty(hidden.tape, pairs.shape, dtypes.int64, "add"),), shape)
        summed = add(first, second)
        del first, second
        return div_scalar(summed)


HEADS = {"features": counted(AudioTower)}
