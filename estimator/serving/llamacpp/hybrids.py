"""What each layer of a hybrid is in llama.cpp's graph, and the sizes of those that keep a state in place of tokens."""

from __future__ import annotations

from estimator.families.bamba import BambaSpec
from estimator.families.falcon_h1 import FalconH1Spec
from estimator.families.gated_delta import ATTENTION, GatedDeltaSpec
from estimator.families.hybrid import MAMBA, Mamba2HybridSpec
from estimator.families.jamba import JambaSpec
from estimator.families.lfm2 import CONVOLUTION
from estimator.families.nemotron_h import NemotronHSpec
from estimator.families.spec import DecoderSpec
from estimator.serving.llamacpp.shape import Mixer, State


def mixers_of(spec: DecoderSpec) -> tuple[Mixer, ...]:
    """Of each layer; empty where all are attention."""
    both: Mixer = "both"
    if isinstance(spec, FalconH1Spec):
        return (both,) * spec.num_hidden_layers
    if spec.can.graph == "lfm-2":
        return tuple(["convolution" if kind == CONVOLUTION else "attention" for kind in spec.layer_types])  # type: ignore[attr-defined]
    if isinstance(spec, GatedDeltaSpec):
        return tuple(["attention" if kind == ATTENTION else "delta net" for kind in spec.kinds])
    if isinstance(spec, (Mamba2HybridSpec, NemotronHSpec, JambaSpec)):
        mamba: Mixer = "mamba-1" if isinstance(spec, JambaSpec) else "mamba-2"
        named: dict[str, Mixer] = {MAMBA: mamba, ATTENTION: "attention"}
        found = tuple([named.get(kind, "none") for kind in spec.kinds])
        return found if mamba in found else ()
    return ()


def state_of(spec: DecoderSpec) -> State | None:
    """What its layers without attention keep; None where all are attention."""
    if set(mixers_of(spec)) <= {"attention"}:
        return None
    if spec.can.graph == "lfm-2":
        return State(kernel=spec.conv_kernel, convolved=spec.hidden_size)  # type: ignore[attr-defined]
    if isinstance(spec, GatedDeltaSpec):
        return State(
            kernel=spec.linear_conv_kernel_dim,
            convolved=2 * spec.key_size + spec.value_size,
            inner=spec.value_size,
            size=spec.linear_key_head_dim,
            heads=spec.linear_num_value_heads,
            groups=spec.linear_num_key_heads,
            joined_gates=spec.can.graph == "qwen-3-next",
        )
    if isinstance(spec, JambaSpec):
        own = spec.mixer
        return State(own.conv_kernel, own.inner, own.inner, own.state_size, rank=own.time_step_rank)
    assert isinstance(spec, (Mamba2HybridSpec, NemotronHSpec))
    mixer = spec.mixer
    inner = mixer.num_heads * mixer.head_dim
    return State(
        kernel=mixer.conv_kernel,
        convolved=inner + 2 * mixer.n_groups * mixer.state_size,
        inner=inner,
        size=mixer.state_size,
        heads=mixer.num_heads,
        groups=mixer.n_groups,
        normed=getattr(spec, "mamba_rms_norm", True),
    )


def rotary_of(spec: DecoderSpec) -> bool:
    """Whether its layers of attention turn queries and keys by their positions."""
    if isinstance(spec, (JambaSpec, NemotronHSpec)):
        return False
    return not isinstance(spec, Mamba2HybridSpec) or isinstance(spec, (FalconH1Spec, BambaSpec)) or not mixers_of(spec)
