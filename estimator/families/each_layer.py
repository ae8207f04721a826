"""Lists of a configuration that name what each layer is."""

from __future__ import annotations

from collections.abc import Collection


def check_each_named(kinds: Collection[object] | None, layers: int, name: str = "layer_types") -> None:
    """Raise ValueError where a list of what each layer is has not as many as there are layers; without a list nothing is said."""
    if kinds is not None and len(kinds) != layers:
        raise ValueError(f"{name} names {len(kinds)} layers, num_hidden_layers is {layers}")
