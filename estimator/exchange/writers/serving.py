"""Jobs of serving, as the commands of vLLM and SGLang, and the options of trtllm-serve in YAML."""

from __future__ import annotations

import json
import shlex
from typing import Any

import yaml

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Job
from estimator.exchange.configuration import framework
from estimator.exchange.frameworks.tensorrt_llm import CACHE

TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
NUMBERS = ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "block_size", "max_loras", "max_lora_rank")
SWITCHES = ("enforce_eager", "enable_expert_parallel", "language_model_only", "enable_lora")
MXFP8 = "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8"
DEGREES = {"tensor": "tensor_parallel_size", "pipeline": "pipeline_parallel_size", "data": "data_parallel_size"}


def vllm(job: Job) -> str:
    """`vllm serve MODEL …`."""
    _served(job, "vllm")
    said: dict[str, Any] = {
        theirs: degree for ours, theirs in DEGREES.items() if (degree := getattr(job.parallelism, ours) or 1) > 1
    }
    said |= {"max_model_len": job.serving.context, **_weights(job, "vllm")}
    said |= {name: value for name in NUMBERS if (value := getattr(job.serving, name)) is not None}
    said |= {name: True for name in SWITCHES if getattr(job.serving, name)}
    if job.serving.runner == "pooling":
        said["runner"] = "pooling"
    if job.serving.speculative_config is not None:
        guesses = job.serving.speculative_config.model_dump(mode="json", exclude_none=True)
        said["speculative_config"] = json.dumps(guesses)
    told = f"{MXFP8}=1 " if job.serving.moe_mxfp8 else ""
    return told + command(["vllm", "serve", str(job.model)], said)


def sglang(job: Job) -> str:
    """`python -m sglang.launch_server --model-path MODEL …`."""
    _served(job, "sglang")
    degrees = {"tensor": "tp_size", "pipeline": "pp_size"}
    said: dict[str, Any] = {"model_path": job.model}
    said |= {theirs: degree for ours, theirs in degrees.items() if (degree := getattr(job.parallelism, ours)) > 1}
    said |= {"context_length": job.serving.context, **_weights(job, "sglang")}
    tables = framework("sglang").tables
    for name in (*tables["whole"], *tables["share"], *tables["guesses"], "speculative_algorithm", "speculative_draft_model_path"):
        if (value := getattr(job.serving, name, None)) is not None:
            said[name] = value
    said |= {name: True for name in tables["switch"] if getattr(job.serving, name)}
    return command(["python", "-m", "sglang.launch_server"], said)


def tensorrt_llm(job: Job) -> str:
    """The file of `trtllm-serve MODEL --extra_llm_api_options FILE`."""
    _served(job, "tensorrt-llm")
    serving, tables = job.serving, framework("tensorrt-llm").tables
    cache = {theirs: value for theirs, ours in CACHE.items() if (value := getattr(serving, ours)) is not None}
    kind = next((name for name, ours in tables["cache"].items() if ours == serving.kv_cache), None)
    said: dict[str, Any] = {"model": str(job.model), "max_seq_len": serving.context}
    said |= {"dtype": TYPES[serving.weights]} if serving.weights in TYPES else {}
    said |= {"tensor_parallel_size": job.parallelism.tensor} if job.parallelism.tensor > 1 else {}
    said |= {"moe_expert_parallel_size": serving.ep_size} if serving.ep_size else {}
    said |= {name: value for name in tables["whole"] if (value := getattr(serving, name)) is not None}
    said |= {"enable_attention_dp": True} if serving.enable_attention_dp else {}
    said |= {"cuda_graph_config": None} if serving.disable_cuda_graph else {}
    said["kv_cache_config"] = cache | ({"dtype": kind} if kind and serving.kv_cache not in TYPES else {})
    return f"# trtllm-serve {job.model} --extra_llm_api_options FILE\n" + yaml.safe_dump(said, sort_keys=False, width=120)


def _served(job: Job, engine: str) -> None:
    if job.task != "serve" or job.serving.engine != engine:
        raise InvalidJob(f"is no job that {engine} serves: write task: serve, and serving.engine: {engine}", "task")
    if not isinstance(job.model, str):
        raise InvalidJob(f"a command of {engine} names a model of the hub: write its name in place of its configuration", "model")


def _weights(job: Job, engine: str) -> dict[str, Any]:
    """The weights' type and that of the cache."""
    tables, weights, cache = framework(engine).tables, job.serving.weights, job.serving.kv_cache
    said: dict[str, Any] = {}
    if weights in TYPES:
        said["dtype"] = TYPES[weights]
    elif method := next((theirs for theirs, ours in tables["weights"].items() if ours == weights), None):
        said["quantization"] = method
    theirs = next((name for name, ours in tables["cache"].items() if ours == cache), None)
    return said | ({"kv_cache_dtype": theirs} if theirs and cache not in TYPES else {})


def command(words: list[str], said: dict[str, Any], dashes: bool = True) -> str:
    """A command with its options, one on each line; what is True is a switch. `dashes`: in the place of underscores."""
    lines = [shlex.join(words)]
    for name, value in said.items():
        option = f"--{name.replace('_', '-') if dashes else name}"
        texts = [json.dumps(value)] if isinstance(value, dict) else map(str, value if isinstance(value, list) else [value])
        lines.append(option if value is True else f"{option} {shlex.join(texts)}")
    return " \\\n  ".join(lines) + "\n"
