"""A prompt and the first token after it, as transformers generates, on fake tensors."""

from __future__ import annotations

import gc
from typing import Any

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode

from estimator.specs.spec import DecoderSpec
from estimator.verify.cuda import on_cuda
from estimator.verify.generation import windows_seen
from estimator.verify.live import Live
from estimator.verify.model import config, defaulting_to
from estimator.verify.step import documents


def fake_serving(spec: DecoderSpec, sequences: int, tokens: int) -> dict[str, int]:
    """Bytes of the weights, and at the peaks of a prompt's pass (prefill) and of the next token's (decode), in bf16."""
    live = Live()
    with FakeTensorMode(allow_non_fake_inputs=True), documents(), on_cuda(), windows_seen(live), torch.no_grad():
        with defaulting_to(torch.bfloat16):
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
