"""Which layers, modules and operations of a model a job recomputes in backward."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import CheckpointForm, Job, Training
from estimator.families.layers import FULL, Checkpointing
from estimator.parallel.strategies import NONE, Strategy
from estimator.parallel.topology import Topology
from estimator.tape.selective import TORCHTITAN_02

FIELD = "training.activation_checkpointing"
WAYS = (FULL, "attention", "torchtitan", "products")
"""Ways of recomputing a layer, those that keep least first: in backward the first layers come last, when the others' tensors are
gone, so that what a layer makes again meets the fewest others there."""
SELECTIVE = "torchtitan"
"""The operations that `selective` stands for."""


def checkpointing(training: Training, layers: int, strategy: Strategy = NONE) -> Checkpointing:
    """What a model of so many layers recomputes: `sqrt` is as many segments as the root of their number."""
    asked, reentrant = training.activation_checkpointing, training.reentrant_checkpointing
    if asked == "none":
        return Checkpointing()
    if training.implementation == "torchtitan":
        return _by_torchtitan(asked, layers)
    if asked == "full":
        return Checkpointing(every=1, reentrant=reentrant)
    if asked == "sqrt":
        return Checkpointing(segment=math.ceil(layers / root(layers)), reentrant=reentrant)
    if asked == "selective":
        asked = CheckpointForm(operations=SELECTIVE)
    if asked.every:
        return Checkpointing(every=min(asked.every, layers), reentrant=reentrant)
    if asked.segments:
        _at_most(layers, asked.segments, "segments")
        return Checkpointing(segment=math.ceil(layers / asked.segments), reentrant=reentrant)
    if asked.uniform:
        raise Contradiction("uniform is Megatron-LM's, with implementation: megatron; write segments", f"{FIELD}.uniform")
    if asked.layers:
        _at_most(layers, asked.layers, "layers")
        return Checkpointing(first=((FULL, asked.layers),), reentrant=reentrant)
    _refuse_beside(training, strategy)
    if asked.modules:
        return Checkpointing(modules=tuple(dict.fromkeys(asked.modules)))
    _refuse_operations(training, asked)
    if asked.operations:
        return Checkpointing(first=((asked.operations, layers),))
    assert asked.mix is not None, "a budget is solved before"
    _at_most(layers, sum(asked.mix.values()), "mix")
    counts: Mapping[str, int] = dict(asked.mix.items())
    return Checkpointing(first=tuple((way, counts[way]) for way in WAYS if counts.get(way)))


def _by_torchtitan(asked: str | CheckpointForm, layers: int) -> Checkpointing:
    """What `apply_ac` makes of it, before layers are sharded: each layer, all but some operations of each, or every k-th from the
    k-th on, always run again to its end (torchtitan 0.2.2, distributed/activation_checkpoint.py, config/job_config.py)."""
    every = 1 if asked == "full" else asked.every if isinstance(asked, CheckpointForm) else None
    if every is None:
        return Checkpointing(first=((TORCHTITAN_02, layers),), inside=True, early_stop=False)
    if every > layers:
        return Checkpointing()
    return Checkpointing(every=every, skips=every - 1, inside=True, early_stop=False)


def offloading(recomputed: Checkpointing, job: Job, place: Topology) -> Checkpointing:
    """The checkpointing of a job, with what it keeps in the host's memory.

    That is the inputs of checkpoints (transformers' `activation_checkpointing_enable(offload=True)`), or without checkpointing
    all that forward saves (torch's `save_on_cpu` around it).
    """
    where = "offload.activations"
    if job.offload.activations != "cpu":
        raise NotModelled("activations are offloaded to the host's memory only: write cpu", where)
    if recomputed.segment or recomputed.modules or recomputed.reentrant:
        raise NotModelled(
            "offloading the inputs of segments or of modules, or with re-entrance, is not modelled yet; use none, full or "
            "{layers: m}",
            where,
        )
    if "offloaded_activations" not in place.strategy.models:
        raise NotModelled(f"activations are not offloaded under {place.strategy} yet", where)
    if job.training.quantization or job.training.implementation != "transformers":
        raise NotModelled("offloading the activations of quantized or fused layers is not modelled yet", where)
    return replace(recomputed, offloads=True)


def root(layers: int) -> int:
    """How many segments `sqrt` makes."""
    return max(1, round(math.sqrt(layers)))


def _at_most(layers: int, asked: int, what: str) -> None:
    if asked > layers:
        many = f"{asked} layers" if what == "mix" else f"{asked} {what}"
        raise Contradiction(
            f"{many} are more than the model's {layers}{' layers' if what == 'segments' else ''}", f"{FIELD}.{what}"
        )


def _refuse_beside(training: Training, strategy: Strategy) -> None:
    """Raise for settings with which parts of a layer cannot be recomputed, or are not modelled."""
    if training.reentrant_checkpointing:
        raise Contradiction(
            "torch recomputes parts of a layer without re-entrance only: leave it out", "training.reentrant_checkpointing"
        )
    if training.quantization or training.implementation != "transformers":
        raise NotModelled("recomputing parts of quantized or fused layers is not modelled yet; use full or {layers: m}", FIELD)
    if "checkpoints_of_parts" not in strategy.models:
        raise NotModelled(f"recomputing parts of layers is not modelled under {strategy} yet; use full or {{layers: m}}", FIELD)


def _refuse_operations(training: Training, asked: CheckpointForm) -> None:
    """What operations are not kept of, one by one."""
    if asked.operations or set(asked.mix or ()) - {FULL}:
        attention = training.attention
        for name, given in (
            ("float8", training.float8),
            (attention, attention in ("flash_attention_3", "flash_attention_triton")),
        ):
            if given:
                raise NotModelled(f"keeping the results of operations is not modelled with {name} yet; use full", FIELD)
