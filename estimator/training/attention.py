"""Which ways of attention a model, a precision and a GPU can have."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job
from estimator.families.spec import ModelSpec
from estimator.tape.gpu import Gpu

WHERE = "training.attention"
HOPPER = 9
"""The one major compute capability that FlashAttention-3 is for."""


def check_attention(job: Job, spec: ModelSpec, gpu: Gpu) -> None:
    """Raise `InvalidJob` or `NotModelled` for a way of attention that does not go with the rest of a training job."""
    training = job.training
    asked = training.attention
    if ("flash_attention_2" if asked.startswith("flash") else asked) not in spec.attentions:
        raise Contradiction(
            f"transformers does not run {spec.model_type} in {asked}; write {' or '.join(spec.attentions)}",
            WHERE,
        )
    if asked.startswith("flash") and training.precision == "32-true":
        raise Contradiction(f"{asked} runs in half precision only; write sdpa, or bf16-mixed", WHERE)
    if asked != "flash_attention_3":
        return
    if gpu.capability[0] != HOPPER:
        raise Contradiction(
            "flash_attention_3 is for Hopper: name such a hardware.gpu, as h100, or write flash_attention_2", WHERE
        )
    if training.transformers_release != "5":
        raise Contradiction("only transformers 5 has flash_attention_3; write flash_attention_2", WHERE)
    if not spec.flash_3:
        raise NotModelled(f"flash_attention_3 is not modelled for {spec.model_type} yet; write sdpa", WHERE)
