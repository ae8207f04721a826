"""What vLLM takes beside what torch allocates in its profile run: outside torch, and CUDA graphs. It is logged, not derived."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.contract.job import Serving
from estimator.contract.units import MIB
from estimator.parallel.topology import Topology
from estimator.serving.vllm.settings import GRAPHS_CHARGED, MORE_OUTSIDE, facts, release
from estimator.serving.vllm.weights import replicas
from estimator.tape.gpu import Gpu

FUSED = (9, 10)
"""Major compute capabilities on which ranks have symmetric memory, and workspaces of all-reduces that are fused with norms
(distributed/device_communicators/symm_mem.py, flashinfer_all_reduce.py)."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Bytes, at least and at most; whether they are `charged` to the engine's share of the GPU."""

    nbytes: int
    low_bytes: int
    high_bytes: int
    charged: bool = True


def beside(serving: Serving, place: Topology, gpu: Gpu) -> dict[str, Beside]:
    """Per rank: libraries and communicators, and the graphs of decoding steps, which lay outside the share before 0.21."""
    version = release(serving.engine_version)
    name = "non_torch" if version >= MORE_OUTSIDE else "non_torch_before"
    if place.tensor * replicas(serving, place) > 1:
        fused = gpu.capability[0] in FUSED
        name = name.replace("non_torch", "non_torch_tensor_parallel") if fused else "non_torch_tensor_parallel_others"
    elif place.pipeline > 1:
        name = "non_torch_pipeline"
    graphs = _fact("cuda_graphs", version >= GRAPHS_CHARGED)
    return {
        "non_torch": _fact(name),
        "cuda_graphs": Beside(0, 0, 0) if serving.enforce_eager else graphs,
    }


def _fact(name: str, charged: bool = True) -> Beside:
    fact = facts()[name]
    return Beside(round(fact.value * MIB), round(fact.low * MIB), round(fact.high * MIB), charged)
