"""Modules of a layer that are recomputed by themselves, while the rest of the layer keeps what it saved.

A layer's modules have the names that they have in transformers; what attention does between its projections is no module there,
and is called `core_attention` (as `core_attn` in Megatron-LM, whose selective recomputation it is; megatron/core/transformer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal

from estimator.contract.errors import Contradiction
from estimator.families.attention import Attention
from estimator.tape.checkpoint import checkpoint
from estimator.tape.dtypes import int64
from estimator.tape.tensor import Tensor

CORE_ATTENTION = "core_attention"
ATTENTIONS = ("self_attn", "attn", "attention", "self_attention")
MODULES = (*ATTENTIONS, "mlp")
Reach = Literal["layer", "attention", "core"]
"""How far the tokens' positions are handed in."""
FIELD = "training.activation_checkpointing.modules"


def recomputing(layer: Any, names: tuple[str, ...], inside: Iterable[str]) -> Callable[..., Any]:
    """The layer with its modules of these names recomputed. `inside`: names of what it has in transformers, with dots, since its
    mixer or its feed-forward block may be called otherwise there. Raises `InvalidJob` for a name that it has not."""
    shared: list[Any] = []
    found: dict[str, list[tuple[Any, str]]] = {}
    real = {part for name in inside for part in name.split(".")}
    for owner, name, called in _modules(layer):
        if called == CORE_ATTENTION or called in real:
            found.setdefault(called, []).append((owner, name))
    missing = [name for name in names if name not in found]
    if missing:
        others = (
            f"it has {', '.join(sorted(found))}" if found else "nothing of it is modelled as recomputed by itself: write full"
        )
        raise Contradiction(f"a layer of this model has no {' or '.join(missing)}; {others}", FIELD)
    if CORE_ATTENTION in names and any(name in names for name in ATTENTIONS):
        raise Contradiction("core_attention is a part of attention, which is recomputed as a whole: name one of them", FIELD)
    for called in names:
        for owner, name in found[called]:
            module = getattr(owner, name)
            reach: Any = getattr(owner if called == CORE_ATTENTION else module, "positions", "core")
            setattr(owner, name, partial(checkpoint, module) if called == "mlp" else _Sharing(module, shared, called, reach))

    own = getattr(layer, "own", 0)

    def run(hidden: Tensor, *others: Any) -> Any:
        shared[:] = others[: len(others) - own]
        out = layer(hidden, *others)
        shared.clear()
        return out

    return run


def _modules(layer: Any) -> Iterator[tuple[Any, str, str]]:
    """What of a layer can be recomputed: whose attribute it is, by what name, and what it is called."""
    for name, module in vars(layer).items():
        in_parts = name == "attention" and hasattr(layer, "attention_output")  # BERT's attention is these two
        if name in MODULES and callable(module) and not in_parts:
            yield layer, name, name
        if isinstance(getattr(module, "attend", None), Attention):
            yield module, "attend", CORE_ATTENTION


class _Sharing:
    """Attention, which is called with all that its layer is called with: what it does not read its checkpoint holds, too.

    Of that, what it hands on to its core are the tokens' positions. A module that these do not reach, or that keeps them from its
    core, says so: `positions`. A layer says how many of the last tensors are its `own`.
    """

    def __init__(self, module: Callable[..., Any], shared: list[Any], called: str, reach: Reach):
        self.module, self.shared, self.is_core, self.reach = module, shared, called == CORE_ATTENTION, reach

    def __call__(self, *args: Any, unread: Tensor | None = None) -> Any:
        given = [t for t in self.shared if _positions(t) and self.reach == "core"]
        if not self.is_core:
            given = [t for t in self.shared if not (_positions(t) and self.reach == "layer")]
        return checkpoint(_First(self.module, len(args)), *args, *given, unread)


def _positions(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.dtype is int64


class _First:
    """Calls a module with the first so many of its arguments."""

    def __init__(self, module: Callable[..., Any], count: int):
        self.module, self.count = module, count

    def __call__(self, *args: Tensor | None) -> Any:
        return self.module(*args[: self.count])
