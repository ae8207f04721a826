"""Mixtures whose experts transformers calls one after the other, and how many tokens each gets, which fake tensors do not say."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from transformers import PreTrainedModel

from estimator.verify.live import Live

EVEN = "each expert is taken to get equally many tokens; one that gets more holds more while it runs"


@contextmanager
def routed_evenly(model: Any, live: Live) -> Iterator[None]:
    """Let equally many tokens choose each expert of a model that asks how many do."""
    asking = looping(model)
    if asking is None:
        yield
        return
    live.routed, live.knowing = frozenset(_experts(asking.config.to_dict())), True
    with mock.patch.object(torch.nn.functional, "one_hot", one_hot):
        yield


@contextmanager
def really_routed_evenly(model: Any) -> Iterator[None]:
    """The same for a model of real tensors, which has numbers, and others."""
    asking = looping(model)
    experts = _experts(asking.config.to_dict()) if asking else set()
    plain, turns = torch.topk, dict[tuple[int, ...], torch.Tensor]()

    def topk(x: torch.Tensor, *args: Any, **settings: Any) -> Any:
        found = plain(x, *args, **settings)
        if x.shape[-1] in experts:
            chosen, shape = found[1], tuple(found[1].shape)
            if shape not in turns:
                turns[shape] = (torch.arange(chosen.numel()) % x.shape[-1]).reshape(shape)
            chosen.data.copy_(turns[shape])
        return found

    with mock.patch.object(torch, "topk", topk):
        yield


def looping(model: Any) -> PreTrainedModel | None:
    """The part of a model that calls its experts one after the other, if any does."""
    return next((m for m in model.modules() if isinstance(m, PreTrainedModel) and _in_a_loop(m)), None)


def one_hot(x: torch.Tensor, num_classes: int) -> torch.Tensor:
    """As CUDA makes it (aten/src/ATen/native/Onehot.cpp): fake tensors compare, which takes more."""
    return torch.zeros((*x.shape, num_classes), dtype=torch.int64).scatter_(-1, x.unsqueeze(-1), 1)


def _in_a_loop(model: PreTrainedModel) -> bool:
    """Whether a model has experts that it calls itself: those that transformers may run in several ways it runs all at once."""
    source = inspect.getmodule(next(kind for kind in type(model).__mro__ if ".models." in kind.__module__))
    code = inspect.getsource(source) if source else ""
    return "expert" in code and "@use_experts_implementation" not in code


def _experts(config: Mapping[str, Any]) -> set[int]:
    """The sizes that a router's scores may have: the numbers of experts that a config says, and all of them together."""
    found = set()
    for part in (config, *(part for part in config.values() if isinstance(part, Mapping))):
        said = [value for name, value in part.items() if _counts(str(name)) and isinstance(value, int)]
        found |= {value for value in said if value > 1} | {sum(said)}
    return found


def _counts(name: str) -> bool:
    """Whether a setting says how many experts there are."""
    return "expert" in name and ("num" in name or name.startswith("n_")) and "per_tok" not in name
