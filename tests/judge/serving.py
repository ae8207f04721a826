"""A prompt and the first token after it, as transformers generates, on fake tensors."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator
from typing import Any

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode

from estimator.contract.job import Job
from estimator.families.spec import DecoderSpec
from estimator.hardware.capability import gpu
from estimator.hardware.capacity import capacity
from estimator.parallel.topology import topology
from estimator.verify.cuda import on_cuda
from estimator.verify.generation import windows_seen
from estimator.verify.live import Live
from estimator.verify.model import TYPES, config, defaulting_to
from estimator.verify.playable import Unplayable, refuse, unread
from estimator.verify.step import documents

HONOURED = {"serving": {"engine", "weights", "kv_cache", "context", "concurrency"}, "offload": set[str]()}
"""Settings that are read here."""


def fake_serving(job: Job, spec: DecoderSpec, elsewhere: Collection[str] = ()) -> dict[str, int]:
    """Bytes of the weights, and at the peaks of a prompt's pass (prefill) and of the next token's (decode), of a settled job.

    The prompt is as long as the context. `elsewhere`: fields that the caller plays. Raises `NotModelled` for a job that is not
    played as it says.
    """
    serving = job.serving
    refuse(_unplayable(job, spec), elsewhere)
    refuse(unread(job, HONOURED), elsewhere)
    card = gpu(job, capacity(job.hardware))
    live = Live(card)
    sequences, tokens = serving.concurrency, serving.context
    with FakeTensorMode(allow_non_fake_inputs=True), documents(), on_cuda(card), windows_seen(live), torch.no_grad():
        with defaulting_to(TYPES[serving.kv_cache]):
            model: Any = transformers.AutoModelForCausalLM.from_config(config(spec, "sdpa"))
        model.eval()
        for tensor in [*model.parameters(), *model.buffers()]:
            live.track(tensor.data)
        counted = {"resident": live.bytes}
        with live:
            ids, cache = torch.randint(0, spec.vocab_size, (sequences, tokens)), None
            for phase in ("prefill", "decode"):
                start = len(live.log)
                out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                scores = out.logits[:, -1].to(torch.float32, copy=True)
                cache = out.past_key_values
                del out
                ids = scores.argmax(-1, keepdim=True)
                del scores
                counted[phase] = live.highest(start)
        del model, cache
    gc.collect()
    return counted


def _unplayable(job: Job, spec: DecoderSpec) -> Iterator[Unplayable]:
    """Reasons not to play a serving job."""
    serving, place = job.serving, topology(job, spec)
    yield Unplayable(job.task != "serve", "serving is what is played", "task")
    yield Unplayable(not spec.runs, f"{spec.model_type} is only counted", "model")
    yield Unplayable(serving.engine != "transformers", "transformers' own generation is what is played", "serving.engine")
    yield Unplayable(serving.kv_cache not in TYPES, "the cache is of the model's type", "serving.kv_cache")
    yield Unplayable(serving.weights != serving.kv_cache, "weights are of one type, and so is the cache", "serving.weights")
    yield Unplayable(place.gpus > 1, "one process is played", "parallelism")
