"""Modules of a layer that are recomputed by themselves, while the rest of the layer keeps what it saved.

A layer's modules have the names that they have in transformers; what attention does between its projections is no module there,
and is called `core_attention` (as `core_attn` in Megatron-LM, whose selective recomputation it is; megatron/core/transformer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from estimator.contract.errors import Contradiction
from estimator.families.attention import Attention
from estimator.tape.checkpoint import checkpoint
from estimator.tape.dtypes import int64
from estimator.tape.tensor import Tensor

CORE_ATTENTION = "core_attention"
ATTENTIONS = ("self_attn", "attn", "attention", "self_attention")
MODULES = (*ATTENTIONS, "mlp")
FIELD = "training.activation_checkpointing.modules"


def recomputing(layer: Any, names: tuple[str, ...]) -> Callable[..., Any]:
    """The layer with its modules of these names recomputed. Raises `InvalidJob` for a name that it has not."""
    shared: list[Tensor | None] = []
    found: dict[str, list[tuple[Any, str]]] = {}
    for owner, name, called in _modules(layer):
        found.setdefault(called, []).append((owner, name))
    missing = [name for name in names if name not in found]
    if missing:
        raise Contradiction(f"a layer of this model has no {' or '.join(missing)}; it has {', '.join(sorted(found))}", FIELD)
    if CORE_ATTENTION in names and any(name in names for name in ATTENTIONS):
        raise Contradiction("core_attention is a part of attention, which is recomputed as a whole: name one of them", FIELD)
    for called in names:
        for owner, name in found[called]:
            module = getattr(owner, name)
            setattr(owner, name, partial(checkpoint, module) if called == "mlp" else _Sharing(module, shared, called))

    def run(hidden: Tensor, *others: Tensor | None) -> Any:
        shared[:] = others
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

    Of that, what it hands on to its core are the tokens' positions.
    """

    def __init__(self, module: Callable[..., Any], shared: list[Tensor | None], called: str):
        self.module, self.shared, self.is_core = module, shared, called == CORE_ATTENTION

    def __call__(self, *args: Tensor | None, unread: Tensor | None = None) -> Any:
        given = [t for t in self.shared if not self.is_core or (t is not None and t.dtype is int64)]
        return checkpoint(_First(self.module, len(args)), *args, *given, unread)


class _First:
    """Calls a module with the first so many of its arguments."""

    def __init__(self, module: Callable[..., Any], count: int):
        self.module, self.count = module, count

    def __call__(self, *args: Tensor | None) -> Any:
        return self.module(*args[: self.count])
