"""Falcon Mamba: Mamba with norms without weights of steps, and of what reads into the state and out of it.

After transformers' modeling_falcon_mamba.py (5.23), without the packages mamba-ssm and causal-conv1d, as mamba.py.
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.mamba import MambaSpec, MixerSizes, NormedMixer, refuse_few_bits
from estimator.families.mamba2 import CausalLM
from estimator.tape import dtypes
from estimator.tape.pointwise import add_scalar, mean_last, mul, pow_scalar, rsqrt, to
from estimator.tape.tensor import Tensor


class FalconMambaSpec(MambaSpec):
    """`use_falcon_mambapy` is what its configuration calls `use_mambapy`."""

    can = Abilities(gguf=True, graph="state-space")
    modelled = {**MambaSpec.modelled, "use_falcon_mambapy": (False,)}


SPECS = {"falcon_mamba": FalconMambaSpec}


class WeightlessNorm:
    """Root-mean-square normalisation in float32. Its weights are a buffer that only fused kernels read."""

    def __init__(self, build: Builder, name: str, size: int):
        self.weight = build.buffer(name + ".weight", (size,), build.dtype)

    def _norm(self, x: Tensor) -> Tensor:
        return mul(x, rsqrt(add_scalar(mean_last(pow_scalar(x)))))

    def __call__(self, x: Tensor) -> Tensor:
        return to(self._norm(to(x, dtypes.float32)), x.dtype)


class FalconMambaMixer(NormedMixer):
    """`FalconMambaMixer`."""

    def __init__(self, spec: MixerSizes, build: Builder):
        refuse_few_bits(build, "falcon_mamba")
        super().__init__(spec, build, "mixer")
        self.norms = (
            WeightlessNorm(build, "mixer.dt_layernorm", spec.inner),
            WeightlessNorm(build, "mixer.b_layernorm", spec.state_size),
            WeightlessNorm(build, "mixer.c_layernorm", spec.state_size),
        )


HEADS = {"causal-lm": lambda spec, build: CausalLM(spec, build, lambda: FalconMambaMixer(spec.mixer, build))}
