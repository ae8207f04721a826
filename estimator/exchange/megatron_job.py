"""Megatron-LM's command as a whole job: its arguments, the model that they describe, and the GPUs that it starts."""

from __future__ import annotations

from math import prod
from typing import Any

from estimator.exchange import megatron
from estimator.exchange.configuration import Launch, Surroundings
from estimator.exchange.found import Assumed, Found, LeftOut
from estimator.exchange.megatron_model import FLAGS, NotDescribed, described, model

GPT = "pretrain_gpt.py"
SPLIT = ("tensor", "pipeline", "context")
UNREAD_MODEL = "megatron --num-layers"
"""The key under which it is said why arguments with a model's sizes describe none."""


def read(text: str, launch: Launch | None = None, around: Surroundings | None = None) -> Found:
    """What arguments say of a job, with its model where they have the sizes of one."""
    launch, around = launch or Launch(), around or Surroundings()
    found = megatron.read(text)
    given = megatron.arguments(text)
    left, assumed = list(found.left_out), list(found.assumed)
    job: dict[str, Any] = dict(found.job)
    if described(given):
        try:
            if not launch.program.endswith(GPT) and ".py" in launch.program:
                raise NotDescribed(
                    f"{launch.program.split(' ')[0].rpartition('/')[2][:40]} trains another kind of model than {GPT}"
                )
            spec, more = model(given, around.allow_files)
            job = {"model": spec, **job}
            left = [one for one in left if one.key.removeprefix("megatron ") not in FLAGS]
            left += [LeftOut(key=f"megatron {flag}", why=why) for flag, why in more]
            assumed.append(
                Assumed(key="model", value=spec["model_type"], why="the architecture whose layers the arguments describe")
            )
        except NotDescribed as why:
            left.append(LeftOut(key=UNREAD_MODEL, why=f"no model is read: {why}"))
    parts = job["parallelism"]
    ranks = prod(parts.get(name, 1) for name in SPLIT)
    gpus = around.hardware.gpus * around.hardware.nodes if around.hardware else (launch.gpus or 0) * (launch.nodes or 1)
    if not gpus and "model" in job:
        gpus = ranks
        assumed.append(
            Assumed(
                key="gpus", value=ranks, why="the command does not say on how many it runs: as many as its degrees multiply to"
            )
        )
    if around.hardware is None and gpus:
        nodes = launch.nodes or 1
        job["hardware"] = {"gpus": gpus // nodes, **({"nodes": nodes} if nodes > 1 else {})}
    if gpus and "--global-batch-size" in given:
        each = job["training"]["micro_batch_size"] * max(1, gpus // ranks)
        steps = max(1, megatron.number(given, "--global-batch-size") // each)
        job["training"] = {**job["training"], "gradient_accumulation_steps": steps}
    return found.model_copy(update={"job": job, "left_out": left, "assumed": assumed})
