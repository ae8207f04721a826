"""What torch's tensor parallelism of a transformers model needs, and what of it is modelled."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job
from estimator.families import having
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.parallel.strategies import strategy_of
from estimator.parallel.supported_settings import PLAIN, refuse_unusual

USUAL = {"implementation": "transformers", **PLAIN, "fp8": None, "mtp_num_layers": None, "dtypes": None}
"""What is modelled of each field."""
PRECISIONS = ("32-true", "bf16-true", "16-true", "bf16-mixed")
OPTIMIZERS = {"adamw": ("fused", "foreach"), "adam": ("fused", "foreach"), "sgd": ("foreach",)}


def check_tensor(job: Job, spec: ModelSpec) -> None:
    """Raise `InvalidJob` for what does not divide, and `NotModelled`, of a training job without Megatron-Core."""
    training, spread = job.training, job.parallelism
    if not spec.can.tensor or not isinstance(spec, DecoderSpec):
        known = ", ".join(having(lambda kind: kind.can.tensor))
        raise NotModelled(
            f"tensor parallelism of {spec.model_type} is not modelled in training without implementation: megatron; {known} are",
            "parallelism.tensor",
        )
    if (spread.data or 1) > 1 and "tensor_parallelism" not in strategy_of(job).models:
        raise NotModelled(
            "data parallelism beside tensor parallelism is modelled as fsdp2 and hsdp, or with implementation: megatron",
            "parallelism.strategy",
        )
    if spread.sequence is False:
        raise NotModelled(
            "tensor parallelism without sequence parallelism leaves parameters of two kinds, which torch's optimizers do not "
            "take together: leave it out",
            "parallelism.sequence",
        )
    refuse_unusual(training, USUAL, "not modelled with tensor parallelism yet")
    check_sizes(job, spec)
    _check_attention(job, spec)
    if training.precision not in PRECISIONS:
        raise NotModelled(f"with tensor parallelism {', '.join(PRECISIONS)} are modelled", "training.precision")
    if training.optimizer_implementation not in OPTIMIZERS.get(training.optimizer, ()):
        raise NotModelled(
            "with tensor parallelism adamw and adam are modelled, fused and foreach, and sgd in foreach", "training.optimizer"
        )
    recomputed = training.activation_checkpointing
    if recomputed not in ("none", "full") and (isinstance(recomputed, str) or recomputed.every is None):
        raise NotModelled("with tensor parallelism none, full and {every: k} are modelled", "training.activation_checkpointing")
    if any(place != "none" for place in job.offload.model_dump().values()):
        raise NotModelled("offloading is not modelled with tensor parallelism", "offload")


def check_sizes(job: Job, spec: DecoderSpec) -> None:
    """Ranks get equal parts: of heads, of columns, of rows of the vocabulary, and of tokens."""
    training, tensor = job.training, job.parallelism.tensor
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"):
        if (size := getattr(spec, name)) % tensor:
            raise Contradiction(f"{name} {size} does not divide by tensor {tensor}", "parallelism.tensor")
    for tokens in [bucket.tokens for bucket in training.lengths or ()] or [training.sequence_length]:
        if tokens % tensor:
            raise Contradiction(f"{tokens} tokens do not divide by tensor {tensor}", "training.sequence_length")
    if any(getattr(spec, name, False) for name in ("attention_bias", "mlp_bias")):
        raise NotModelled("biases of layers whose inputs ranks share are not modelled yet", "parallelism.tensor")


def _check_attention(job: Job, spec: DecoderSpec) -> None:
    """transformers makes masks, and counts where a window ends, by the tokens that this rank has."""
    if job.training.attention == "eager":
        raise Contradiction(
            "transformers makes eager attention's mask for this rank's tokens only: write sdpa", "training.attention"
        )
    if spec.window is not None and job.training.sequence_length >= spec.window:
        raise Contradiction(
            f"transformers does not see that {job.training.sequence_length} tokens outgrow the sliding window of {spec.window}, "
            "for a rank has a part of them",
            "training.sequence_length",
        )
