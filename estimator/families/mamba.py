"""Mamba: layers with a state that is carried from token to token.

After transformers' modeling_mamba.py (5.23), without the packages mamba-ssm and causal-conv1d: the scan is a loop over the
tokens, which keeps every state for backward. Their fused kernels need far less, and are not modelled. The tokens between the
first and the last all do the same, and share a slot.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import model_validator

from estimator.contract.errors import NotModelled
from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, mamba_state
from estimator.families.mamba2 import IN_TORCH, WITHOUT_LORA, CausalLM, causal_conv1d
from estimator.families.modules import ACTIVATIONS, Module
from estimator.families.siglip_pooling import bypassed
from estimator.families.spec import Activation, ModelSpec, Size
from estimator.tape import dtypes
from estimator.tape.autocast import cast_all
from estimator.tape.autograd import attach, record
from estimator.tape.matmul import matmul, mm
from estimator.tape.pointwise import add, exp, mul, neg, silu, softplus, to
from estimator.tape.slots import Slot
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, expand, reshape, select, split, transpose, unsqueeze


class MixerSizes(NamedTuple):
    """What a mixer needs to know."""

    hidden_size: int
    inner: int
    state_size: int
    time_step_rank: int
    conv_kernel: int
    use_bias: bool
    use_conv_bias: bool
    hidden_act: str


class MambaSpec(ModelSpec):
    """Without `time_step_rank`, or with "auto", it is a sixteenth of the width, rounded up."""

    can = Abilities(gguf=True, graph="state-space")
    own_products = True
    has_attention = False
    without_lora = WITHOUT_LORA
    modelled = {"use_bias": (False,), "use_mambapy": (False,)}

    vocab_size: Size
    state_size: Size = 16
    expand: Size = 2
    conv_kernel: Size = 4
    time_step_rank: Size
    use_conv_bias: bool = True
    hidden_act: Activation = "silu"
    residual_in_fp32: bool = True
    tie_word_embeddings: bool = True

    @property
    def mixer(self) -> MixerSizes:
        """The sizes of a layer's mixer."""
        inner, rank, bias = self.expand * self.hidden_size, self.time_step_rank, self.use_conv_bias
        return MixerSizes(self.hidden_size, inner, self.state_size, rank, self.conv_kernel, False, bias, self.hidden_act)

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        inner = self.expand * self.hidden_size
        return (mamba_state(inner, inner, self.state_size, self.conv_kernel),) * self.num_hidden_layers

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"time_step_rank": -(-hidden // 16)}

    @model_validator(mode="before")
    @classmethod
    def _automatic(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("time_step_rank") == "auto":
            return {name: value for name, value in given.items() if name != "time_step_rank"}
        return given

    def config(self) -> dict[str, Any]:
        return self.model_dump(exclude={"max_position_embeddings"})


SPECS = {"mamba": MambaSpec}


class Mixer:
    """`name`: what its modules are called in a layer."""

    def __init__(self, spec: MixerSizes, build: Builder, name: str):
        inner, states, rank = spec.inner, spec.state_size, spec.time_step_rank
        self.inner, self.states, self.rank = inner, states, rank
        self.unrolled = build.unrolled
        self.activation = ACTIVATIONS[spec.hidden_act]
        self.a_log = build.parameter(name + ".A_log", (inner, states))
        self.d = build.parameter(name + ".D", (inner,))
        self.conv_weight = build.parameter(name + ".conv1d.weight", (inner, 1, spec.conv_kernel))
        self.conv_bias = build.parameter(name + ".conv1d.bias", (inner,)) if spec.use_conv_bias else None
        self.in_proj = build.linear(name + ".in_proj", spec.hidden_size, 2 * inner, spec.use_bias)
        self.x_proj = build.linear(name + ".x_proj", inner, rank + 2 * states)
        dt_proj, self.not_called = bypassed(build, name + ".dt_proj", rank, inner)
        assert dt_proj.bias is not None
        self.dt_weight, self.dt_bias = dt_proj.weight, dt_proj.bias
        self.out_proj = build.linear(name + ".out_proj", inner, spec.hidden_size, spec.use_bias)

    def offer(self) -> None:
        """What forward makes for a fused kernel that is not there."""
        for_kernels = to(self.d, dtypes.float32), to(self.dt_bias, dtypes.float32)
        del for_kernels

    def normed(self, steps: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Steps, and what reads into the state and out of it, as the scan gets them."""
        return steps, b, c

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden.tape.remarks[IN_TORCH] = None
        projected = transpose(self.in_proj(hidden), 1, 2)
        a = neg(exp(to(self.a_log, dtypes.float32)))
        self.offer()
        mixed, gate = split(projected, (self.inner, self.inner), 1)
        kernel = self.conv_weight.shape[-1]
        mixed = causal_conv1d(mixed, reshape(self.conv_weight, (-1, kernel)), self.conv_bias, self.activation)
        mixed = transpose(mixed, 1, 2)
        steps, b, c = split(self.x_proj(mixed), (self.rank, self.states, self.states), 2)
        steps, b, c = self.normed(steps, b, c)
        steps = _weighted(self.dt_weight, transpose(steps, 1, 2))
        bias = to(self.dt_bias, dtypes.float32)
        out = self._scan(transpose(mixed, 1, 2), steps, a, b, c, to(self.d, dtypes.float32), gate, bias)
        out = self.out_proj(to(transpose(out, 1, 2), hidden.dtype))
        del projected, mixed, gate, steps, a, b, c, bias
        return out

    def _scan(
        self, hidden: Tensor, steps: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, gate: Tensor, bias: Tensor
    ) -> Tensor:
        """`mamba_selective_scan`: [batch, channels, tokens] of the same."""
        dt = add(steps, unsqueeze(to(bias, steps.dtype), 1))
        dt = softplus(dt)
        discrete_a = exp(mul(reshape(a, (1, self.inner, 1, self.states)), unsqueeze(dt, 3)))
        discrete_b = mul(unsqueeze(dt, 3), to(unsqueeze(b, 1), dtypes.float32))
        change = mul(discrete_b, to(unsqueeze(hidden, 3), dtypes.float32))
        tape, (batch, _, tokens) = hidden.tape, hidden.shape
        layer, slots = tape.slot, scan_slots("tokens", tokens, tape.slot, self.unrolled)
        state = empty(tape, (batch, self.inner, self.states), hidden.dtype, "zeros")
        reads: list[Tensor] = []
        for slot in slots:
            tape.enter(slot)
            state = add(mul(select(discrete_a, 2), state), select(change, 2))
            read = matmul(to(state, hidden.dtype), unsqueeze(select(c, 1), 2))
            reads.append(select(read, 2))
            del read
        tape.enter(layer)
        out = _stack(reads, tokens)
        out = add(out, mul(hidden, reshape(d, (1, self.inner, 1))))
        out = mul(out, silu(gate))
        for slot in reversed(slots):
            tape.enter(slot)
            reads.pop()
        tape.enter(layer)
        del dt, discrete_a, discrete_b, state
        return out


class NormedMixer(Mixer):
    """A mixer that normalises steps, and what reads into the state and out of it, by `norms`, made after its other parameters."""

    norms: tuple[Module, Module, Module]

    def normed(self, steps: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_steps, of_b, of_c = self.norms
        steps = of_steps(steps)
        b = of_b(b)
        c = of_c(c)
        return steps, b, c


def refuse_few_bits(build: Builder, family: str) -> None:
    """Raise `NotModelled` for quantized weights: dt_proj's is multiplied by without its layer, or dt_proj is called, and its bias
    taken off again."""
    if build.quantization is not None:
        raise NotModelled(f"{family} with weights in few bits is not modelled yet; leave it out", "training.quantization")


def _stack(reads: list[Tensor], tokens: int) -> Tensor:
    """What was read of all tokens, [batch, channels] each; one of `reads` stands for those between. The gradients are views."""
    count = len(reads)
    node = record("StackBackward", reads, (), lambda g: [select(g, 2) for _ in range(count)])
    return attach(node, empty(reads[0].tape, (*reads[0].shape, tokens), reads[0].dtype, "stack"))


def scan_slots(label: str, count: int, layer: Slot | None, unrolled: bool, apart: int = 1) -> list[Slot]:
    """What a layer scans one after the other: so many at each end stand apart, and one slot for those between."""
    between = count - 2 * apart
    if unrolled or between < 2:
        return [Slot(f"{label}[{i}]", 1, layer) for i in range(count)]
    first, last = ([Slot(f"{label}[{i}]", 1, layer) for i in places] for places in (range(apart), range(-apart, 0)))
    return [*first, Slot(f"{label}[{apart}:{-apart}]", between, layer), *last]


def _weighted(weight: Tensor, x: Tensor) -> Tensor:
    """`weight @ x` for [batch, k, tokens]: one product over all tokens where the weight is trained, else one per sequence.

    After aten/src/ATen/native/LinearAlgebra.cpp, `should_fold` and `_matmul_impl`.
    """
    batch, inner, tokens = x.shape
    weight, x = cast_all(weight, x)
    if not weight.requires_grad:
        return matmul(expand(weight, (batch, *weight.shape)), x)
    flat = reshape(transpose(x, 1, 2), (-1, inner))
    product = reshape(mm(flat, transpose(weight, 0, 1)), (batch, tokens, weight.shape[0]))
    return contiguous(transpose(product, 1, 2))


def _causal_lm(spec: MambaSpec, build: Builder) -> CausalLM:
    refuse_few_bits(build, "mamba")
    return CausalLM(spec, build, lambda: Mixer(spec.mixer, build, "mixer"))


HEADS = {"causal-lm": _causal_lm}
