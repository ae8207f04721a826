"""Which layers of a model are alike, and the model with some of them only."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import nn

NAMES = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
"""What models and configs call the number of layers."""
ENOUGH = 0.8
"""Share of a model's layers from which on it is no less work to run all of them."""


class Repeat(NamedTuple):
    """Layers in which a unit of `length` layers comes `units` times, between `before` and `after` others."""

    before: int
    length: int
    units: int
    after: int

    @property
    def layers(self) -> int:
        return self.before + self.length * self.units + self.after

    def kept(self, units: int) -> tuple[int, ...]:
        """The layers of a model that has so many of the units."""
        return *range(self.before + units * self.length), *range(self.layers - self.after, self.layers)

    @property
    def work(self) -> int:
        """Layers that are run where two, three and four units are."""
        return 9 * self.length + 3 * (self.before + self.after)


def repeat(model: nn.Module) -> Repeat | None:
    """How a model's layers repeat; None where it takes no fewer layers to run them all, or none are found."""
    kinds = layer_kinds(model)
    found = _repeats(kinds)
    best = min(found, key=lambda one: one.work, default=None)
    return best if best and best.work < ENOUGH * len(kinds) else None


def _repeats(kinds: Sequence[Hashable]) -> Iterator[Repeat]:
    count = len(kinds)
    for length in range(1, count // 5 + 1):
        for before in range(count - 5 * length + 1):
            same = before + length
            while same < count and kinds[same] == kinds[same - length]:
                same += 1
            units = (same - before) // length
            if units > 4:
                yield Repeat(before, length, units, count - before - units * length)


def depth(model: Any) -> int:
    """How many layers the model's config says that it has; none where it does not say."""
    config = model.config.get_text_config()
    return getattr(config, "num_hidden_layers", 0) or 0


def layer_kinds(model: Any) -> list[Hashable]:
    """What each layer is, as far as anything that has no number in it can differ: modules, parameters, settings."""
    count = depth(model)
    stacks = _stacks(model, count)
    listed = [value for holder in _holders(model) for value in vars(holder).values() if _long(value, count)]
    return [
        (*(_kind(stack[i]) for stack in stacks), *(repr(values[i]) for values in listed)) for i in range(count if stacks else 0)
    ]


def _stacks(model: nn.Module, count: int) -> list[nn.ModuleList]:
    return [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count > 1]


def _kind(layer: nn.Module) -> Hashable:
    modules = tuple((name, type(m).__qualname__, _settings(m)) for name, m in layer.named_modules())
    tensors = [*layer.named_parameters(), *layer.named_buffers()]
    return modules, tuple((name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in tensors)


def _settings(module: nn.Module) -> Hashable:
    """A module's own plain values: of numbers with a fraction, whether they are any, and none that says which layer it is."""
    plain = ((name, value) for name, value in sorted(vars(module).items()) if "idx" not in name and "index" not in name)
    return tuple(
        (name, bool(value) if isinstance(value, float) else repr(value))
        for name, value in plain
        if value is None or isinstance(value, bool | int | float | str | list | tuple)
    )


def _holders(model: nn.Module) -> list[Any]:
    """Configs and modules that may say something of each layer."""
    modules = [m for m in model.modules() if not isinstance(m, nn.ModuleList)]
    configs = {id(c): c for m in modules if hasattr(c := getattr(m, "config", None), "to_dict")}
    parts = [getattr(c, name) for c in configs.values() for name in getattr(c, "sub_configs", ())]
    return [*{id(c): c for c in (*configs.values(), *parts) if c is not None}.values(), *modules]


def _long(value: Any, count: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == count


def keep(model: Any, layers: Sequence[int]) -> None:
    """Leave a model with these of its layers only: where something is said of each layer, or of how many there are, too."""
    count = depth(model)
    stacks = _stacks(model, count)
    inside = {id(m) for stack in stacks for m in stack.modules()}
    for holder in _holders(model):
        if id(holder) in inside:
            continue
        for name, value in list(vars(holder).items()):
            if _long(value, count):
                vars(holder)[name] = type(value)(value[i] for i in layers)
            elif value == count and name in _names(holder):
                vars(holder)[name] = len(layers)
    for stack in stacks:
        stack._modules = {str(new): stack[old] for new, old in enumerate(layers)}
        for new, layer in enumerate(stack):
            for module in layer.modules():
                if vars(module).get("layer_idx") == layers[new]:
                    vars(module)["layer_idx"] = new


def _names(holder: Any) -> tuple[str, ...]:
    """What a config or a module calls the number of its layers."""
    return *NAMES, getattr(holder, "attribute_map", {}).get("num_hidden_layers", "")
