"""Losses of other trainers over the modules of transformers: torchtune's in chunks (0.6.1), and one that shifts the logits.

modules/transformer.py (`chunked_output`), modules/loss/ce_chunked_output_loss.py, and the labels of
recipes/full_finetune_single_device.py (`_loss_step`), whose column of ignored labels is not counted.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import CausalLMOutput

CHUNKS = 8


def in_chunks(model: Any) -> None:
    """Give a causal language model that loss."""
    model.forward = MethodType(_forward, model)


def _forward(model: Any, input_ids: Tensor, labels: Tensor, **settings: Any) -> CausalLMOutput:
    del settings
    body = model.model if model.base_model is model else model.base_model  # as a Llama 4 says of itself
    logits = _logits(model.get_output_embeddings(), body(input_ids=input_ids).last_hidden_state)
    shifted = F.pad(labels[..., 1:], (0, 1), value=-100)
    loss = _loss(logits, shifted)
    del logits
    return CausalLMOutput(loss=loss)


def _logits(output: nn.Module, hidden: Tensor) -> list[Tensor]:
    return [output(chunk) for chunk in hidden.chunk(CHUNKS, dim=1)]


def _loss(logits: list[Tensor], labels: Tensor) -> Tensor:
    count = (labels != -100).sum()
    targets = [chunk.reshape(-1) for chunk in labels.chunk(CHUNKS, dim=1)]
    flat = [chunk.reshape(-1, chunk.size(-1)) for chunk in logits]
    total: Any = 0.0
    for rows, target in zip(flat, targets, strict=True):
        total += F.cross_entropy(rows.float(), target, ignore_index=-100, reduction="sum")
    result: Tensor = total / count
    return result


def shifted(logits: Tensor, labels: Tensor, vocab_size: int, **settings: Any) -> Tensor:
    """Cross-entropy of a copy of the logits without the last token's, as trainers with a loss of their own compute it:
    LLaMA-Factory v1, core/base_trainer.py, `compute_log_probs`, without the weights of single tokens."""
    del settings
    wide = logits.float()
    targets = labels[..., 1:].contiguous().view(-1)
    kept = wide[..., :-1, :].contiguous().view(targets.size(0), vocab_size)
    return F.cross_entropy(kept, targets)
