"""Record what DeepSpeed allocates: a real training step on the CPU, over one or several processes.

    pip install deepspeed==0.19.6
    for ranks in 1 2; do for stage in 1 2 3; do for steps in 1 3; do
      torchrun --nproc-per-node $ranks -m tests.judge.deepspeed_run $stage $steps; done; done; done

Each run prints one record for tests/data/deepspeed.yaml. Buckets are smaller than DeepSpeed's defaults by the same factor as
the model is smaller than real ones; the record says how small.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from itertools import accumulate
from typing import Any

import torch
import transformers
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function

MODEL = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4000,
}
TOKENS = 16
BUCKET, PREFETCH, PERSISTENT = 2_500_000, 250_000, 1_000
PHASES = ("forward", "backward", "optimizer_step")


def main(stage: int, micro_steps: int) -> None:
    """Train on this process, which torchrun started; the first rank prints the record."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed  # type: ignore[import-untyped, import-not-found, unused-ignore]

    deepspeed.init_distributed("gloo")
    config = transformers.LlamaConfig(**{k: v for k, v in MODEL.items() if k != "model_type"})  # type: ignore[arg-type]
    config._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM(config).bfloat16()
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_steps,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": BUCKET,
            "allgather_bucket_size": BUCKET,
            "overlap_comm": False,
            "stage3_prefetch_bucket_size": PREFETCH,
            "stage3_param_persistence_threshold": PERSISTENT,
        },
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    # the profiler must see every block's birth, or it does not report its end
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
        for _ in range(2):
            _play(engine, micro_steps)
        resident = _alive()
        _play(engine, micro_steps)
    if int(os.environ["RANK"]) == 0:
        peaks = _peaks(resident, profiler.profiler.kineto_results.experimental_event_tree())
        asked = {"stage": stage, "ranks": int(os.environ["WORLD_SIZE"]), "micro_steps": micro_steps}
        print("- " + json.dumps({**asked, "resident": resident, **peaks}).replace('"', ""), flush=True)


def _play(engine: Any, micro_steps: int) -> None:
    ids = torch.randint(0, MODEL["vocab_size"], (1, TOKENS))  # type: ignore[call-overload]
    for _ in range(micro_steps):
        with record_function("forward"):
            loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
        with record_function("backward"):
            engine.backward(loss)
        del loss
        gc.collect()  # handles of finished collectives hold tensors in cycles
        with record_function("optimizer_step"):
            engine.step()
        gc.collect()


def _alive() -> int:
    """Bytes of every tensor that Python can reach."""
    storages = {}
    for found in gc.get_objects():
        if type(found) in (torch.Tensor, torch.nn.Parameter) and found.device.type != "meta":
            storages[found.untyped_storage()._cdata] = found.untyped_storage().nbytes()
    return sum(storages.values())


def _peaks(resident: int, roots: list[Any]) -> dict[str, int]:
    events: list[Any] = []
    while roots:
        event = roots.pop()
        roots.extend(event.children)
        if event.tag == _EventType.Allocation or event.name in PHASES:
            events.append(event)
    events.sort(key=lambda event: event.start_time_ns)
    phases = [event for event in events if event.tag != _EventType.Allocation]
    live, peaks = resident, dict.fromkeys(PHASES, 0)
    at = phases[-len(phases) // 3].start_time_ns  # of the third step
    for phase in phases[-len(phases) // 3 :]:
        live += sum(_sizes(events, at, phase.start_time_ns))  # between phases
        at = phase.end_time_ns
        *_, live = totals = list(accumulate(_sizes(events, phase.start_time_ns, at), initial=live))
        peaks[phase.name] = max(peaks[phase.name], *totals)
    return peaks


def _sizes(events: list[Any], start: int, stop: int) -> list[int]:
    """Bytes born, or negative if freed, from one time to another."""
    return [e.extra_fields.alloc_size for e in events if e.tag == _EventType.Allocation and start <= e.start_time_ns < stop]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
