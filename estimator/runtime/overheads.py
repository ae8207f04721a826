"""Overhead: what a process takes on a GPU in addition to torch's own allocations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from estimator.contract.units import MIB
from estimator.facts.fact import MeasuredFact, measured
from estimator.runtime.nccl import Communicator, Links, communicator_bytes

FILE = Path(__file__).parent / "overheads.yaml"


@dataclass(frozen=True, slots=True)
class Overhead:
    """Bytes per GPU by name, their sum, and the range in which the sum lies."""

    parts: dict[str, int]
    low_bytes: int
    high_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())


def facts() -> dict[str, MeasuredFact]:
    """The measured constants, by name."""
    return measured(FILE)


def workspace(compute_capability: str | None) -> MeasuredFact:
    """What cuBLAS keeps per thread that multiplies."""
    hopper = compute_capability is not None and float(compute_capability) >= 9
    return facts()["cublas_workspace_hopper" if hopper else "cublas_workspace"]


def beside_in_ram() -> Overhead:
    """What may lie beside a process in a machine's RAM: nothing is counted, up to what a system asks for in the range."""
    return Overhead({}, 0, round(facts()["operating_system"].value * MIB))


def overhead(
    compute_capability: str | None,
    groups: list[Communicator],
    links: Links,
    training: bool,
    userbuffers: int = 0,
    context: int | None = None,
) -> Overhead:
    """CUDA context, cuBLAS workspaces (one per thread that multiplies: forward, and backward in training), and NCCL: its kernels,
    and each communicator; and Transformer Engine's `userbuffers`, in bytes. `context`: what the first was measured to take."""
    known = facts()
    uses = [
        *([("cuda_context", known["cuda_context"], 1)] if context is None else []),
        ("cublas_workspaces", workspace(compute_capability), 2 if training else 1),
    ]
    if groups:
        uses.append(("nccl_kernels", known["nccl_kernels"], 1))
    parts = {name: round(fact.value * MIB) * count for name, fact, count in uses}
    low = sum(round(fact.low * MIB) * count for _, fact, count in uses)
    high = sum(round(fact.high * MIB) * count for _, fact, count in uses)
    if context is not None:
        parts, low, high = {"cuda_context": context, **parts}, low + context, high + context
    for group in groups:
        expected, least, most = communicator_bytes(group, links)
        parts[f"nccl_{group.name}"] = parts.get(f"nccl_{group.name}", 0) + expected
        low, high = low + least, high + most
    if userbuffers:
        parts["userbuffers"] = userbuffers
    return Overhead(parts, low + userbuffers, high + userbuffers)
