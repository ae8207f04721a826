"""Mamba-2: layers that scan the sequence in chunks, by products of matrices within a chunk and a recurrence between chunks.

After transformers' modeling_mamba2.py (5.23), without the packages mamba-ssm and causal-conv1d: the path in plain torch, which
holds every intermediate result. Their fused kernels need far less, and are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

from pydantic import model_validator

from estimator.contract.errors import InvalidJob
from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, mamba_state
from estimator.families.heads import Batch
from estimator.families.model_output import Held
from estimator.families.modules import ACTIVATIONS, RMSNorm
from estimator.families.spec import Activation, ModelSpec, Size
from estimator.tape import dtypes
from estimator.tape.convolution import convolution
from estimator.tape.dtypes import DType
from estimator.tape.einsum import einsum
from estimator.tape.pointwise import (
    add,
    add_scalar,
    clamp,
    exp,
    mean_last,
    mul,
    neg,
    pow_scalar,
    rsqrt,
    silu,
    softplus,
    sub,
    to,
)
from estimator.tape.reduction import cumsum
from estimator.tape.selection import masked_fill
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import (
    cat,
    clone,
    contiguous,
    expand,
    narrow,
    pad,
    permute,
    reshape,
    select,
    split,
    transpose,
    unsqueeze,
)

IN_TORCH = (
    "the scan runs as transformers' reference in plain torch, as it does without the packages mamba-ssm and causal-conv1d; "
    "with their fused kernels it takes far less"
)


class MixerSizes(NamedTuple):
    """What a mixer needs to know."""

    hidden_size: int
    num_heads: int
    head_dim: int
    state_size: int
    n_groups: int
    conv_kernel: int
    chunk_size: int
    use_bias: bool
    use_conv_bias: bool
    hidden_act: str


WITHOUT_LORA = ("out_proj",)
"""A mixer's last layer, on which PEFT puts no LoRA in some types of models."""


class Mamba2Spec(ModelSpec):
    can = Abilities(gguf=True, graph="state-space")
    has_attention = False
    without_lora = WITHOUT_LORA

    num_heads: Size
    head_dim: Size
    vocab_size: Size
    state_size: Size = 128
    expand: Size = 2
    conv_kernel: Size = 4
    n_groups: Size = 8
    use_bias: bool = False
    use_conv_bias: bool = True
    hidden_act: Activation = "silu"
    residual_in_fp32: bool = True
    chunk_size: Size = 256
    tie_word_embeddings: bool = False

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        inner = self.num_heads * self.head_dim
        convolved = inner + 2 * self.n_groups * self.state_size
        return (mamba_state(inner, convolved, self.state_size, self.conv_kernel),) * self.num_hidden_layers

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.hidden_size * self.expand != self.num_heads * self.head_dim:
            inner = f"num_heads {self.num_heads} x head_dim {self.head_dim}"
            raise ValueError(f"hidden_size {self.hidden_size} x expand {self.expand} is not {inner}")
        if self.num_heads % self.n_groups:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of n_groups {self.n_groups}")
        return self

    def config(self) -> dict[str, Any]:
        return self.model_dump(exclude={"max_position_embeddings"})


SPECS = {"mamba2": Mamba2Spec}


class RMSNormGated:
    """Normalisation of each group, after a gate, in float32."""

    def __init__(self, weight: Tensor, groups: int):
        self.weight, self.groups = weight, groups

    def __call__(self, x: Tensor, gate: Tensor) -> Tensor:
        wide = to(x, dtypes.float32)
        wide = mul(wide, silu(to(gate, dtypes.float32)))
        grouped = reshape(wide, (*wide.shape[:-1], self.groups, -1))
        variance = mean_last(pow_scalar(grouped))
        grouped = mul(grouped, rsqrt(add_scalar(variance)))
        wide = reshape(grouped, wide.shape)
        return mul(self.weight, to(wide, x.dtype))


