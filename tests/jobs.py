"""Cases as jobs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from estimator import Answer, Job
from estimator.pipeline.judged import Judged, judged
from estimator.pipeline.remembered import answers
from estimator.simulation import simulation
from estimator.specs.published import published

TESTS = Path(__file__).parent
ROOT = TESTS.parent
CASES = ROOT / "tests" / "cases"
TODAY = date(2026, 11, 22)
"""The day of every answer that is kept: prices get old by it."""
TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
"""A model that is answered in no time."""
COUNTS = ("resident", "forward_end", "forward", "backward", "optimizer_step")


def forget() -> None:
    """Let the next question be a new one."""
    answers.clear()
    simulation._simulations.cache_clear()


def content(path: Path) -> Any:
    """A YAML file of ours, however large, by libyaml where it is, which takes a tenth of the time; a copy for each who asks."""
    return pickle.loads(_pickled(path.read_text(encoding="utf-8")))


@cache
def _pickled(text: str) -> bytes:
    """What a YAML text says, as bytes of which a copy is made in a twentieth of the time that parsing takes."""
    return pickle.dumps(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), pickle.HIGHEST_PROTOCOL)


def cases(name: str) -> list[dict[str, Any]]:
    """A table of cases, or all tables of a folder."""
    paths = sorted((CASES / name).glob("*.yaml")) or [CASES / f"{name}.yaml"]
    found = [case for path in paths for case in content(path)]
    assert found
    return found


def table(name: str) -> dict[str, Any]:
    """A table that is a mapping."""
    found: dict[str, Any] = content(CASES / f"{name}.yaml")
    return found


def job_of(case: Mapping[str, Any]) -> dict[str, Any]:
    """The job of a case: its model with as many layers as the case says."""
    job = {key: value for key, value in case.items() if key in Job.model_fields}
    if "layers" in case:
        given = case["model"]
        spec = published(given).architecture.model_dump() if isinstance(given, str) else given
        job["model"] = {**spec, "num_hidden_layers": case["layers"]}
    return job


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A job with parts of it changed; neither of the two is."""
    found = copy.deepcopy(base)
    for name, value in change.items():
        kept = found.get(name)
        found[name] = merged(kept if isinstance(kept, dict) else {}, value) if isinstance(value, dict) else value
    return found


def moments(job: dict[str, Any]) -> dict[str, int]:
    """The counts of a job's answer, without the rest of the answer."""
    return counts(judged(job, reserves=False))


def counts(answer: Answer | Judged) -> dict[str, int]:
    """The moments of a training step that torch can be asked about."""
    memory, host = answer.memory, answer.host
    found = {"resident": memory.resident_bytes, "forward_end": memory.forward_end_bytes, **memory.phases}
    if host is not None and host.rank_peak_bytes:
        found |= {"host_resident": host.rank_resident_bytes, "host": host.rank_peak_bytes}
    return found


OF_OTHERS = {
    *("optimizer_rank", "optimizer_wide_embeddings", "target_length", "labels", "expert_capacity_factor", "expert_imbalance"),
    *("quantization_group", "quantization_compute", "quantized_experts", "unquantized", "upcast_unquantized"),
}
"""Fields of training that are of optimizers, heads, experts or quantized weights which a plain decoder's training has not."""
