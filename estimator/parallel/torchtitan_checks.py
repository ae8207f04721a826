"""What torchtitan's Llama 3 and its trainer have, and what of it is modelled (0.2.2, uncompiled)."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job
from estimator.families.llama import LlamaSpec
from estimator.families.spec import ModelSpec
from estimator.parallel.strategies import DDP, FSDP2, NONE
from estimator.parallel.supported_settings import PLAIN, refuse_unusual
from estimator.parallel.tensor_checks import check_sizes
from estimator.parallel.topology import Topology

USUAL = PLAIN | {"lengths": None, "attention": "sdpa"}
"""What is modelled of each field."""
PRECISIONS = ("bf16-mixed", "bf16-true", "32-true")
OPTIMIZERS = ("adamw", "adam")
IMPLEMENTATIONS = ("fused", "foreach", "forloop")
WHERE = "training.activation_checkpointing"


def check_torchtitan(job: Job, spec: ModelSpec, place: Topology) -> None:
    """Raise `InvalidJob` for what torchtitan does not have, and `NotModelled`, of a training job with its defaults."""
    _check_model(spec)
    _check_training(job)
    _check_parallelism(job, spec, place)


def _check_model(spec: ModelSpec) -> None:
    if type(spec) is not LlamaSpec:
        raise NotModelled(
            f"of torchtitan's models Llama 3 is modelled, not {spec.model_type}: write implementation: transformers",
            "training.implementation",
        )
    for name, said, is_so in (
        ("tie_word_embeddings", "an output layer of its own", not spec.tie_word_embeddings),
        ("attention_bias", "no biases", not spec.attention_bias),
        ("mlp_bias", "no biases", not spec.mlp_bias),
        ("hidden_act", "silu", spec.hidden_act == "silu"),
        ("attention_dropout", "no dropout", not spec.attention_dropout),
        ("head_dim", "heads that make up the hidden size", spec.head_dim * spec.num_attention_heads == spec.hidden_size),
    ):
        if not is_so:
            raise Contradiction(f"torchtitan's Llama 3 has {said}: write implementation: transformers", f"model.{name}")


def _check_training(job: Job) -> None:
    training = job.training
    refuse_unusual(training, USUAL, "not modelled with torchtitan's modules", ", or write implementation: transformers")
    if training.precision not in PRECISIONS:
        raise Contradiction(f"torchtitan has no {training.precision}; write {', '.join(PRECISIONS)}", "training.precision")
    if training.dtypes is not None and training.dtypes.weights is not None:
        raise Contradiction(
            "torchtitan's weights are of training.dtype: leave it out, or write bf16-true", "training.dtypes.weights"
        )
    if training.optimizer not in OPTIMIZERS or training.optimizer_implementation not in IMPLEMENTATIONS:
        raise Contradiction(
            f"torchtitan has {' and '.join(OPTIMIZERS)}, as torch has them: {', '.join(IMPLEMENTATIONS)}", "training.optimizer"
        )
    if any(where != "none" for where in job.offload.model_dump().values()):
        raise NotModelled("offloading is not modelled with torchtitan's modules: leave it out", "offload")
    asked = training.activation_checkpointing
    if asked in ("none", "full", "selective"):
        return
    if isinstance(asked, str) or not (asked.every or asked.operations == "torchtitan"):
        raise Contradiction("torchtitan recomputes none, full, selective, or {every: k}", WHERE)


def _check_parallelism(job: Job, spec: ModelSpec, place: Topology) -> None:
    asked = job.parallelism
    if place.strategy is DDP:
        raise NotModelled("torchtitan's ddp is not modelled: write fsdp2 or hsdp", "parallelism.strategy")
    if place.strategy not in (NONE, FSDP2):
        raise Contradiction(f"torchtitan has fsdp2 and hsdp, not {place.strategy}", "parallelism.strategy")
    if place.strategy is FSDP2 and place.data == 1:
        raise Contradiction("torchtitan shards nothing on one GPU: write none", "parallelism.strategy")
    if asked.tensor > 1:
        _check_tensor(job, spec, place)
    if not asked.gradient_sync:
        raise Contradiction("torchtitan reduces gradients after every micro-step: leave it out", "parallelism.gradient_sync")


def _check_tensor(job: Job, spec: ModelSpec, place: Topology) -> None:
    assert isinstance(spec, LlamaSpec)
    check_sizes(job, spec)
    if job.parallelism.sequence is False:
        raise Contradiction("torchtitan's tensor-parallel ranks share tokens, too: leave it out", "parallelism.sequence")
    if place.strategy is NONE and job.training.precision == "bf16-mixed":
        raise Contradiction(
            "torchtitan computes in float32 where it spreads a model and shards nothing: write 32-true, or bf16-true",
            "training.precision",
        )
