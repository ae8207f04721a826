"""llama.cpp: its own loading on the CPU as judge, and logs of it on GPUs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import InvalidJob, NotModelled, estimate
from estimator.contract.answer import Answer
from estimator.contract.job import Serving
from estimator.contract.patterns import Pattern
from estimator.families.spec import ModelSpec
from estimator.serving.llamacpp.ggml import Plan, Tensor
from estimator.serving.llamacpp.placement import Placed, placed
from estimator.specs.resolve import resolve
from tests.jobs import TESTS, cases, content, job_of
from tests.judge.llamacpp import write

DATA = TESTS / "data"
JUDGED = json.loads((DATA / "llamacpp.json").read_text(encoding="utf-8"))
LOGS = content(DATA / "llamacpp_logs.yaml")
MIB = 2**20


def _spec(model: Any) -> ModelSpec:
    return resolve(model).spec


@pytest.mark.parametrize("case", cases("llamacpp"), ids=lambda case: case["name"])
def test_buffers_are_those_of_llamacpp(case: dict[str, Any]) -> None:
    """Every buffer, of every device, to the digits printed. GPUs beside it have no kernels of CUDA's."""
    spec, gpus = _spec(job_of(case)["model"]), case.get("gpus", 0)
    asked = Serving.model_validate({"kv_cache": "fp16", **case["serving"], "outputs": case["serving"].get("concurrency", 1)})
    found = placed(asked, spec, gpus, cuda=False)
    said, within = JUDGED[case["name"]], case.get("within", 0.0051)
    for i, gpu in enumerate(found.gpus):
        for name, nbytes in (("weights", gpu.weights), ("kv_cache", gpu.cache), ("compute", gpu.compute)):
            assert said[name].get(f"CUDA{i}", 0) == pytest.approx(nbytes / MIB, abs=within), f"{name} of GPU {i}"
    host = {"kv_cache": "kv_cache", "compute": "compute_buffer", "logits": "logits"} | ({} if gpus else {"weights": "weights"})
    for name, own in host.items():
        assert said[name].get("CPU", 0) == pytest.approx(found.host[own] / MIB, abs=within), f"{name} of the host"


def _placed(row: dict[str, Any]) -> Placed:
    return placed(Serving.model_validate({"engine": "llama.cpp", "kv_cache": "fp16", **row["serving"]}), _spec(row["model"]))


@pytest.mark.parametrize("row", LOGS, ids=lambda row: f"{row['model']} {row['serving']}")
def test_logs_say_the_same(row: dict[str, Any]) -> None:
    """Weights to 0.05 %, which are 128 bytes of each tensor; the cache to the digits printed."""
    found = _placed(row)
    gpu = found.fullest
    for name, size in (("gpu", gpu.weights), ("host", found.host["weights"])):
        assert row.get(name) is None or size / MIB == pytest.approx(row[name], rel=5e-4)
    assert row.get("kv") is None or round(gpu.cache / MIB, 2) == row["kv"]
    assert row.get("compute") is None or gpu.compute / MIB == pytest.approx(row["compute"], rel=row["within"])


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
        ({"model": "gpt-j-6b"}, NotModelled, "llama, mistral"),
        ({"model": "bge-m3", "serving": {"context": 1024, "ubatch": 512}}, InvalidJob, "in one pass"),
        ({"hardware": {"gpus": 2, "nodes": 2}}, NotModelled, "several nodes"),
        ({"hardware": {"gpus": 2}, "serving": {"tensor_split": [1]}}, InvalidJob, "1 shares for 2 GPUs"),
        ({"hardware": {"gpus": 2}, "parallelism": {"tensor": 2}}, InvalidJob, "divides layers"),
        ({"serving": {"override_tensor": ["exps"]}}, InvalidJob, "write pattern=CPU or CUDA0"),
        ({"serving": {"override_tensor": ["exps=CUDA1"]}}, InvalidJob, "write pattern=CPU or CUDA0"),
        ({"serving": {"override_tensor": ["(exps=CPU"]}}, InvalidJob, "not closed"),
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


