"""A real model writing on fake tensors: transformers' `generate`, as TRL and the Trainer for sequences call it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from transformers import GenerationConfig
from transformers.cache_utils import DynamicSlidingWindowLayer
from transformers.generation.utils import GenerationMixin, StopCheck

from estimator.contract.job import Job
from estimator.verify.live import Live

SETTINGS: dict[str, Any] = {"use_cache": True, "bos_token_id": 1, "eos_token_id": [2], "pad_token_id": 0}


def generate(job: Job, spec: Any, model: Any, live: Live, logs: Any = None) -> dict[str, int]:
    """The peak while the answers of a step are written (trl/trainer/grpo_trainer.py, `_generate_single_turn`)."""
    from trl.models.utils import disable_gradient_checkpointing

    training, asked = job.training, job.training.objective
    assert asked is not None
    shape = training.gradient_accumulation_steps * training.micro_batch_size, asked.prompt_length
    start = len(live.log)
    with disable_gradient_checkpointing(model, {"use_reentrant": training.reentrant_checkpointing}):
        inputs = {"input_ids": torch.randint(0, spec.vocab_size, shape), "attention_mask": torch.ones(shape, dtype=torch.int64)}
        written(model, inputs, training.sequence_length - asked.prompt_length, live, sampled=True)
        del inputs
    if logs is not None:
        logs["generate"] = live.log[start:]
    return {"generate": live.highest(start)}


def written(model: Any, inputs: dict[str, Any], answer: int, live: Live, sampled: bool = False) -> torch.Tensor:
    """Sequences with so many tokens after their prompts, none of which ends before."""
    settings = GenerationConfig(max_new_tokens=answer, do_sample=sampled, top_k=0, disable_compile=True, **SETTINGS)
    with tokens_seen(live), windows_seen(live), until(inputs["input_ids"].shape[1] + answer):
        sequences: torch.Tensor = model.generate(**inputs, generation_config=settings)
    return sequences


@contextmanager
def tokens_seen(live: Live) -> Iterator[None]:
    """Let `live` count the special tokens, which are sent to the GPU."""
    plain = GenerationMixin._prepare_special_tokens

    def prepare(self: Any, settings: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, settings, *args, **kwargs)
        for tensor in filter(torch.is_tensor, (settings._bos_token_tensor, settings._pad_token_tensor)):
            live.measure(tensor.untyped_storage())

    with mock.patch.object(GenerationMixin, "_prepare_special_tokens", prepare):
        yield


@contextmanager
def until(most: int) -> Iterator[None]:
    """Every sequence is as long as the longest may be, of which fake tensors could not say that it ends."""

    def stop(self: StopCheck, unfinished: torch.Tensor, tokens: torch.Tensor, length: int) -> bool:
        return length >= most

    with mock.patch.object(StopCheck, "__call__", stop):
        yield


@contextmanager
def windows_seen(live: Live) -> Iterator[None]:
    """Let `live` count the width of each layer's window, which the cache sends to the GPU."""
    plain = DynamicSlidingWindowLayer.lazy_initialization

    def send(layer: Any, *states: torch.Tensor) -> None:
        plain(layer, *states)
        live.measure(layer._sliding_window_tensor.untyped_storage())

    with mock.patch.object(DynamicSlidingWindowLayer, "lazy_initialization", send):
        yield
