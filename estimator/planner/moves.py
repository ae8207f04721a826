"""Changes of a job that are tried to make it fit, by the fields that they change: what computes the same comes first, and of that
what usually costs least time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from estimator.contract.job import Job
from estimator.parallel.strategies import strategy_of


class Move(NamedTuple):
    """A field, and values that each take less than the one before; `numbers`: how those of a number are made."""

    field: str
    values: tuple[str, ...] = ()
    numbers: str = ""
    """"rows": divisors, which accumulation makes up for; "tokens": down to a quarter, in round numbers; "more": up to the GPUs;
    "shares": up to 0.98; "layers": fewer."""
    same_result: bool = True


PARTS = 64
"""Into so many parts a number of tokens is divided at most."""
LEAST = 4
"""A quarter of the tokens, and no less: it would be another job."""
TRAINING = (
    Move("training.loss", ("chunked", "cut", "fused")),
    Move("training.implementation", ("liger",)),
    Move("training.micro_batch_size", numbers="rows"),
    Move("training.activation_checkpointing", ("full",)),
    Move("parallelism.strategy", ("zero1", "zero2", "zero3", "fsdp2")),
    Move("training.optimizer_in_backward", ("true",)),
    Move("offload.activations", ("cpu",)),
    Move("offload.optimizer", ("cpu",)),
    Move("offload.parameters", ("cpu",)),
    Move("training.optimizer", ("adamw-8bit",), same_result=False),
    Move("training.quantization", ("nf4",), same_result=False),
    Move("training.precision", ("bf16-true",), same_result=False),
    Move("training.sequence_length", numbers="tokens", same_result=False),
)
SERVING = (
    Move("parallelism.tensor", numbers="more"),
    Move("serving.gpu_memory_utilization", numbers="shares"),
    Move("serving.enforce_eager", ("true",)),
    Move("serving.max_num_batched_tokens", numbers="tokens"),
    Move("serving.chunked_prefill_size", numbers="tokens"),
    Move("serving.max_num_tokens", numbers="tokens"),
    Move("serving.ubatch", numbers="tokens"),
    Move("serving.kv_cache", ("fp8", "q8_0"), same_result=False),
    Move("serving.weights", ("fp8",), same_result=False),
    Move("serving.context", numbers="tokens", same_result=False),
    Move("serving.gpu_layers", numbers="layers"),
)


def moves(job: Job) -> Iterator[Move]:
    """Those that may change anything of a job."""
    if job.task == "serve":
        yield from SERVING
        return
    training = job.training
    done = {
        "training.activation_checkpointing": training.activation_checkpointing == "full",
        "training.loss": training.loss != "eager",
        "training.implementation": training.implementation != "transformers",
        "training.quantization": training.quantization is not None or training.adapter is None,
        "training.optimizer": training.optimizer not in ("adam", "adamw"),
        "training.precision": training.precision in ("bf16-true", "16-true"),
        "parallelism.strategy": not strategy_of(job).name.startswith(("ddp", "zero")) or strategy_of(job).name == "zero3",
        "offload.activations": job.offload.activations != "none",
    }
    yield from (one for one in TRAINING if not done.get(one.field, False))


def numbers(kind: str, value: float, gpus: int) -> list[int] | list[float]:
    """Other values of a number, the nearest first."""
    whole = int(value)
    if kind == "rows":
        return [one for one in range(whole - 1, 0, -1) if whole % one == 0]
    if kind == "tokens":
        step = max(16, 1 << (whole // PARTS).bit_length())
        return list(range((whole - 1) // step * step, max(step, whole // LEAST) - 1, -step))
    if kind == "more":
        return [whole << power for power in range(1, 8) if whole << power <= gpus]
    if kind == "shares":
        return [share for share in (0.92, 0.95, 0.98) if share > value]
    return list(range(whole - 1, -1, -1))