class Mixer:
    """`name`: what its modules are called in a layer. `output_bias`: of its last layer, where it is not that of the first."""

    def __init__(self, spec: MixerSizes | Mamba2Spec, build: Builder, name: str, output_bias: bool | None = None):
        inner, states = spec.num_heads * spec.head_dim, spec.n_groups * spec.state_size
        channels = inner + 2 * states
        self.inner, self.states, self.channels = inner, states, channels
        self.heads, self.groups, self.chunk = spec.num_heads, spec.n_groups, spec.chunk_size
        self.activation = ACTIVATIONS[spec.hidden_act]
        self.dt_bias = build.parameter(name + ".dt_bias", (spec.num_heads,))
        self.a_log = build.parameter(name + ".A_log", (spec.num_heads,))
        self.d = build.parameter(name + ".D", (spec.num_heads,))
        self.conv_weight = build.parameter(name + ".conv1d.weight", (channels, 1, spec.conv_kernel))
        self.conv_bias = build.parameter(name + ".conv1d.bias", (channels,)) if spec.use_conv_bias else None
        self.in_proj = build.linear(name + ".in_proj", spec.hidden_size, inner + channels + spec.num_heads, spec.use_bias)
        self.norm = self.make_norm(build, name + ".norm.weight")
        self.out_proj = build.linear(
            name + ".out_proj", inner, spec.hidden_size, spec.use_bias if output_bias is None else output_bias
        )

    def make_norm(self, build: Builder, name: str) -> Callable[[Tensor, Tensor], Tensor]:
        """What takes the scan's result and its gate, before the last layer."""
        return RMSNormGated(build.parameter(name, (self.inner,)), self.groups)

    def project(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Gate, convolution's input and steps, in one; and what is held until the convolution's output is split."""
        return (self.in_proj(hidden),)

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden.tape.remarks[IN_TORCH] = None
        batch, tokens, _ = hidden.shape
        projected, *held = self.project(hidden)
        a = neg(exp(to(self.a_log, dtypes.float32)))
        gate, mixed, dt = split(projected, (self.inner, self.channels, self.heads), 2)
        mixed = transpose(mixed, 1, 2)
        kernel = self.conv_weight.shape[-1]
        mixed = causal_conv1d(mixed, reshape(self.conv_weight, (-1, kernel)), self.conv_bias, self.activation)
        mixed = transpose(mixed, 1, 2)
        x, b, c = split(mixed, (self.inner, self.states, self.states), 2)
        del held
        x_heads = reshape(x, (batch, tokens, self.heads, -1))
        b_groups, c_groups = (reshape(t, (batch, tokens, self.groups, -1)) for t in (b, c))
        scanned = chunk_scan(x_heads, dt, a, b_groups, c_groups, self.chunk, self.d, self.dt_bias)
        del x_heads, b_groups, c_groups
        out = reshape(scanned, (batch, tokens, -1))
        out = self.norm(out, gate)
        out = self.out_proj(to(out, hidden.dtype))
        del projected, a, mixed, x, b, c, dt, gate, scanned
        return out


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Any) -> Tensor:
    """A convolution of each channel over the tokens before; `x` [batch, channels, tokens], `weight` [channels, kernel]."""
    tokens = x.shape[2]
    out = convolution(to(x, weight.dtype), unsqueeze(weight, 1), bias, padding=weight.shape[1] - 1)
    out = narrow(out, 2, tokens)
    out = activation(out)
    return to(out, x.dtype)


def chunk_scan(
    hidden: Tensor, steps: Tensor, decay: Tensor, b_groups: Tensor, c_groups: Tensor, chunk: int, d: Tensor, dt_bias: Tensor
) -> Tensor:
    """`mamba2_chunk_scan`: [batch, tokens, heads, head size] of the same, whose every local variable lives to the end."""
    batch, tokens, heads, size = hidden.shape
    dt = add(steps, to(dt_bias, steps.dtype))
    dt = softplus(dt)
    dt = clamp(dt)
    x = to(hidden, dtypes.float32)
    b, c = (_repeat(to(t, dtypes.float32), heads) for t in (b_groups, c_groups))
    missing = -tokens % chunk
    skipped = mul(unsqueeze(d, 1), pad(x, 1, 0, missing))
    x = mul(x, to(unsqueeze(dt, 3), dtypes.float32))
    a = mul(to(decay, dtypes.float32), to(dt, dtypes.float32))
    whole = (x, a, b, c)
    x, a, b, c = [_chunks(t, missing, chunk) for t in whole]
    del whole
    a = permute(a, (0, 3, 1, 2))
    a_sums = cumsum(a, -1)
    within = exp(_segment_sum(a))
    scores = einsum("bclhn,bcshn->bclsh", c, b)
    weights = mul(scores, permute(within, (0, 2, 3, 4, 1)))
    y_diagonal = einsum("bclsh,bcshp->bclhp", weights, x)
    decay_states = exp(sub(narrow(a_sums, 3, 1), a_sums))
    b_decay = mul(b, unsqueeze(permute(decay_states, (0, 2, 3, 1)), 4))
    states = einsum("bclhn,bclhp->bchpn", b_decay, x)
    previous = empty(states.tape, (batch, 1, *states.shape[2:]), states.dtype, "zeros_like")
    states = cat((previous, states), 1)
    decay_chunk = transpose(exp(_segment_sum(pad(select(a_sums, 3), 2, 1, 0))), 1, 3)
    new_states = einsum("bzch,bzhpn->bchpn", decay_chunk, states)
    states = narrow(new_states, 1, new_states.shape[1] - 1)
    state_decay_out = exp(a_sums)
    c_times_states = einsum("bclhn,bchpn->bclhp", c, states)
    y_off = mul(c_times_states, unsqueeze(permute(state_decay_out, (0, 2, 3, 1)), 4))
    out = contiguous(add(y_diagonal, y_off))
    out = reshape(out, (batch, -1, heads, size))
    out = add(out, skipped)
    if missing:
        out = narrow(out, 1, tokens)
    del previous, dt
    return out


def _repeat(x: Tensor, heads: int) -> Tensor:
    """Each group's numbers for all of its heads, copied."""
    batch, tokens, groups, size = x.shape
    spread = expand(unsqueeze(x, 3), (batch, tokens, groups, heads // groups, size))
    return reshape(clone(spread), (batch, tokens, heads, size))


def _chunks(x: Tensor, missing: int, chunk: int) -> Tensor:
    x = pad(x, 1, 0, missing)
    return reshape(x, (x.shape[0], -1, chunk, *x.shape[2:]))


def _segment_sum(x: Tensor) -> Tensor:
    """Sums of every stretch of the last dimension, by running sums of a masked square."""
    size, tape = x.shape[-1], x.tape
    square = expand(unsqueeze(x, len(x.shape)), (*x.shape, size))
    mask = _lower(tape, size)
    square = masked_fill(square, _inverted(mask))
    sums = cumsum(square, -2)
    mask = _lower(tape, size)
    sums = masked_fill(sums, _inverted(mask))
    del mask, square
    return sums


def _lower(tape: Tape, size: int) -> Tensor:
    ones = empty(tape, (size, size), dtypes.bool_, "ones")
    lower = empty(tape, (size, size), dtypes.bool_, "tril")
    del ones
    return lower


def _inverted(mask: Tensor) -> Tensor:
    return empty(mask.tape, mask.shape, dtypes.bool_, "bitwise_not")


class Block:
    """A mixer with a residual that may be kept in float32."""

    def __init__(self, spec: Any, build: Builder, mixer: Callable[[], Callable[[Tensor], Tensor]]):
        self.residual_in_fp32 = spec.residual_in_fp32
        self.norm = RMSNorm(build.parameter("norm.weight", (spec.hidden_size,)))
        self.mixer = mixer()

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        out = self.norm(to(hidden, self.norm.weight.dtype))
        if self.residual_in_fp32:
            residual = to(residual, dtypes.float32)
        out = self.mixer(out)
        return add(residual, out)


def refuse_output_adapter(build: Builder, model_type: str, name: str) -> None:
    """Raise `InvalidJob` where an adapter is put on a mixer's last layer, as PEFT does for some types of models."""
    if build.adapter is not None and build.adapter.targets(name):
        (layer,) = WITHOUT_LORA
        how = f"name other layers, such as in_proj, or exclude {layer}"
        raise InvalidJob(f"peft puts no LoRA on {layer} of {model_type} models: {how}", "training.adapter.targets")


class CausalLM:
    """A stack of mixers with its output layer (`Mamba2ForCausalLM`, `MambaForCausalLM`); its output holds logits in float32."""

    def __init__(self, spec: Any, build: Builder, mixer: Callable[[], Callable[[Tensor], Tensor]]):
        refuse_output_adapter(build, spec.model_type, "mixer.out_proj")
        self.embeddings = build.embedding("embeddings", spec.vocab_size, spec.hidden_size)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Block(spec, build, mixer))
        self.norm_f = build.rms_norm("norm_f", spec.hidden_size)
        self.loss = build.kernels.loss
        self.lm_head = build.head(spec.hidden_size, spec.vocab_size, spec.tie_word_embeddings)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        return (empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids"),)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        (ids,) = inputs
        hidden = self._backbone(ids)
        with ids.tape.losing():
            logits = to(self.lm_head(to(hidden, self.lm_head.weight.dtype)), dtypes.float32)
            loss = self.loss(logits, ids)
        return loss, logits

    def _backbone(self, ids: Tensor) -> Tensor:
        embeds = self.embeddings(ids)
        hidden = embeds
        for block in self.layers:
            hidden = block(hidden)
        return self.norm_f(hidden)


HEADS = {"causal-lm": lambda spec, build: CausalLM(spec, build, lambda: Mixer(spec, build, "mixer"))}
