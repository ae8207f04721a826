"""DeepSeek-V4's compressed keys: one for every few tokens, or for every many, beside those of a sliding window.

After transformers' modeling_deepseek_v4.py (5.23), `DeepseekV4HCACompressor`, `DeepseekV4CSACompressor` and `DeepseekV4Indexer`,
without a cache. Norms and position biases are in float32 whatever the model's type.
"""

from __future__ import annotations

from typing import Any

from estimator.families.build import Builder
from estimator.families.norms import WideRMSNorm
from estimator.families.rotary import frequencies
from estimator.families.rotations import rotate_half_of_pairs
from estimator.tape import dtypes
from estimator.tape.matmul import matmul
from estimator.tape.pointwise import add, mul, mul_scalar, relu, softmax, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import masked_fill, topk
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import cat, clone, expand, narrow, reshape, transpose, unsqueeze, write_part

ROPES = ("main_inv_freq", "main_original_inv_freq"), ("compress_inv_freq", "compress_original_inv_freq")
"""Frequencies that every rotary embedding has, whichever of them it uses."""


class Norm(WideRMSNorm):
    """One whose weight is in float32."""

    def __init__(self, build: Builder, name: str, size: int):
        self.weight = build.parameter(name + ".weight", (size,), dtypes.float32)


def rotary_buffers(build: Builder, size: int) -> list[Tensor]:
    """The frequencies of one rotary embedding over `size` elements."""
    return [each for names in ROPES for each in frequencies(build, size, names)]


