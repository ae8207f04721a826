"""Runs of our own on a real GPU: `python -m tests.gpu [PART...]` prints a record for each case of tests/cases/gpu.yaml.

Every case has a process of its own, in which its model is trained for three steps, or answers a prompt. A record, one line of
JSON, holds the job as it was settled, peaks of allocated and reserved bytes, what nvidia-smi showed more than before, the bytes
between steps, seconds of the last step, and versions. Append the records to tests/data/gpu.jsonl.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import torch
import transformers

from estimator import Job, estimate
from estimator.contract.units import MIB
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.specs.resolve import resolve
from estimator.verify.batch import batch
from estimator.verify.model import autocast, build, config, defaulting_to
from estimator.verify.optimizers import make_optimizer
from tests.jobs import cases, job_of

STEPS = 3
ONE = "--one"


def main(arguments: list[str]) -> int:
    """Measure the cases whose name has one of the parts in it; without parts, all."""
    if not torch.cuda.is_available():
        print("no CUDA device, or a torch without CUDA: nothing can be measured here", file=sys.stderr)
        return 2
    if arguments[:1] == [ONE]:
        print(json.dumps(measured(json.loads(arguments[1]))))
        return 0
    for case in cases("gpu"):
        if not arguments or any(part in case["name"] for part in arguments):
            job = estimate(job_of(case)).job
            subprocess.run([sys.executable, "-m", "tests.gpu", ONE, json.dumps({"name": case["name"], "job": job})], check=False)
    return 0


def measured(asked: dict[str, Any]) -> dict[str, Any]:
    """Run one case in this process."""
    job = Job.model_validate(asked["job"])
    if job.training.expandable_segments and job.task == "train":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    before, spec = _shown_bytes(), resolve(job.model).spec
    found: dict[str, Any] = {"out_of_memory": False}
    try:
        found |= _trained(job, spec) if job.task == "train" else _served(job, spec)
    except torch.cuda.OutOfMemoryError:
        found["out_of_memory"] = True
    return {
        **asked,
        **found,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "nvidia_smi_bytes": _shown_bytes() - before,
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "transformers": transformers.__version__},
    }


def _trained(job: Job, spec: ModelSpec) -> dict[str, Any]:
    training = job.training
    with torch.device("cuda"):
        model = build(job, spec)
        optimizer = make_optimizer(job, model)
        for _ in range(STEPS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(training.gradient_accumulation_steps):
                inputs = batch(job, spec, model)
                with autocast(job, "cuda"):
                    loss = model(**inputs).loss
                loss.backward()
                del loss, inputs
            if training.gradient_clipping:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=training.zero_grad_to_none)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
    return {"resident_bytes": torch.cuda.memory_allocated(), "step_seconds": seconds}


def _served(job: Job, spec: ModelSpec) -> dict[str, Any]:
    assert isinstance(spec, DecoderSpec)
    serving = job.serving
    with torch.device("cuda"), torch.no_grad():
        with defaulting_to(torch.bfloat16):
            model: Any = transformers.AutoModelForCausalLM.from_config(config(spec, "sdpa"))
        model.eval()
        held = torch.cuda.memory_allocated()
        prompt = torch.randint(0, spec.vocab_size, (serving.concurrency, serving.context - 1))
        start = time.perf_counter()
        model.generate(input_ids=prompt, max_new_tokens=2, min_new_tokens=2, do_sample=False, use_cache=True)
        torch.cuda.synchronize()
    return {"resident_bytes": held, "step_seconds": time.perf_counter() - start}


def _shown_bytes() -> int:
    """What nvidia-smi shows as used."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout) * MIB


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
