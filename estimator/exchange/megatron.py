"""Megatron-LM's arguments: degrees, schedules, its distributed optimizer, precision, fp8, recomputation and batches.

megatron/training/arguments.py at 23e00ed (Core 0.15).
"""

from __future__ import annotations

import shlex
from typing import Any

from estimator.contract.errors import InvalidJob
from estimator.contract.job import CheckpointForm, Job, Parallelism
from estimator.contract.job.fp8 import Fp8
from estimator.exchange.found import NO_FIELD, Found, LeftOut
from estimator.exchange.shell import MOST_SCRIPT

DEGREES = {
    "tensor": "--tensor-model-parallel-size",
    "pipeline": "--pipeline-model-parallel-size",
    "context": "--context-parallel-size",
    "expert": "--expert-model-parallel-size",
    "expert_tensor": "--expert-tensor-parallel-size",
}
OVERLAPS = {
    "tp_comm_overlap": "--tp-comm-overlap",
    "overlap_grad_reduce": "--overlap-grad-reduce",
    "overlap_param_gather": "--overlap-param-gather",
}
PRECISIONS = {"megatron-bf16": "--bf16", "megatron-fp16": "--fp16"}
USUAL = frozenset(
    {
        "--accumulate-allreduce-grads-in-fp32",
        "--attention-softmax-in-fp32",
        "--cross-entropy-fusion-impl",
        "--disable-bias-linear",
        "--fp8-amax-compute-algo",
        "--fp8-interval",
        "--fp8-margin",
        "--moe-grouped-gemm",
        "--mtp-loss-scaling-factor",
        "--moe-pad-expert-input-to-capacity",
        "--moe-permute-fusion",
        "--moe-token-dispatcher-type",
        "--swiglu",
        "--use-flash-attn",
        "--use-mcore-models",
    }
)
"""What our model of Megatron-Core takes for granted."""
CHUNKS, LAYERS = "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"
"""Either says how many chunks of the model a pipeline's rank has."""
GROUP = "--microbatch-group-size-per-virtual-pipeline-stage"
MATTERS = (
    "parallel",
    "pipeline",
    "recompute",
    "fp8",
    "in-bf16",
    "layers-bf16",
    "overlap",
    "offload",
    "fsdp",
    "moe",
    "cp-",
    "cross-entropy",
    "virtual",
)
"""Parts of the names of arguments that may change what a rank holds."""


def write(job: Job) -> str:
    """The arguments, one to a line, for a job with its defaults."""
    parallelism, training = job.parallelism, job.training
    strategy = parallelism.strategy or "none"
    if strategy not in ("none", "ddp", "zero1"):
        raise InvalidJob(f"Megatron-LM has ddp, and zero1 for its distributed optimizer, not {strategy}", "parallelism.strategy")
    if training.precision not in PRECISIONS:
        raise InvalidJob(f"Megatron-LM's are {' and '.join(PRECISIONS)}, not {training.precision}", "training.precision")
    data = parallelism.data or 1
    lines = [f"{flag} {degree}" for ours, flag in DEGREES.items() if (degree := getattr(parallelism, ours) or 1) > 1]
    if parallelism.expert > 1 and parallelism.expert_tensor == 1 < parallelism.tensor:
        lines.append(f"{DEGREES['expert_tensor']} 1")  # unsaid, it is as many as those of tensor parallelism
    lines += ["--sequence-parallel"] * bool(parallelism.sequence) + ["--use-distributed-optimizer"] * (strategy == "zero1")
    lines += [f"--cp-comm-type {parallelism.context_exchange}"] * (parallelism.context > 1)
    lines += [flag for ours, flag in OVERLAPS.items() if getattr(parallelism, ours)]
    lines += _schedule(parallelism)
    batch = training.micro_batch_size * training.gradient_accumulation_steps * data
    lines += [f"--micro-batch-size {training.micro_batch_size}", f"--global-batch-size {batch}"]
    lines += [f"--seq-length {training.sequence_length}", PRECISIONS[training.precision]]
    lines += ["--accumulate-allreduce-grads-in-fp32"] * (training.precision == "megatron-bf16")
    lines += [] if training.fp8 is None else _fp8(training.fp8)
    lines += ["--cross-entropy-loss-fusion"] * (training.loss in ("fused", "compiled"))
    lines += ["--cross-entropy-fusion-impl te"] * (training.loss == "fused")
    lines += [f"--mtp-num-layers {training.mtp_num_layers}"] * (training.mtp_num_layers is not None)
    if training.expert_capacity_factor is not None:
        lines += [f"--moe-expert-capacity-factor {training.expert_capacity_factor}", "--moe-pad-expert-input-to-capacity"]
    lines += ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"] * (job.offload.optimizer == "cpu")
    return "\n".join([*lines, *_recomputation(training.activation_checkpointing)]) + "\n"


