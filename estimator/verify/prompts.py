"""A model with peft's trained prompts, on tensors without numbers."""

from __future__ import annotations

from typing import Any
from unittest import mock

import peft
import torch
from torch import nn

from estimator.contract.job.adapter import PrefixTuning, PromptLearning, PTuning


class Hosted:
    """The numbers of virtual tokens, which lie in the host's memory: they are copied to the GPU in each pass."""

    def __init__(self, *shape: int):
        self.shape = shape

    def unsqueeze(self, dim: int) -> Hosted:
        return Hosted(*self.shape[:dim], 1, *self.shape[dim:])

    def expand(self, batch: int, _: int) -> Hosted:
        return Hosted(batch, *self.shape[1:])

    def to(self, device: Any) -> torch.Tensor:
        return torch.zeros(self.shape, dtype=torch.int64, device=device)


def prompted(model: Any, asked: PromptLearning) -> Any:
    """`model` with the trained prompts of a job, of torch's default type."""
    made: Any
    staying = mock.patch.object(nn.Module, "to", lambda self, *args, **kwargs: self)  # on fake tensors a move replaces parameters
    with staying:
        made = peft.get_peft_model(model, _config(asked), autocast_adapter_dtype=False)
    made.prompt_tokens = {name: Hosted(len(numbers)) for name, numbers in made.prompt_tokens.items()}
    return made


def _config(asked: PromptLearning) -> peft.PeftConfig:
    usual: dict[str, Any] = {"num_virtual_tokens": asked.virtual_tokens, "task_type": "CAUSAL_LM"}
    if isinstance(asked, PTuning):
        return peft.PromptEncoderConfig(**usual | {"encoder_hidden_size": asked.hidden})
    if isinstance(asked, PrefixTuning):
        width = {"encoder_hidden_size": asked.hidden}
        return peft.PrefixTuningConfig(**usual | width, prefix_projection=asked.projection)
    return peft.PromptTuningConfig(**usual)
