"""What a model is trained for, where that takes more than its own loss: further models, pairs, generation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from estimator.contract.job.part import Count, Part

Kind = Literal["dpo", "reward", "grpo", "kto", "orpo", "distillation", "ppo"]


class Generation(Part):
    """What writes the answers that a model is trained on, on the GPU that it is trained on (TRL's `use_vllm`, `vllm_mode`)."""

    engine: Literal["transformers", "vllm"] = Field(
        description="transformers: the trained model's own `generate`; vllm: an engine with its own weights beside it (colocate)"
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.3, description="of vllm: its share of the GPU's memory (vllm_gpu_memory_utilization)"
    )
    sleep: bool = Field(False, description="of vllm: it gives its share back while the model is trained (vllm_enable_sleep_mode)")
    tensor: Annotated[int, Field(ge=1, le=2**10)] = Field(
        1, description="of vllm: GPUs over which its weights and its cache are divided (vllm_tensor_parallel_size)"
    )


def _engine(given: Any) -> Any:
    """An engine by its name alone; `server` is none here."""
    if isinstance(given, str):
        return None if given == "server" else {"engine": given}
    return given


class Objective(Part):
    """A loss over several models or several answers, as TRL 1.16 trains it.

    `micro_batch_size` counts what its trainer counts: pairs, or sequences where there are no pairs.
    """

    type: Kind = Field(description="which trainer")
    reference: Literal["model", "adapter", "precomputed"] | None = Field(
        None,
        description="where the reference's scores come from: a second model, the model without its adapter, or computed before "
        "training; without it, of dpo and kto adapter where there is one, else model, and of grpo none (beta 0)",
    )
    prompt_length: Annotated[int, Field(ge=0, le=2**24)] = Field(
        0, description="of sequence_length, tokens of the prompt, which are not scored"
    )

    teacher: str | dict[str, Any] | None = Field(
        None, description="of distillation, the model that is learnt from, as `model` names one; it has the student's vocabulary"
    )
    reward: str | dict[str, Any] | None = Field(
        None, description="of ppo, the model that rewards and, once more, the one that values; without it, as the trained model"
    )
    rollout_batch_size: Count = Field(
        64, description="of ppo, sequences that are written and scored at a time (local_rollout_forward_batch_size)"
    )
    generation: Annotated[
        Generation | None,
        BeforeValidator(_engine, json_schema_input_type=Generation | Literal["server", "transformers", "vllm"] | None),
    ] = Field(
        None, description="of grpo and distillation, what writes the answers; without it, or as `server`, vLLM on other GPUs"
    )

    @property
    def several(self) -> bool:
        """Whether more than one model learns."""
        return self.type == "ppo"

    @property
    def pairs(self) -> bool:
        """Whether a batch is of pairs."""
        return self.type in ("dpo", "reward", "orpo")


def _named(given: Any) -> Any:
    """An objective by its name alone; `sft` is none."""
    if isinstance(given, str):
        return None if given == "sft" else {"type": given}
    return given


OneObjective = Annotated[
    Objective | None, BeforeValidator(_named, json_schema_input_type=Objective | Literal["sft"] | Kind | None)
]