def _fp8(asked: Fp8) -> list[str]:
    lines = [f"--fp8-format {asked.format}", f"--fp8-recipe {asked.recipe}", *["--fp8-param-gather"] * asked.param_gather]
    return lines + [f"--fp8-amax-history-len {asked.amax_history_len}"] * (asked.recipe == "delayed")


def _schedule(parallelism: Parallelism) -> list[str]:
    """A pipeline's schedule: 1F1B unless a rank has several chunks."""
    if parallelism.pipeline_schedule not in (None, "1f1b", "interleaved"):
        raise InvalidJob(
            f"Megatron-LM has 1f1b and interleaved, not {parallelism.pipeline_schedule}", "parallelism.pipeline_schedule"
        )
    if parallelism.pipeline == 1 or parallelism.pipeline_schedule != "interleaved":
        return []
    group = parallelism.micro_batch_group
    return [f"{CHUNKS} {parallelism.model_chunks}"] + [f"{GROUP} {group}"] * (group is not None)


def _recomputation(asked: str | CheckpointForm) -> list[str]:
    if asked == "none":
        return []
    selective, full = "--recompute-granularity selective", "--recompute-granularity full"
    if asked == "selective":
        return [selective]
    form = CheckpointForm(uniform=1) if asked == "full" else asked
    if isinstance(form, CheckpointForm):
        if form.modules:
            return [selective, f"--recompute-modules {' '.join(form.modules)}"]
        for method, count in (("uniform", form.uniform), ("block", form.layers)):
            if count:
                return [full, f"--recompute-method {method}", f"--recompute-num-layers {count}"]
    raise InvalidJob(
        "only none, full, selective, {layers: m}, {uniform: n} and {modules: [...]} are written for Megatron-LM",
        "training.activation_checkpointing",
    )


def read(text: str) -> Found:
    """What arguments say of a job. Without a global batch size there is one micro-batch; its GPUs stay open."""
    given = arguments(text)
    strategy = "zero1" if "--use-distributed-optimizer" in given else "ddp"
    parallelism: dict[str, Any] = {"strategy": strategy}
    parallelism |= {ours: number(given, flag) for ours, flag in DEGREES.items() if flag in given}
    if parallelism.get("tensor", 1) > 1:
        parallelism["sequence"] = "--sequence-parallel" in given
    parallelism |= {ours: True for ours, flag in OVERLAPS.items() if flag in given}
    parallelism |= _read_schedule(given, parallelism.get("pipeline", 1))
    if parallelism.get("context", 1) > 1:
        parallelism["context_exchange"] = given.get("--cp-comm-type", "p2p")
    training: dict[str, Any] = {"implementation": "megatron", "micro_batch_size": number(given, "--micro-batch-size")}
    training["precision"] = "megatron-fp16" if "--fp16" in given else "megatron-bf16"
    if "--fp8-format" in given:
        training["fp8"] = _read_fp8(given)
    if "--seq-length" in given:
        training["sequence_length"] = number(given, "--seq-length")
    if "--mtp-num-layers" in given:
        training["mtp_num_layers"] = number(given, "--mtp-num-layers")
    if "--cross-entropy-loss-fusion" in given:
        training["loss"] = "fused" if given.get("--cross-entropy-fusion-impl") == "te" else "compiled"
    if "--moe-expert-capacity-factor" in given:
        training["expert_capacity_factor"] = _amount(given, "--moe-expert-capacity-factor")
    training["activation_checkpointing"] = _read_recomputation(given)
    offload: dict[str, Any] = {}
    read_here = {*DEGREES.values(), *OVERLAPS.values(), *USUAL, *READ}
    if "--optimizer-cpu-offload" in given and _amount(given, "--optimizer-offload-fraction", 1.0) == 1:
        offload = {"offload": {"optimizer": "cpu"}}
        read_here |= OFFLOAD
    left = [(name, f"{name} {value}".rstrip()) for name, value in given.items() if name not in read_here]
    return Found(
        framework="megatron",
        version="Core 0.15",
        job={"training": training, "parallelism": parallelism, **offload},
        left_out=[
            LeftOut(key=f"megatron {name}", why=f"{said}: {NO_FIELD}")
            for name, said in left
            if any(part in said for part in MATTERS)
        ],
    )