@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 3), st.sampled_from(["mul_mat", "add"])), min_size=1, max_size=40))
def test_a_plan_holds_what_is_alive_at_once(forms: list[tuple[int, int, Any]]) -> None:
    """It is no less than any node with all that it is made from, and no more than all nodes together."""
    nodes: list[Tensor] = []
    for numbers, back, op in forms:
        nodes.append(Tensor(op, (numbers,), nodes[-1 - back : -back or None][-1:]))
    aligned = [-(-node.nbytes // 64) * 64 for node in nodes]
    most = Plan([64]).planned([(node, 0) for node in nodes], [])[0]
    assert max(aligned) <= most <= sum(aligned)


def test_gpus_share_layers_by_their_shares() -> None:
    job = {"model": "qwen3-30b-a3b", "task": "serve", "hardware": {"gpu": "rtx-4090", "gpus": 2}}
    serving = {"engine": "llama.cpp", "weights": "q4_k_m", "tensor_split": [3, 1]}
    memory = estimate({**job, "serving": serving}).memory
    assert [each.layers for each in memory.devices] == [37, 12]
    first = memory.devices[0]
    assert memory.at_peak["parameters"] == first.weights_bytes
    assert memory.at_peak["kv_cache"] == first.cache_bytes
    whole = estimate({**job, "hardware": {"gpu": "rtx-4090"}, "serving": {**serving, "tensor_split": None}}).memory
    assert sum(each.weights_bytes for each in memory.devices) == whole.devices[0].weights_bytes
    assert sum(each.cache_bytes for each in memory.devices) == whole.devices[0].cache_bytes


def test_what_does_not_fit_is_told_how_much_of_it_does() -> None:
    """The settings that it names fit, and the next ones do not."""
    job = {"model": "qwen3-30b-a3b", "task": "serve", "hardware": {"memory": "16GB"}}
    serving = {"engine": "llama.cpp", "weights": "q4_k_m", "context": 8192, "outputs": 1}
    said = [text for text in estimate({**job, "serving": serving}).suggestions if "the rest in the host's memory" in text]
    assert any("leave by themselves what does not fit" in text for text in estimate({**job, "serving": serving}).suggestions)
    names = {"serving.n_cpu_moe": -1, "serving.gpu_layers": 1}
    assert [text.split()[0] for text in said] == list(names)
    for text in said:
        name, value = text.split()[:2]
        more = int(value) + names[name]
        field = name.removeprefix("serving.")
        assert estimate({**job, "serving": {**serving, field: int(value)}}).fits
        assert not estimate({**job, "serving": {**serving, field: more}}).fits


def test_experts_on_the_host_are_told_by_name_or_by_number() -> None:
    """`--n-cpu-moe` is a pattern, too."""
    spec, asked = _spec("qwen3-30b-a3b"), {"engine": "llama.cpp", "weights": "q4_k_m", "kv_cache": "fp16"}
    by_number = placed(Serving.model_validate({**asked, "n_cpu_moe": 3}), spec)
    by_name = placed(Serving.model_validate({**asked, "override_tensor": [r"blk\.[0-2]\.ffn_(up|down|gate)_exps=CPU"]}), spec)
    assert by_number == by_name
    every = placed(Serving.model_validate({**asked, "cpu_moe": True}), spec)
    assert every == placed(Serving.model_validate({**asked, "n_cpu_moe": 48}), spec)


PATTERNS = [
    r"\.ffn_(up|down|gate|gate_up)_(ch|)exps",
    r"blk\.(1[0-9]|2[0-3])\.ffn_.*_exps\.weight",
    "exps",
    r"^blk\.[0-3]\.",
    r"blk\.\d{1,2}\.attn.*$",
    r"blk\.(?:[0-9]|[1-5][0-9])\.ffn",
    "[^b]lk",
    "f{2}n_?",
    "",
]


@pytest.mark.parametrize("text", PATTERNS)
def test_patterns_find_what_regular_expressions_do(text: str) -> None:
    ends = ("ffn_up_exps", "ffn_gate_shexp", "attn_q", "ffn_norm", "ffn_gate_up_exps", "ffn_down_chexps")
    names = [f"blk.{i}.{end}.weight" for i in (0, 1, 9, 12, 23, 60) for end in ends] + ["token_embd.weight", "output.weight"]
    assert [Pattern(text).found(name) for name in names] == [bool(re.search(text, name)) for name in names]


@pytest.mark.parametrize(
    "text", ["(", ")", "[a", "*a", "a{x}", "(?=a)", r"\b", "a" * 501, "(" * 60 + ")" * 60, "(((a{99}){99}){99})"]
)
def test_patterns_that_are_not_understood_say_why(text: str) -> None:
    with pytest.raises(ValueError, match=r"it |too"):
        Pattern(text)


def test_a_pattern_is_searched_in_one_pass() -> None:
    """A name of any length, also by a pattern that would take a usual matcher for ever."""
    assert not Pattern("((a+)+)+$").found("a" * 2000 + "b")


def test_ollama_chooses_the_context_by_the_memory() -> None:
    def chosen(model: str, **hardware: Any) -> int:
        job = {"model": model, "task": "serve", "hardware": hardware, "serving": {"engine": "ollama", "weights": "q4_k_m"}}
        return int(estimate(job).job["serving"]["context"])

    assert chosen("qwen3-8b", gpu="rtx-4060") == 4096
    assert chosen("qwen3-8b", gpu="rtx-4090") == 32768
    assert chosen("llama-3.1-8b", gpu="rtx-4090", gpus=2) == 131072
    assert chosen("gemma-2-2b", gpu="h100") == 8192


def test_a_machine_without_a_gpu_holds_all_in_its_ram() -> None:
    """What the judge's CPU build holds; the system decides between `fits` and `tight` only."""
    asked = {"engine": "llama.cpp", "weights": "q8_0", "context": 2048}

    def answer(ram: str) -> Answer:
        return estimate({"model": "qwen3-8b", "task": "serve", "hardware": {"ram": ram}, "serving": asked})

    held = sum(placed(Serving.model_validate({**asked, "kv_cache": "fp16"}), _spec("qwen3-8b"), 0, cuda=False).host.values())
    roomy, tight, small = (answer(f"{held / 2**30 + more}GiB") for more in (5, 1, -1))
    assert {one.memory.total_bytes for one in (roomy, tight, small)} == {held}
    assert [one.verdict for one in (roomy, tight, small)] == ["fits", "tight", "does not fit"]
    assert roomy.memory.host_bytes == {}
    assert roomy.memory.devices == []
