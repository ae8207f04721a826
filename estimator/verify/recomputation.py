"""Activation checkpointing of a real model, by torch's own functions: what transformers has a switch for by that, the rest as one
would write it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._functorch.partitioners import get_default_op_list
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import AttentionInterface

from estimator.contract.job import CheckpointForm, Training
from estimator.families.recomputed import CORE_ATTENTION
from estimator.training.recomputation import SELECTIVE, WAYS, root

aten = torch.ops.aten
ATTENTION = {
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
}
PRODUCTS: set[Any] = {op.default for op in get_default_op_list().compute_intensive_ops} | ATTENTION  # type: ignore[attr-defined]
TORCHTITAN = PRODUCTS | {
    aten._scaled_dot_product_attention_math.default,
    aten._scaled_dot_product_fused_attention_overrideable.default,
    aten.max.default,
    aten.linear.default,
    aten.topk.default,
}
"""torchtitan 0.3's distributed/activation_checkpoint.py, `_get_default_save_ops`, without collectives."""


def recompute(model: Any, training: Training, offloads: bool = False) -> None:
    """Let a model recompute in backward what the job says; `offloads`: with its checkpoints' inputs in the host's memory."""
    asked, reentrant = training.activation_checkpointing, training.reentrant_checkpointing
    if asked == "none":
        return
    form = CheckpointForm(operations=SELECTIVE) if asked == "selective" else asked
    if isinstance(form, CheckpointForm) and form.modules:
        model.activation_checkpointing_enable({"use_reentrant": False})
        for layer in _layers(model):
            layer.gradient_checkpointing = False
            _recompute_modules(layer, form.modules)
    elif form == "sqrt" or (isinstance(form, CheckpointForm) and form.segments):
        (stack,) = stacks(model)
        count = root(len(stack)) if isinstance(form, str) else form.segments
        _segment(stack, math.ceil(len(stack) / max(1, count or 1)), reentrant)
        with suppress(NotImplementedError):  # of what reads spectrograms, whose convolutions are none to transformers
            model.get_input_embeddings().register_forward_hook(lambda module, args, out: out.requires_grad_(True))
    else:
        every = form.every if isinstance(form, CheckpointForm) and form.every else 1
        model.activation_checkpointing_enable({"use_reentrant": reentrant}, every_n_layers=every, offload=offloads)
        if isinstance(form, CheckpointForm) and not form.every:
            _in_ways(_layers(model), form)


def stacks(model: nn.Module) -> list[nn.ModuleList]:
    """The stacks of layers: what is checkpointed and sharded layer by layer; of a model that is never checkpointed (MPNet), what
    it calls its layers."""
    lists = {name: m for name, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)}
    found = [m for m in lists.values() if all(isinstance(_own(layer), GradientCheckpointingLayer) for layer in m)]
    return found or [m for name, m in lists.items() if name.rpartition(".")[2] in ("layer", "layers")]


def _own(layer: nn.Module) -> nn.Module:
    """A layer itself, which FSDP1 puts into a module of its own."""
    return layer.module if isinstance(layer, FullyShardedDataParallel) else layer


def _layers(model: nn.Module) -> list[Any]:
    return [_own(layer) for stack in stacks(model) for layer in stack]


def _in_ways(layers: list[Any], form: CheckpointForm) -> None:
    """The first layers in the ways that the form says; the others not at all."""
    counts = form.mix or {form.operations or "full": form.layers or len(layers)}
    ways = [way for way in WAYS for _ in range(counts.get(way, 0))]  # type: ignore[call-overload]
    for layer, way in itertools.zip_longest(layers, ways):
        layer.gradient_checkpointing = way is not None
        if way not in (None, "full"):
            layer._gradient_checkpointing_func = partial(layer._gradient_checkpointing_func, context_fn=partial(_contexts, way))


def _contexts(way: str) -> Any:
    """The contexts of one segment's two runs."""
    if way == "torchtitan":
        return create_selective_checkpoint_contexts(_every_second_product())
    return create_selective_checkpoint_contexts([*(PRODUCTS if way == "products" else ATTENTION)])


def _every_second_product() -> Callable[..., CheckpointPolicy]:
    """torchtitan's policy (`SelectiveAC`): all of its operations, but every second `mm`."""
    count = 0

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        nonlocal count
        count += func is aten.mm.default
        saves = func in TORCHTITAN and not (func is aten.mm.default and count % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def _recompute_modules(layer: Any, names: list[str]) -> None:
    for name, module in layer.named_children():
        if name in names:
            module.forward = partial(checkpoint, module.forward, use_reentrant=False)
        elif CORE_ATTENTION in names and "attention" in type(module).__name__.lower():
            module.forward = partial(_with_core_recomputed, module.forward)


def _with_core_recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run an attention module with a checkpoint around what it does between its projections."""
    plain = AttentionInterface.get_interface

    def get_interface(self: Any, implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return partial(checkpoint, plain(self, implementation, default), use_reentrant=False)

    with mock.patch.object(AttentionInterface, "get_interface", get_interface):
        return forward(*args, **kwargs)


class Segment(nn.Module):
    """Layers in a row, recomputed as one."""

    def __init__(self, members: list[nn.Module], reentrant: bool):
        super().__init__()
        self.reentrant = reentrant
        self.members = nn.ModuleList(members)
        self.attention_type = "full_attention"

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        def run(hidden: torch.Tensor) -> Any:
            out: Any = hidden
            for member in self.members:
                out = member(out[0] if isinstance(out, tuple) else out, *args, **kwargs)
            return out

        return checkpoint(run, hidden, use_reentrant=self.reentrant)


def _segment(stack: nn.ModuleList, size: int, reentrant: bool) -> None:
    """Replace the layers of a stack by segments of `size`, a shorter one first."""
    members, rest = list(stack), len(stack) % size
    cuts = [0, *range(rest or size, len(members) + 1, size)]
    while len(stack):
        del stack[0]
    stack.extend(Segment(members[a:b], reentrant) for a, b in itertools.pairwise(cuts))
