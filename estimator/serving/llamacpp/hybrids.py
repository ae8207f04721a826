"""What each layer of a hybrid is in llama.cpp's graph, and the sizes of those that keep a state in place of tokens."""

from __future__ import annotations

from dataclasses import replace

from estimator.families.bamba import BambaSpec
from estimator.families.delta_latent import DeltaLatentSpec
from estimator.families.falcon_h1 import FalconH1Spec
from estimator.families.falcon_mamba import FalconMambaSpec
from estimator.families.gated_delta import ATTENTION, GatedDeltaSpec
from estimator.families.hybrid import MAMBA, Mamba2HybridSpec
from estimator.families.jamba import JambaSpec
from estimator.families.lfm2 import CONVOLUTION
from estimator.families.mamba import MambaSpec
from estimator.families.mamba2 import Mamba2Spec
from estimator.families.nemotron_h import NemotronHSpec
from estimator.families.spec import ModelSpec
from estimator.serving.llamacpp.shape import Mixer, State


def mixers_of(spec: ModelSpec) -> tuple[Mixer, ...]:
    """Of each layer; empty where all are attention."""
    both: Mixer = "both"
    if isinstance(spec, FalconH1Spec):
        return (both,) * spec.num_hidden_layers
    if isinstance(spec, (MambaSpec, Mamba2Spec)):
        alone: Mixer = "mamba-1" if isinstance(spec, MambaSpec) else "mamba-2"
        return (alone,) * spec.num_hidden_layers
    if spec.can.graph == "lfm-2":
        return tuple(["convolution" if kind == CONVOLUTION else "attention" for kind in spec.layer_types])  # type: ignore[attr-defined]
    if isinstance(spec, DeltaLatentSpec):
        return tuple(["attention" if kind == ATTENTION else "kimi delta" for kind in spec.kinds])
    if isinstance(spec, GatedDeltaSpec):
        return tuple(["attention" if kind == ATTENTION else "delta net" for kind in spec.kinds])
    if isinstance(spec, (Mamba2HybridSpec, NemotronHSpec, JambaSpec)):
        mamba: Mixer = "mamba-1" if isinstance(spec, JambaSpec) else "mamba-2"
        named: dict[str, Mixer] = {MAMBA: mamba, ATTENTION: "attention"}
        found = tuple([named.get(kind, "none") for kind in spec.kinds])
        return found if mamba in found else ()
    return ()


def state_of(spec: ModelSpec) -> State | None:
    """What its layers without attention keep; None where all are attention."""
    if set(mixers_of(spec)) <= {"attention"}:
        return None
    if spec.can.graph == "lfm-2":
        return State(kernel=spec.conv_kernel, convolved=spec.hidden_size)  # type: ignore[attr-defined]
    if isinstance(spec, DeltaLatentSpec):
        heads = spec.linear_num_heads  # type: ignore[attr-defined]
        inner = heads * spec.linear_head_dim
        return State(kernel=spec.linear_conv_kernel_dim, convolved=3 * inner, inner=inner, size=spec.linear_head_dim, heads=heads)  # type: ignore[attr-defined]
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
    if isinstance(spec, (JambaSpec, MambaSpec)):
        own = spec.mixer
        state = State(own.conv_kernel, own.inner, own.inner, own.state_size, rank=own.time_step_rank)
        return replace(state, normed="without weights" if isinstance(spec, FalconMambaSpec) else isinstance(spec, JambaSpec))
    assert isinstance(spec, (Mamba2HybridSpec, NemotronHSpec, Mamba2Spec))
    mixer = spec if isinstance(spec, Mamba2Spec) else spec.mixer
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


def rotary_of(spec: ModelSpec) -> bool:
    """Whether its layers of attention turn queries and keys by their positions."""
    if isinstance(spec, (JambaSpec, NemotronHSpec, DeltaLatentSpec)):
        return False
    return not isinstance(spec, Mamba2HybridSpec) or isinstance(spec, (FalconH1Spec, BambaSpec)) or not mixers_of(spec)
