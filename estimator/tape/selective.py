"""Selective checkpointing: a segment is run again in backward, but the results of some of its operations are kept.

After `create_selective_checkpoint_contexts` of torch/utils/checkpoint.py (2.13): the first run puts aside the results of what its
policy names, by operation and by how often that has run; the second run takes each from there once, instead of computing it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from estimator.contract.errors import Contradiction
from estimator.tape.autograd import keep
from estimator.tape.tensor import Tensor

if TYPE_CHECKING:
    from estimator.tape.tape import Tape

Made = TypeVar("Made", bound="Tensor | tuple[Tensor, ...]")
Policy = Callable[[str, int], bool]
"""Whether the result of an operation's n-th run in a segment (from 0) is kept."""
Store = dict[tuple[str, int], tuple[Tensor, ...]]

PRODUCTS = frozenset({"mm", "addmm", "bmm", "convolution"})
ATTENTION = frozenset({"flash_attention", "efficient_attention"})


def made(tape: Tape, operation: str, make: Callable[[], Made]) -> Made:
    """What an operation makes, which a selective checkpoint may keep, or have kept."""
    return make() if tape.selection is None else tape.selection.result(operation, make)


def every_second_product(operation: str, number: int) -> bool:
    """torchtitan's `SelectiveAC` (0.3, distributed/activation_checkpoint.py): attention and products, but of `mm` every second.

    Also what chooses a mixture's experts, and cuDNN's attention.
    """
    if operation == "mm":
        return number % 2 == 0
    return operation in PRODUCTS or operation in ATTENTION or operation in ("cudnn_attention", "topk")


def every_second_mm(operation: str, number: int) -> bool:
    """What torchtitan 0.2.2 keeps of a layer (models/llama3/infra/parallelize.py, `_op_sac_save_list`): every second `mm` and
    no other products, attention, and what ranks have summed up and scattered."""
    return number % 2 == 0 if operation == "mm" else operation in ATTENTION or operation in ("cudnn_attention", "reduce_scatter")


def all_products(operation: str, number: int) -> bool:
    """All that takes long: attention and every product (torch/_functorch/partitioners.py, `compute_intensive_ops`)."""
    return operation in PRODUCTS or operation in ATTENTION or operation == "cudnn_attention"


def attention_alone(operation: str, number: int) -> bool:
    """The results of attention's kernels."""
    return operation in ATTENTION or operation == "cudnn_attention"


TORCHTITAN_02 = "torchtitan-0.2"
"""What torchtitan's own modules are recomputed by."""
POLICIES: dict[str, Policy] = {
    "torchtitan": every_second_product,
    TORCHTITAN_02: every_second_mm,
    "products": all_products,
    "attention": attention_alone,
}
"""By the name in a job's `operations`, but for the former."""


class Caching:
    """The first run: computes everything, and puts some of it aside in `store`."""

    def __init__(self, policy: Policy, store: Store):
        self.policy, self.store = policy, store
        self.runs: Counter[str] = Counter()

    def result(self, operation: str, make: Callable[[], Made]) -> Made:
        out, number = make(), self.runs[operation]
        self.runs[operation] += 1
        if self.policy(operation, number):
            tensors = (out,) if isinstance(out, Tensor) else out
            for t in tensors:
                keep(t)
            self.store[operation, number] = tuple([t.detach() for t in tensors])
        return out

    def changes(self, x: Tensor, what: str) -> None:
        """An operation is about to write over `x`, which is `what`. Raises `InvalidJob` where that is kept, as torch does
        (`_VersionWrapper`)."""
        if any(t.storage is x.storage for tensors in self.store.values() for t in tensors):
            raise Contradiction(
                f"torch refuses to keep what is then changed in place, {what}", "training.activation_checkpointing"
            )


class Cached:
    """The second run: takes from `store` what is there, and computes the rest."""

    def __init__(self, store: Store):
        self.store = store
        self.runs: Counter[str] = Counter()

    def changes(self, x: Tensor, what: str) -> None:
        """What was kept is not written over, or the first run had been refused."""

    def result(self, operation: str, make: Callable[[], Made]) -> Made:
        kept = self.store.pop((operation, self.runs[operation]), None)
        self.runs[operation] += 1
        if kept is None:
            return make()
        return kept if len(kept) > 1 else kept[0]  # type: ignore[return-value]