OFFLOAD = {"--optimizer-cpu-offload", "--optimizer-offload-fraction", "--use-precision-aware-optimizer"}
READ = (
    "--cp-comm-type",
    CHUNKS,
    LAYERS,
    GROUP,
    "--sequence-parallel",
    "--use-distributed-optimizer",
    "--cross-entropy-loss-fusion",
    "--moe-expert-capacity-factor",
    "--recompute-granularity",
    "--recompute-method",
    "--recompute-modules",
    "--recompute-num-layers",
    "--mtp-num-layers",
    "--fp8-format",
    "--fp8-recipe",
    "--fp8-param-gather",
    "--fp8-amax-history-len",
)


def _read_schedule(given: dict[str, str], ranks: int) -> dict[str, Any]:
    """The chunks of a pipeline's rank, told by their number, or by the layers of each and of the model."""
    chunks = number(given, CHUNKS)
    if LAYERS in given:
        each, layers = ranks * number(given, LAYERS), number(given, "--num-layers")
        if layers % each:
            raise InvalidJob(f"is read with a --num-layers that divides by {each}", f"megatron {LAYERS}")
        chunks = layers // each
    if chunks == 1 or ranks == 1:
        return {}
    found: dict[str, Any] = {"pipeline_schedule": "interleaved", "model_chunks": chunks}
    return found | ({"micro_batch_group": number(given, GROUP)} if GROUP in given else {})


def arguments(text: str) -> dict[str, str]:
    """Each flag with what follows it up to the next."""
    found: dict[str, str] = {}
    last = ""
    if len(text) > MOST_SCRIPT:
        raise InvalidJob(f"has more than {MOST_SCRIPT:,} characters, as no command needs", "megatron")
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise InvalidJob(f"cannot be split into arguments: {error}", "megatron") from None
    for word in words:
        if word.startswith("--"):
            last, _, value = word.partition("=")
            found[last] = value
        elif last and word != "\\":
            found[last] = f"{found[last]} {word}".strip()
    if not found:
        raise InvalidJob("has no arguments; they begin with --", "megatron")
    return found


def number(given: dict[str, str], flag: str, least: int = 1) -> int:
    """A whole number of `least` or more; 1 where the flag is not there."""
    value = given.get(flag, "1")
    if not value.isdecimal() or int(value) < least:
        raise InvalidJob(f"{value!r} is no whole number of {least} or more", f"megatron {flag}")
    return int(value)


def _amount(given: dict[str, str], flag: str, usual: float | None = None) -> float:
    if usual is not None and flag not in given:
        return usual
    try:
        return float(given[flag])
    except ValueError:
        raise InvalidJob(f"{given[flag]!r} is no number", f"megatron {flag}") from None


def _read_fp8(given: dict[str, str]) -> dict[str, Any]:
    """The fields of `training.fp8`, whose own check says what is none."""
    asked: dict[str, Any] = {"format": given["--fp8-format"], "recipe": given.get("--fp8-recipe", "delayed")}
    if "--fp8-amax-history-len" in given and asked["recipe"] == "delayed":
        asked["amax_history_len"] = number(given, "--fp8-amax-history-len")
    return asked | {"param_gather": True} if "--fp8-param-gather" in given else asked


def _read_recomputation(given: dict[str, str]) -> Any:
    granularity = given.get("--recompute-granularity")
    if granularity is None:
        return "none"
    if granularity == "selective":
        modules = given.get("--recompute-modules", "").split()
        return {"modules": modules} if modules else "selective"
    count, method = number(given, "--recompute-num-layers", least=0), given.get("--recompute-method")
    if granularity == "full" and method == "block":
        return {"layers": count} if count else "none"
    if granularity == "full" and method in (None, "uniform") and count:
        return {"uniform": count} if count > 1 else "full"
    raise InvalidJob(
        f"{granularity} with --recompute-method {method or 'left out'} and --recompute-num-layers {count} is nothing that "
        "Megatron-LM does; write full, by block or uniform, or selective",
        "megatron --recompute-granularity",
    )
