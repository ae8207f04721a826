"""vLLM's settings, by its own names, and what differs between its releases.

After vllm/engine/arg_utils.py (`get_batch_defaults`), config/cache.py, config/vllm.py (`max_in_flight_tokens`,
`use_v2_model_runner`) and envs.py of 0.11, 0.16, 0.19, 0.21, 0.24, 0.27, 0.30 and 0.33.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from estimator.contract.errors import NotModelled
from estimator.contract.units import GIB
from estimator.facts.fact import MeasuredFact, measured
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity

FILE = Path(__file__).parent / "facts.yaml"
Release = tuple[int, int]
OLDEST, NEWEST = (0, 8), (0, 33)
"""Releases between which the rules were read: the first that runs its V1 engine unasked, and the newest."""
TRITON_SAMPLER, PERSISTENT_WORKSPACES, GRAPHS_CHARGED = (0, 17), (0, 12), (0, 21)
MORE_OUTSIDE = (0, 18)
"""Since when about twice as much was logged outside torch."""
TOKENS_OF_REQUESTS = (0, 21)
"""Since when the tokens that are logged are those of requests as long as the context."""
ASYNC_IN_FLIGHT, LARGEST_GPUS, NULL_BLOCK, SECOND_RUNNER = (0, 27), (0, 30), (0, 30), (0, 30)
"""Since when: logits are cut by a kernel instead of sorted; a mixture's workspaces stay; graphs are charged to the share; tokens
of two passes count as in flight; GPUs of 160 GiB have settings of their own; a block that none may use is set aside; the second
model runner, which counts tokens for penalties on the GPU, runs all models."""
NO_BITSANDBYTES = (0, 30)
"""Since when it has no loader of bitsandbytes' weights (model_executor/layers/quantization): 0.27 has one, 0.30 has none."""
SHARED_WHOLE = (0, 11)
"""Since when experts that all tokens go to are whole on every rank where tensor-parallel groups share the others."""
ENCODERS = (0, 11)
"""Since when it runs encoders without a cache in the engine that is modelled."""
MORE_UTILIZED = (0, 21)
"""Since when the share of the GPU is larger unasked."""
OTHERS = ("a100", "gb10")
"""How the names begin of GPUs that count as small, whatever they have."""


@cache
def facts() -> dict[str, MeasuredFact]:
    """What vLLM sets aside that is not derived, and its settings by GPU."""
    return measured(FILE)


def release(version: str | None) -> Release:
    """A release, of which the third number changes nothing here. Raises `NotModelled` for one that was not read."""
    if version is None:
        return NEWEST
    first, second, *_ = (int(part) for part in version.split("."))
    if not OLDEST <= (first, second) <= NEWEST:
        known = " to ".join(".".join(map(str, one)) for one in (OLDEST, NEWEST))
        raise NotModelled(f"vLLM {version} is not modelled; releases {known} are", "serving.engine_version")
    return first, second


def not_run(spec: ModelSpec, version: str | None) -> str:
    """Why a release does not run a model; nothing where it does."""
    last, kind = spec.last_vllm, spec.model_type
    if last is None or (last != "none" and release(version) <= release(last)):
        return ""
    if last == "none":
        return f"vLLM runs no {kind} models: {spec.why_not_vllm or 'no release has an implementation'}"
    return f"vLLM runs {kind} models up to {last} only: write serving.engine_version {last}"


def utilization(version: str | None) -> float:
    """The share of a GPU's memory that it takes unasked."""
    return float(facts()["utilization" if release(version) >= MORE_UTILIZED else "utilization_before"].value)


def max_num_seqs(card: Capacity) -> int:
    """Sequences of a pass unasked."""
    return int(facts()[f"max_num_seqs{_size(card)}"].value)


def max_num_batched_tokens(card: Capacity, version: str | None, whole: int = 0) -> int:
    """Tokens of a pass unasked, of its server; `whole`: those of a text that is not read in parts."""
    return max(whole, _batched(card, version))


def _batched(card: Capacity, version: str | None) -> int:
    named = facts()
    if release(version) >= LARGEST_GPUS and card.memory_bytes is not None and card.memory_bytes >= named["largest"].value * GIB:
        return int(named["max_num_batched_tokens_largest"].value)
    return int(named[f"max_num_batched_tokens{_size(card)}"].value)


def _size(card: Capacity) -> str:
    """Which of its two sets of settings a GPU gets; an A100 without a name counts as what its memory says."""
    small = card.accelerator is not None and card.accelerator.name.startswith(OTHERS)
    enough = card.memory_bytes is not None and card.memory_bytes >= facts()["large"].value * GIB
    return "_large" if enough and not small else ""
