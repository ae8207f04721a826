"""vLLM's arguments, as a command or in YAML. vllm/engine/arg_utils.py and config/*.py of 0.33."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import get_args

from estimator.contract.errors import InvalidValue
from estimator.contract.job.speculation import Speculative
from estimator.exchange import spread as spreading
from estimator.exchange.configuration import WORDS, Configuration

SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-dcp": "decode_context_parallel_size",
    "-pcp": "prefill_context_parallel_size",
    "-ep": "enable_expert_parallel",
    "-n": "nnodes",
    "-r": "node_rank",
    "-q": "quantization",
    "-cc": "compilation_config",
    "-O": "optimization_level",
}
TYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float": "fp32",
    "float32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
}


SHARES = ("gpu_memory_utilization", "cpu_offload_gb")
"""Settings that are no whole numbers."""
PARTED = ("speculative_config", "limit_mm_per_prompt", "compilation_config", "kv_transfer_config", "hf_overrides")
"""Settings that are mappings, whose parts may be options of their own: `--speculative-config.method mtp`."""
POOLED = ("embed", "embedding", "classify", "score", "reward")
"""Values of `--task`, which older releases have, that give vectors or scores."""
NO_ITEMS = re.compile(r"\D*(0\D*)+")
"""Limits on the images and sounds of a prompt that allow none, however they are written."""


def read(conf: Configuration) -> None:
    """The serving job that arguments are."""
    conf.given = {key.replace("-", "_"): value for key, value in conf.given.items()}
    conf.lines = {key.replace("-", "_"): line for key, line in conf.lines.items()}
    _joined(conf)
    conf.put("model", served(conf, "model"))
    conf.put("task", "serve")
    conf.put("serving.engine", "vllm")
    weights(conf)
    given = (conf.text("kv_cache_dtype") or "auto").lower()
    if given != "auto" and given in conf.facts.tables["cache"]:
        conf.put("serving.kv_cache", conf.facts.tables["cache"][given])
    elif given != "auto":
        conf.leave("kv_cache_dtype", f"{given}: a job has no such cache; bf16 is taken")
    context(conf, "max_model_len")
    for theirs, ours in conf.facts.tables["settings"].items():
        value = conf.number(theirs)
        if value is not None:
            conf.put(f"serving.{ours}", value if ours in SHARES else conf.whole(theirs))
    for name in ("enforce_eager", "enable_expert_parallel", "language_model_only", "enable_lora"):
        if conf.yes(name):
            conf.put(f"serving.{name}", True)
    if str(conf.given.get("optimization_level")) == "0":  # which captures no graphs, as --enforce-eager
        conf.put("serving.enforce_eager", True)
    if conf.launch.mxfp8:
        conf.put("serving.moe_mxfp8", True)
    runner, task = ((conf.text(key) or "auto").lower() for key in ("runner", "task"))
    if runner in ("generate", "pooling"):
        conf.put("serving.runner", runner)
    elif task in POOLED:
        conf.put("serving.runner", "pooling")
    if NO_ITEMS.fullmatch(str(conf.given.get("limit_mm_per_prompt", ""))):
        conf.skip("limit_mm_per_prompt")
        conf.put("serving.language_model_only", True)
    speculation(conf)
    spread(conf, "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "serving.data_parallel_size")


def _joined(conf: Configuration) -> None:
    """Options that say a part of a mapping (utils/argparse_utils.py, `FlexibleArgumentParser`), as that mapping."""
    for key in [key for key in conf.given if key.partition(".")[0] in PARTED and "." in key]:
        whole, _, part = key.partition(".")
        before = conf.given.get(whole)
        if before is None or isinstance(before, dict):
            conf.given[whole] = {**(before or {}), part: conf.given.pop(key)}
            conf.lines[whole] = conf.lines.get(key, 0)


GUESSING = ("method", "model", "num_speculative_tokens", "draft_sample_method")
"""Keys of --speculative-config that a job has, too."""
LAYERS = "_mtp"
"""How older names of the method mtp end."""


def speculation(conf: Configuration) -> None:
    """How tokens are guessed ahead: JSON, or a mapping in YAML."""
    key = "speculative_config"
    if not conf.has(key):
        return
    given = conf.given.get(key)
    conf.skip(key)
    try:
        asked = json.loads(given) if isinstance(given, str) else given
    except json.JSONDecodeError as error:
        raise InvalidValue(f"is no JSON: {error.msg}", conf.where(key)) from None
    if not isinstance(asked, dict):
        raise InvalidValue('write a mapping, such as {"method": "mtp", "num_speculative_tokens": 1}', conf.where(key))
    found = {name: asked[name] for name in GUESSING if asked.get(name) is not None}
    method = str(found.get("method", "draft_model"))
    found["method"] = "mtp" if method.endswith(LAYERS) else "ngram" if "ngram" in (method, found.get("model")) else method
    if found["method"] in ("mtp", "ngram"):
        found.pop("model", None)
    if found["method"] not in get_args(Speculative.model_fields["method"].annotation):
        conf.leave(key, f"{method}: guessing in this way is not modelled, and not counted")
        return
    conf.put("serving.speculative_config", found)


def served(conf: Configuration, key: str) -> str | None:
    """The model, which is an option, or the word after the command; None of a file that stands beside such a command."""
    conf.skip(WORDS)
    name = conf.text(key)
    words = [word for word in conf.given.get(WORDS) or [] if word not in ("serve", "vllm")]
    if not name and not words and not conf.launch.program and not conf.launch.gpus:
        return None
    if not name and not words:
        raise InvalidValue("the command names no model", conf.where(key))
    return name or words[0]


def weights(conf: Configuration) -> None:
    """The weights' type: how they are quantized, or `dtype`."""
    method = (conf.text("quantization") or "").lower()
    given = (conf.text("dtype") or "auto").lower()
    if method in conf.facts.tables["weights"]:
        conf.put("serving.weights", conf.facts.tables["weights"][method])
    elif method and method != "none":
        conf.leave(
            "quantization",
            f"{method}: a job has no such format by this name; the weights are taken for bf16, or what the model's name says",
        )
    elif given in TYPES and not _quantized(conf):  # of which it is what all else is in
        conf.put("serving.weights", TYPES[given])
    if given not in TYPES and given != "auto":
        conf.leave("dtype", f"{given}: a job has no such type; bf16 is taken")