def rotate_last(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The last elements of [batch, heads, tokens, size] rotated by pairs, in float32; tables are [batch, tokens, pairs]."""
    c = unsqueeze(_twice(cos), 1)
    s = unsqueeze(_twice(sin), 1)
    size, wide = c.shape[-1], dtypes.float32
    kept, turned = narrow(x, -1, x.shape[-1] - size), narrow(x, -1, size)
    rotated = to(add(mul(to(turned, wide), c), mul(to(rotate_half_of_pairs(turned), wide), s)), x.dtype)
    return cat((kept, rotated), -1)


def _twice(table: Tensor) -> Tensor:
    """Each element two times in a row, copied (`repeat_interleave`)."""
    batch, tokens, pairs = table.shape
    return reshape(clone(expand(unsqueeze(table, 3), (batch, tokens, pairs, 2))), (batch, tokens, 2 * pairs))


class Compressor:
    """Tokens weighed by a softmax over each of their windows of `rate`, in `size` numbers; where windows `overlap`, each takes
    part of the one before, and its layers make both parts. Fewer tokens than a window fill none: the layers run, and what they
    make is left, so that they get no gradients."""

    def __init__(self, spec: Any, build: Builder, name: str, rate: int, size: int, overlap: bool):
        self.rate, self.size, self.overlap, self.rotated = rate, size, overlap, spec.qk_rope_head_dim
        made = size * (1 + overlap)
        with build.unlearning(build.tokens is not None and build.tokens < rate):
            self.position_bias = build.parameter(name + ".position_bias", (rate, made), dtypes.float32)
            self.kv_proj = build.linear(name + ".kv_proj", spec.hidden_size, made)
            self.gate_proj = build.linear(name + ".gate_proj", spec.hidden_size, made)
            self.kv_norm = Norm(build, name + ".kv_norm", size)
        self.buffers = rotary_buffers(build, self.rotated)

    def compressed(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """[batch, windows, size]; and what is held beside it."""
        tape, (batch, tokens, _) = hidden.tape, hidden.shape
        kv = self.kv_proj(hidden)
        gate = self.gate_proj(hidden)
        windows = tokens // self.rate
        usable = windows * self.rate
        chunk_kv, chunk_gate = narrow(kv, 1, usable), narrow(gate, 1, usable)
        if not windows:
            return empty(tape, (batch, 0, self.size), kv.dtype, "new_zeros"), kv, gate, chunk_kv, chunk_gate
        chunk_kv = reshape(chunk_kv, (batch, windows, self.rate, -1))
        chunk_gate = add(reshape(chunk_gate, (batch, windows, self.rate, -1)), self.position_bias)
        wide = self._overlapping(chunk_kv, chunk_gate) if self.overlap else (chunk_kv, chunk_gate)
        weighted = sum_dim(mul(wide[0], to(softmax(wide[1], dtypes.float32), wide[0].dtype)), 2)
        out = self.kv_norm(weighted)
        del weighted
        positions = empty(tape, (windows,), dtypes.int64, "add")
        cos = empty(tape, (batch, windows, self.rotated // 2), out.dtype, "cos")
        sin = empty(tape, (batch, windows, self.rotated // 2), out.dtype, "sin")
        out = reshape(rotate_last(unsqueeze(out, 1), cos, sin), (batch, windows, self.size))
        return out, kv, gate, chunk_kv, chunk_gate, *wide, positions, cos, sin

    def _overlapping(self, kv: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        """Both with the first part of the window before, [batch, windows, 2 rate, size]."""
        tape, (batch, windows, rate, _) = kv.tape, kv.shape
        shape = (batch, windows, 2 * rate, self.size)
        new_kv = empty(tape, shape, kv.dtype, "new_zeros")
        new_gate = empty(tape, shape, gate.dtype, "new_full")
        new_kv = write_part(new_kv, narrow(kv, 3, self.size))
        new_gate = write_part(new_gate, narrow(gate, 3, self.size))
        if windows > 1:
            new_kv = write_part(new_kv, narrow(narrow(kv, 1, windows - 1), 3, self.size))
            new_gate = write_part(new_gate, narrow(narrow(gate, 1, windows - 1), 3, self.size))
        return new_kv, new_gate


def _ready(tape: Tape, tokens: int) -> Tensor:
    """How many windows each token may look at."""
    after = empty(tape, (1, tokens), dtypes.int64, "add")
    return unary("floor_divide", after)


class HeavyCompressor(Compressor):
    """Every token looks at all windows that are before it."""

    def __init__(self, spec: Any, build: Builder):
        super().__init__(spec, build, "self_attn.compressor", spec.compress_rate_hca, spec.head_dim, overlap=False)

    def __call__(self, hidden: Tensor, _q: Tensor, _cos: Tensor, _sin: Tensor) -> tuple[Tensor, Tensor | None]:
        """Keys, [batch, 1, windows, size], and a mask of numbers, [batch, 1, tokens, windows]."""
        compressed, *held = self.compressed(hidden)
        keys = unsqueeze(compressed, 1)
        tape, (batch, tokens, _), windows = hidden.tape, hidden.shape, compressed.shape[1]
        if not windows:
            return keys, None
        places = empty(tape, (windows,), dtypes.int64, "arange")
        ready = _ready(tape, tokens)
        bias = empty(tape, (batch, 1, tokens, windows), keys.dtype, "new_zeros")
        bias = masked_fill(bias, empty(tape, (1, 1, tokens, windows), dtypes.bool_, "ge"))
        del held, places, ready
        return keys, bias


class Indexer(Compressor):
    """Which windows each token looks at, [batch, tokens, topk]. Nothing of it is trained by the loss, but its graph is made."""

    def __init__(self, spec: Any, build: Builder):
        name, size, heads = "self_attn.compressor.indexer", spec.index_head_dim, spec.index_n_heads
        self.topk = spec.index_topk
        with build.unlearning():
            super().__init__(spec, build, name, spec.compress_rate_csa, size, overlap=True)
            self.q_b_proj = build.linear(name + ".q_b_proj", spec.q_lora_rank, heads * size)
            self.weights_proj = build.linear(name + ".scorer.weights_proj", spec.hidden_size, heads)

    def __call__(self, hidden: Tensor, q_latent: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        tape, (batch, tokens, _) = hidden.tape, hidden.shape
        compressed, *held = self.compressed(hidden)
        cos_q, sin_q = (empty(tape, (1, tokens, self.rotated // 2), hidden.dtype, name) for name in ("cos", "sin"))
        q = transpose(reshape(self.q_b_proj(q_latent), (batch, tokens, -1, self.size)), 1, 2)
        q = transpose(rotate_last(q, cos_q, sin_q), 1, 2)
        scores = self._scores(q, compressed, hidden)
        windows = compressed.shape[1]
        ready = _ready(tape, tokens)
        places = empty(tape, (windows,), dtypes.int64, "arange")
        future = empty(tape, (1, tokens, windows), dtypes.bool_, "ge")
        scores = masked_fill(scores, future)
        chosen = topk(scores, min(self.topk, windows))[1]
        invalid = unary("ge", chosen, dtypes.bool_)
        none = unary("full_like", chosen)
        out = unary("where", chosen)
        del held, cos_q, sin_q, ready, places, invalid, none
        return out

    def _scores(self, q: Tensor, keys: Tensor, hidden: Tensor) -> Tensor:
        """Sums over heads of weighted scores, [batch, tokens, windows]."""
        wide = dtypes.float32
        scores = matmul(to(q, wide), unsqueeze(to(transpose(keys, 1, 2), wide), 1))
        scores = mul_scalar(relu(scores))
        weights = mul_scalar(to(self.weights_proj(hidden), wide))
        return sum_dim(mul(scores, unsqueeze(weights, 3)), 2)


class SparseCompressor(Compressor):
    """Every token looks at the windows that an indexer picks."""

    def __init__(self, spec: Any, build: Builder):
        super().__init__(spec, build, "self_attn.compressor", spec.compress_rate_csa, spec.head_dim, overlap=True)
        self.indexer = Indexer(spec, build)

    def __call__(self, hidden: Tensor, q_latent: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """As of `HeavyCompressor`."""
        compressed, *held = self.compressed(hidden)
        keys = unsqueeze(compressed, 1)
        chosen = self.indexer(hidden, q_latent, cos, sin)
        tape, (batch, tokens, _), windows = hidden.tape, hidden.shape, compressed.shape[1]
        valid = unary("ge", chosen, dtypes.bool_)
        none = unary("full_like", chosen)
        safe = unary("where", chosen)
        del none
        bias = empty(tape, (batch, 1, tokens, windows + 1), keys.dtype, "new_full")
        out = narrow(bias, 3, windows)
        del held, valid, safe
        return keys, out
