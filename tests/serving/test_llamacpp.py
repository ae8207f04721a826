"""llama.cpp: its own loading on the CPU as judge, and logs of it on GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from estimator import InvalidJob, NotModelled, estimate
from estimator.contract.answer import Answer
from estimator.contract.job import Serving
from estimator.families.spec import RotaryDecoderSpec
from estimator.serving.llamacpp.ggml import Node, planned
from estimator.serving.llamacpp.graph import compute_bytes
from estimator.serving.llamacpp.placement import ON_HOST, Placed, batch_of, layer_caches, of_kind, placed, sizes_of
from estimator.specs.resolve import resolve
from tests.jobs import TESTS, cases, job_of
from tests.judge.llamacpp import write

DATA = TESTS / "data"
JUDGED = json.loads((DATA / "llamacpp.json").read_text(encoding="utf-8"))
LOGS = yaml.safe_load((DATA / "llamacpp_logs.yaml").read_text(encoding="utf-8"))
MIB = 2**20


def _spec(model: Any) -> RotaryDecoderSpec:
    found = resolve(model).spec
    assert isinstance(found, RotaryDecoderSpec)
    return found


@pytest.mark.parametrize("case", cases("llamacpp"), ids=lambda case: case["name"])
def test_buffers_are_those_of_llamacpp(case: dict[str, Any]) -> None:
    spec, said = _spec(job_of(case)["model"]), JUDGED[case["name"]]
    asked = Serving.model_validate({"kv_cache": "fp16", **case["serving"], "outputs": case["serving"].get("concurrency", 1)})
    found = {
        "weights": sum(-(-t.nbytes // 32) * 32 for t in of_kind(asked.weights, spec)),
        "kv_cache": sum(layer_caches(asked, spec)),
        "compute": compute_bytes(sizes_of(spec), batch_of(asked, spec), on_gpu=False, alignment=ON_HOST),
        "logits": spec.vocab_size * asked.concurrency * 4,
    }
    assert {name: round(size / MIB, 2) for name, size in found.items()} == said


def _placed(row: dict[str, Any]) -> Placed:
    return placed(Serving.model_validate({"engine": "llama.cpp", "kv_cache": "fp16", **row["serving"]}), _spec(row["model"]))


@pytest.mark.parametrize("row", LOGS, ids=lambda row: f"{row['model']} {row['serving']}")
def test_logs_say_the_same(row: dict[str, Any]) -> None:
    """Weights to 0.05 %, which are 128 bytes of each tensor; the cache to the digits printed."""
    found = _placed(row)
    for name, size in (("gpu", found.weights), ("host", found.host["weights"])):
        assert row.get(name) is None or size / MIB == pytest.approx(row[name], rel=5e-4)
    assert row.get("kv") is None or round(found.cache / MIB, 2) == row["kv"]
    assert row.get("compute") is None or found.compute / MIB == pytest.approx(row["compute"], rel=row["within"])


def _served(**serving: Any) -> Answer:
    job = {"model": "qwen2.5-7b", "task": "serve", "hardware": {"gpu": "rtx-4090"}}
    return estimate({**job, "serving": {"engine": "llama.cpp", "weights": "q4_k_m", **serving}})


def test_layers_lie_on_one_side_or_the_other() -> None:
    whole = _served().memory
    weights = whole.at_peak["parameters"] + whole.host_bytes["weights"]
    before = whole.at_peak["parameters"] + whole.at_peak["kv_cache"]
    for layers in (28, 20, 1, 0):
        memory = _served(gpu_layers=layers).memory
        gpu = memory.at_peak.get("parameters", 0) + memory.at_peak.get("kv_cache", 0)
        assert gpu < before
        assert memory.at_peak.get("parameters", 0) + memory.host_bytes["weights"] == pytest.approx(weights, rel=1e-3)
        assert memory.at_peak.get("kv_cache", 0) + memory.host_bytes["kv_cache"] == whole.at_peak["kv_cache"]
        assert _served(gpu_layers=layers).time is None
        before = gpu
    assert _served(gpu_layers=29).memory == whole


def test_a_smaller_cache_takes_less() -> None:
    sizes = [_served(kv_cache=kind).memory.at_peak["kv_cache"] for kind in ("fp32", "fp16", "q8_0", "q5_1", "q4_0")]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] * 32 == sizes[1] * 17
    assert _served(kv_cache="q8_0", values_cache="q4_0").memory.at_peak["kv_cache"] == (sizes[2] + sizes[4]) // 2


def test_a_file_is_served_as_it_is(tmp_path: Path) -> None:
    """Weights as the kind of the file has them, whatever kind a job would have by default."""
    spec, path = _spec("qwen3-0.6b"), tmp_path / "model.gguf"
    write(spec, "q6_k", path)
    job = {"model": str(path), "task": "serve", "serving": {"engine": "llama.cpp"}}
    found = estimate(job)
    named = estimate({**job, "model": "qwen3-0.6b", "serving": {"engine": "llama.cpp", "weights": "q6_k"}})
    assert found.memory.at_peak == named.memory.at_peak
    assert not any("not of the file" in said for said in found.assumptions)


@pytest.mark.parametrize(
    ("job", "error", "says"),
    [
        ({"model": "gpt2"}, NotModelled, "llama, mistral"),
        ({"hardware": {"gpus": 2}}, NotModelled, "several GPUs"),
        ({"serving": {"weights": "nf4"}}, InvalidJob, "no kind of GGUF file"),
        ({"serving": {"weights_group": 64}}, InvalidJob, "leave both out"),
        ({"serving": {"kv_cache": "q8_0", "flash_attention": False}}, InvalidJob, "needs flash attention"),
        ({"serving": {"engine": "vllm", "weights": "q4_k_m"}}, InvalidJob, "write engine llama.cpp"),
        ({"serving": {"engine": "vllm", "kv_cache": "q8_0"}}, InvalidJob, "or engine llama.cpp"),
        ({"serving": {"engine": "transformers", "gpu_layers": 3}}, InvalidJob, "it is llama.cpp's"),
    ],
)
def test_what_llamacpp_is_not_asked(job: dict[str, Any], error: type[Exception], says: str) -> None:
    serving = {"engine": "llama.cpp", **job.get("serving", {})}
    with pytest.raises(error, match=says):
        estimate({"model": "qwen2.5-0.5b", "task": "serve", **job, "serving": serving})


@given(
    st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 3), st.sampled_from(["new", "in-place"])), min_size=1, max_size=40)
)
def test_a_plan_holds_what_is_alive_at_once(forms: list[tuple[int, int, Any]]) -> None:
    """It is no less than any node with all that it is made from, and no more than all nodes together."""
    nodes: list[Node] = []
    for nbytes, back, kind in forms:
        nodes.append(Node(nbytes, tuple(nodes[-1 - back : -back or None][-1:]) if nodes else (), kind))
    aligned = [-(-node.nbytes // 64) * 64 for node in nodes]
    most = planned(nodes, 64)
    assert max(aligned) <= most <= sum(aligned)
    kept = [Node(node.nbytes, node.sources) for node in nodes]
    assert planned(kept, 64) >= max(-(-n.nbytes // 64) * 64 for n in kept)