def context(conf: Configuration, key: str) -> None:
    """The longest sequence; without a word the model's own."""
    given = str(conf.given.get(key) or "").lower()
    if given[-1:] in ("k", "m") and given[:-1].replace(".", "", 1).isdigit():
        conf.skip(key)
        scale = {"k": 1000, "m": 10**6}[given[-1]]
        if str(conf.given[key])[-1].isupper():
            scale = {"k": 1024, "m": 1 << 20}[given[-1]]
        conf.put("serving.context", int(float(given[:-1]) * scale))
        return
    if given in ("auto", "-1"):
        conf.skip(key)
        conf.leave(key, "auto: as much as the memory holds, which memory.engine.longest_context of the answer says")
        return
    if tokens := conf.whole(key):
        conf.put("serving.context", tokens)
        return
    from estimator.contract.errors import WillItFitError
    from estimator.specs.resolve import resolve

    try:
        spec = resolve(conf.get("model"), conf.around.allow_files).spec
        most = spec.most_targets or spec.longest_sequence
    except WillItFitError:
        most = None
    if most:
        conf.put("serving.context", most)
        conf.assume(key, most, "the longest that the model has positions for")


def _quantized(conf: Configuration) -> bool:
    """Whether the model's checkpoint is stored in few bits, as far as it is known."""
    from estimator.contract.errors import WillItFitError
    from estimator.specs.resolve import resolve

    try:
        return resolve(conf.get("model"), conf.around.allow_files).stored is not None
    except WillItFitError:
        return False


def _experts(conf: Configuration) -> bool:
    """Whether the model is a mixture, as far as it is known."""
    from estimator.contract.errors import WillItFitError
    from estimator.serving.tensors import held
    from estimator.specs.resolve import resolve

    try:
        return any(each.kind == "experts" for each in held(resolve(conf.get("model"), conf.around.allow_files).spec))
    except WillItFitError:
        return False


def spread(conf: Configuration, tensor: str, pipeline: str, data: str, shared: str | None = None) -> None:
    """The GPUs: each replica's, over which layers and stages are divided; of replicas that share experts those of all, where
    `shared` is the job's field that says so."""
    ranks = 1
    for key, ours in ((tensor, "tensor"), (pipeline, "pipeline")):
        degree = conf.whole(key) or 1
        if degree > 1:
            conf.put(f"parallelism.{ours}", degree)
        ranks *= degree
    copies = conf.whole(data) or 1
    if copies > 1 and shared and (conf.get("serving.enable_expert_parallel") or _experts(conf)):
        conf.put("parallelism.data", copies)
        conf.put(shared, copies)
        ranks *= copies
    elif copies > 1:
        conf.leave(data, f"{copies} copies: the answer is of one, on {ranks} GPUs")
    asked = conf.around.hardware
    if asked is None:
        nodes = conf.whole("nnodes") or 1
        nodes = nodes if ranks % nodes == 0 else 1
        conf.launch.gpus, conf.launch.nodes = ranks // nodes, nodes
    else:
        if asked.gpus * asked.nodes != ranks:
            conf.assume("gpus", ranks, f"of the {asked.gpus * asked.nodes} that were asked about, those that the file uses")
        if ranks > asked.gpus * asked.nodes:
            raise InvalidValue(
                f"the file divides the model over {ranks} GPUs, of which {asked.gpus * asked.nodes} are there", conf.where(tensor)
            )
        nodes = -(-ranks // asked.gpus)
        conf.around = replace(conf.around, hardware=asked.model_copy(update={"gpus": ranks // nodes, "nodes": nodes}))
    spreading.hardware(conf)
