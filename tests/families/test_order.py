"""Parameters of layers come in transformers' order, which decides what the first rank of a flat tensor holds; and linear layers
are known as such."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from itertools import groupby

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from estimator import InvalidJob
from estimator.families import built, heads, spec_class
from estimator.families.spec import ModelSpec
from estimator.specs.resolve import resolve
from estimator.verify.model import AUTO, config, plain
from tests.draw import models

TRIES = 200


def small(kind: str) -> ModelSpec:
    """A random small model of a family."""
    rng = random.Random(kind)
    for _ in range(TRIES):
        try:
            return resolve(models.small(rng, kind)).spec
        except InvalidJob:  # its values do not go together
            continue
    raise AssertionError(f"no values of {kind} go together: see tests/cases/random_models.yaml")


def known(name: str, names: Iterable[str]) -> str | None:
    """The longest of our `names` that the path of a module or parameter ends with."""
    return max((own for own in names if f".{name}".endswith(f".{own}")), key=len, default=None)


def as_first(name: str) -> str:
    """Zamba 2's layers have adapters in a list, of which each runs its own: they are alike."""
    return re.sub(r"_list\.\d+\.", "_list.0.", name)


def in_stacks(model: nn.Module) -> list[str]:
    """Paths of the linear layers of a model's layers."""
    stacks = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    return [name for name in linears if any(name.startswith(f"{stack}.") for stack in stacks)]


@pytest.mark.share(4)
@pytest.mark.parametrize("kind", models.kinds())
def test_layers_are_in_order(kind: str) -> None:
    spec = small(kind)
    if spec.sees or spec.hears:
        pytest.skip("its parts have names in common; their order is held by their shapes")
    build = built(spec)
    with torch.device("meta"):
        model = AUTO[next(iter(heads(kind)))].from_config(config(spec, spec.attentions[0] if spec.attentions else "eager"))
    every = [p.name for p in build.parameters]  # what some layers share stands outside of them (Zamba 2)
    ours = list(dict.fromkeys(p.name for p in build.parameters if p.slot is not None))
    ours = ours or every  # all layers have one's parameters (ALBERT)
    theirs = [known(name, every) for name, _ in model.named_parameters()]
    in_theirs = [name for name in dict.fromkeys(theirs) if name in ours]
    assert in_theirs
    assert in_theirs == [name for name in ours if name in in_theirs]
    linears = [*build.linears, *build.bypassed, *spec.without_lora]
    assert not [name for name in in_stacks(model) if known(as_first(name), linears) is None]


@pytest.mark.share(4)
@pytest.mark.parametrize("kind", [kind for kind in models.kinds() if spec_class(kind).sees or spec_class(kind).hears])
def test_parts_are_in_order(kind: str) -> None:
    """In which an optimizer without foreach steps: what it makes for one parameter lives until it has as much for the next."""
    spec, head = small(kind), next(iter(heads(kind)))
    with torch.device("meta"):
        model = plain(spec, head, torch.bfloat16, "eager")
    ours = []
    for slot, parameters in groupby(built(spec, head).parameters, lambda p: p.slot):
        ours += [p.tensor.shape for p in parameters] * (1 if slot is None else slot.total)
    assert ours == [tuple(p.shape) for p in model.parameters()]
