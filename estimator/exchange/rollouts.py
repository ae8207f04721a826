"""What writes the answers of GRPO, by the arguments that TRL has for it, and ms-swift and axolotl after it.

TRL 1.16, trainer/grpo_config.py; ms-swift 4.6, arguments/rlhf_args.py (`_init_grpo`, `_check_grpo`); axolotl 0.21,
core/trainers/grpo/__init__.py.
"""

from __future__ import annotations

from typing import Any

from estimator.exchange.configuration import Configuration

PROMPT, ANSWER = 512, 512
"""Tokens of a prompt that nothing limits, and of an answer where a file says nothing (max_completion_length)."""


def lengths(conf: Configuration, key: str, prompt: int | None, answer: int | None) -> int:
    """The tokens of a prompt, which `key` limits or nothing does; with those of an answer they are a sequence."""
    if prompt is None:
        conf.assume("prompts", PROMPT, f"{key} sets no limit: as long as the data has them, which the file does not say")
    conf.put("training.sequence_length", (prompt or PROMPT) + (answer or ANSWER))
    return prompt or PROMPT


def reference(conf: Configuration, beta: float | None) -> dict[str, Any]:
    """The reference that GRPO's divergence is from, where it counts at all."""
    return {"reference": "adapter" if conf.get("training.adapter") else "model"} if beta else {}


def engine(mode: str | None, share: float, *, sleeps: bool = False, tensor: int | None = None) -> dict[str, Any]:
    """vLLM on the same GPUs; on others, which is `server`, it is nobody's memory here."""
    if mode != "colocate":
        return {}
    found: dict[str, Any] = {"engine": "vllm", "gpu_memory_utilization": share}
    if sleeps:
        found["sleep"] = True
    if tensor and tensor > 1:
        found["tensor"] = tensor
    return {"generation": found}
