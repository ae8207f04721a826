"""Record what DeepSpeed allocates: a real training step on the CPU, over one or several processes.

    pip install deepspeed==0.19.6
    for ranks in 1 2; do for stage in 1 2 3; do for steps in 1 3; do
      torchrun --nproc-per-node $ranks -m tests.judge.deepspeed_run $stage $steps; done; done; done

With a third argument, cpu or all, it offloads the optimizer, or parameters too (DeepSpeed 0.19.8); a fourth gives sub-groups
so many elements. The host is then the machine that plays the GPU, too: both are counted together. A fifth is
zero_hpz_partition_size, a sixth the elements that stay gathered, and a seventh the norm to which gradients are clipped.

Each run prints one record for tests/data/deepspeed.yaml. The model is 200 times smaller than one of 8B, and so are the buckets
than DeepSpeed's defaults: the constants below.
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
from torch.profiler import record_function

from tests.judge.allocations import Lap, laps, watching

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
SCALE = 8
"""A loss scale at which no gradient of so small a model overflows: a step that is skipped would say nothing."""
OFFLOADED = {"none": [], "cpu": ["optimizer"], "all": ["optimizer", "param"]}
PHASES = ("forward", "backward", "optimizer_step")


def main(
    stage: int,
    micro_steps: int,
    half: str = "bf16",
    offload: str = "none",
    sub_group: str = "1000000000",
    secondary: str = "1",
    live: str = "1000000000",
    clipped: str = "0",
) -> None:
    """Train on this process, which torchrun started, in a half precision; the first rank prints the record."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed  # type: ignore[import-untyped, import-not-found, unused-ignore]

    type(deepspeed.get_accelerator()).is_fp16_supported = lambda accelerator: True  # torch can, where the CPU cannot
    deepspeed.init_distributed("gloo")
    config = transformers.LlamaConfig(**{k: v for k, v in MODEL.items() if k != "model_type"})  # type: ignore[arg-type]
    config._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM(config)
    model = model.half() if half == "fp16" else model.bfloat16()
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_steps,
        "gradient_clipping": float(clipped),
        half: {"enabled": True, **({"loss_scale": SCALE} if half == "fp16" else {})},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": BUCKET,
            "allgather_bucket_size": BUCKET,
            "overlap_comm": False,
            "stage3_prefetch_bucket_size": PREFETCH,
            "stage3_param_persistence_threshold": PERSISTENT,
            "sub_group_size": int(sub_group),
            "zero_hpz_partition_size": int(secondary),
            "stage3_max_live_parameters": int(live),
            "stage3_max_reuse_distance": int(live),
            **{f"offload_{part}": {"device": "cpu"} for part in OFFLOADED[offload]},
        },
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    fused = offload != "none"  # in place, as DeepSpeedCPUAdam, which must be compiled
    optimizer = torch.optim.AdamW(model.parameters(), foreach=not fused, fused=fused)
    with watching() as watched:  # from the beginning: every block must be seen being born
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)[0]
        for _ in range(2):
            _play(engine, micro_steps)
        resident = _alive()
        before_step = _play(engine, micro_steps)
    if int(os.environ["RANK"]) == 0:
        played = laps(watched, PHASES)
        peaks = _peaks(resident, played[-len(played) // 3 :])  # of the third step
        asked: dict[str, Any] = {"stage": stage, "ranks": int(os.environ["WORLD_SIZE"]), "micro_steps": micro_steps, "half": half}
        if offload != "none":
            asked |= {"offload": offload, "sub_group": int(sub_group)}
        if secondary != "1":
            asked |= {"secondary": int(secondary), "live": int(live), "before_step": before_step}
        if float(clipped):
            asked["clipped"] = float(clipped)
        print("- " + json.dumps({**asked, "resident": resident, **peaks}).replace('"', ""), flush=True)


def _play(engine: Any, micro_steps: int) -> int:
    """A step. Returns the bytes that are alive after its last backward pass: all that Python reaches."""
    ids = torch.randint(0, MODEL["vocab_size"], (1, TOKENS))  # type: ignore[call-overload]
    for _ in range(micro_steps):
        with record_function("forward"):
            loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
        with record_function("backward"):
            engine.backward(loss)
        del loss
        gc.collect()  # handles of finished collectives hold tensors in cycles
        alive = _alive()
        with record_function("optimizer_step"):
            engine.step()
        gc.collect()
    return alive


def _alive() -> int:
    """Bytes of every tensor that Python can reach."""
    storages = {}
    for found in gc.get_objects():
        if type(found) in (torch.Tensor, torch.nn.Parameter) and found.device.type != "meta":
            storages[found.untyped_storage()._cdata] = found.untyped_storage().nbytes()
    return sum(storages.values())


def _peaks(resident: int, played: list[Lap]) -> dict[str, int]:
    live, peaks = resident, dict.fromkeys(PHASES, 0)
    for i, lap in enumerate(played):
        live += sum(lap.between) if i else 0
        *_, live = totals = list(accumulate(lap.within, initial=live))
        peaks[lap.name] = max(peaks[lap.name], *totals)
    return peaks


if __name__ == "__main__":
    stage, steps, *more = sys.argv[1:]
    main(int(stage), int(steps), *more)
