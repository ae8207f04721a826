"""The optimizer of a job as its users would make it, over a real model's parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from typing import Any

import torch
from torch import nn
from transformers.optimization import Adafactor
from transformers.pytorch_utils import Conv1D

from estimator.contract.job import Job, Training
from estimator.contract.job.optimizer import STATES
from estimator.training import badam

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
CLASSES: dict[str, Any] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "sgd-momentum": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "adafactor": torch.optim.Adafactor,
}
"""torch's class for each optimizer of a job."""
FUSED = ("adamw", "adam", "sgd", "sgd-momentum", "adagrad")
"""Optimizers of torch that have a `fused` setting."""
RULES = {
    "adamw": "AdamW",
    "adam": "Adam",
    "sgd": "SGD",
    "sgd-momentum": "SGD",
    "adagrad": "Adagrad",
    "rmsprop": "RMSprop",
    "lion": "Lion",
    "lamb": "LAMB",
    "ademamix": "AdEMAMix",
}
"""What bitsandbytes and torchao call them; `Paged` before it, `8bit`, `4bit` or `Fp8` after it."""
OTHERS = {
    "lion": ("lion_pytorch", "Lion"),
    "galore-adamw": ("galore_torch.adamw", "AdamW"),
    "apollo": ("apollo_torch.apollo", "AdamW"),
    "apollo-mini": ("apollo_torch.apollo", "AdamW"),
    "shampoo": ("pytorch_optimizer", "Shampoo"),
    "soap": ("pytorch_optimizer", "SOAP"),
}
"""Classes of other libraries."""
PROJECTED: dict[str, dict[str, str]] = {
    "galore-adamw": {},
    "apollo": {"proj": "random", "scale_type": "channel"},
    "apollo-mini": {"proj": "random", "scale_type": "tensor"},
}
"""Settings of the group of matrices whose gradients are projected."""


@dataclass(frozen=True, slots=True)
class Optimizers:
    """One optimizer, or several as one. Those that step in backward do so by themselves."""

    members: Sequence[torch.optim.Optimizer]
    in_backward: bool = False

    def step(self) -> None:
        if not self.in_backward:
            for member in self.members:
                member.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for member in self.members:
            member.zero_grad(set_to_none)

    def parameters(self) -> Iterator[torch.Tensor]:
        """What is updated: the model's own, or copies of them."""
        for member in self.members:
            for group in getattr(member, "base_optimizer", member).param_groups:
                yield from group["params"]

    def states(self) -> Iterator[dict[str, Any]]:
        """What is kept for each parameter."""
        for member in self.members:
            yield from getattr(member, "base_optimizer", member).state.values()


def make_optimizer(job: Job, model: nn.Module, hooked: Callable[[], AbstractContextManager[None]] = nullcontext) -> Optimizers:
    """The job's optimizer over what is trained. `hooked`: what a step within backward runs in."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if badam.asks(job):
        return Optimizers([_in_turn(made, model) for made in _made(job.training, trained, model)])
    if not job.training.optimizer_in_backward:
        return Optimizers(_made(job.training, trained, model))
    return Optimizers([m for p in trained for m in _hook(p, Optimizers(_made(job.training, [p], model)), hooked)], True)


def _in_turn(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """BAdam's optimizer at the part whose turn it is, which never ends here."""
    named = list(model.named_parameters())
    part = [name for name, p in named if p.requires_grad]
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "BAdam expect model to be loaded in fp16/bf16 precision")
        made: torch.optim.Optimizer = import_module("badam").BlockOptimizer(
            optimizer, named, [part], switch_block_every=10**9, start_block=0, switch_mode="fixed", verbose=0
        )
    return made


def _hook(parameter: nn.Parameter, optimizers: Optimizers, hooked: Callable[[], AbstractContextManager[None]]) -> Any:
    """Let a parameter's optimizers step when its gradient is there, and free that."""

    def update(parameter: torch.Tensor) -> None:
        with hooked():
            optimizers.step()
            optimizers.zero_grad()

    parameter.register_post_accumulate_grad_hook(update)
    return optimizers.members


def _made(training: Training, parameters: list[nn.Parameter], model: nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizers of some of a model's parameters."""
    name, by = training.optimizer, training.optimizer_implementation
    assert by is not None
    known = {id(p) for p in layers_matrices(model)}
    matrices, rest = [p for p in parameters if id(p) in known], [p for p in parameters if id(p) not in known]
    if name == "muon":
        muon = [torch.optim.Muon(matrices, lr=1e-3)] if matrices else []
        return [*muon, *([_of_torch("adamw", by, rest)] if rest else [])]
    if name in PROJECTED:
        projected: dict[str, Any] = {
            "params": matrices,
            "rank": training.optimizer_rank,
            "update_proj_gap": 200,
            "scale": 1.0,
            "proj_type": "std",
        }
        groups: list[dict[str, Any]] = [{"params": rest}, projected | PROJECTED[name]]
        return [_class(name, by)([group for group in groups if group["params"]])]
    if by in ("foreach", "fused", "forloop"):
        return [_of_torch(name, by, parameters)]
    if by == "llama-cookbook":
        dtype = TYPES[training.optimizer_states or STATES[by]]
        module = import_module("llama_cookbook.policies.anyprecision_optimizer")
        return [module.AnyPrecisionAdamW(parameters, momentum_dtype=dtype, variance_dtype=dtype)]
    if name == "adafactor":
        return [Adafactor(parameters, lr=1e-3, scale_parameter=False, relative_step=False)]
    momentum = {"momentum": 0.9} if name.startswith("sgd") else {}
    return [_class(name, by)(parameters, lr=1e-3, **momentum)]


def _class(name: str, library: str) -> Any:
    """A library's class for an optimizer."""
    if library in ("bitsandbytes", "torchao"):
        rule = name.removeprefix("paged-")
        for bits in ("8bit", "4bit", "fp8"):
            rule = rule.removesuffix("-" + bits)
        bits = name.rpartition("-")[2] if name.endswith(("8bit", "4bit")) else "Fp8" if name.endswith("fp8") else ""
        return getattr(import_module(library + ".optim"), ("Paged" if name.startswith("paged-") else "") + RULES[rule] + bits)
    module, attribute = OTHERS[name]
    return getattr(import_module(module), attribute)


def layers_matrices(model: nn.Module) -> Iterable[torch.Tensor]:
    """The weights of the linear layers of a model's layers: not of its output layer, and not of a classification's head."""
    lists = (m for m in model.modules() if isinstance(m, nn.ModuleList))
    stacks = (m for m in lists if not all(isinstance(each, nn.Linear) for each in m))  # those of Gemma 3n's streams are no layers
    return (m.weight for stack in stacks for m in stack.modules() if isinstance(m, nn.Linear | Conv1D))


def _of_torch(name: str, implementation: str, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    flags: dict[str, Any] = {"foreach": implementation == "foreach"}
    if name in FUSED:
        flags["fused"] = implementation == "fused"
    if name == "sgd-momentum":
        flags["momentum"] = 0.9
    found: torch.optim.Optimizer = CLASSES[name](parameters, lr=1e-4, **flags)
    return found
