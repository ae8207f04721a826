"""Experts that are parts of one tensor and are called one after the other, as models do that transformers has no kernels for.

After transformers' modeling_longcat_flash.py and modeling_dbrx.py (5.23). How many tokens an expert gets is data; here each gets
the same number, as in expert_loop.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from estimator.families.build import Builder
from estimator.families.expert_loop import EVEN
from estimator.families.mamba import scan_slots
from estimator.tape import dtypes
from estimator.tape.tensor import Tensor, alias, empty


@dataclass(frozen=True, slots=True)
class Group:
    """Experts in a row that do the same."""

    name: str
    count: int


class StackedLoop:
    """The experts of a layer; those between the first and the last of a group share a slot."""

    def __init__(self, build: Builder, groups: Sequence[Group]):
        self.tape, self.unrolled = build.tape, build.unrolled
        self.groups = [group for group in groups if group.count]
        self.experts = sum(group.count for group in groups)
        build.tape.remarks[EVEN] = None

    def each(self) -> Iterator[Group]:
        """The group of each expert, in its slot; at the end the layer's own slot again."""
        here = self.tape.slot
        for group in self.groups:
            for slot in scan_slots(group.name, group.count, here, self.unrolled):
                self.tape.enter(slot)
                yield group
        self.tape.enter(here)

    def masks(self, chosen: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Which tokens choose which of so many `classes`, [tokens, chosen, classes]; and which experts any does."""
        mask = empty(self.tape, (*chosen.shape, classes), dtypes.int64, "zeros")
        sums = empty(self.tape, (classes,), dtypes.int64, "sum")
        some = empty(self.tape, (classes,), dtypes.bool_, "gt")
        del sums
        hit = empty(self.tape, (self.experts, 1), dtypes.int64, "nonzero")
        del some
        return mask, hit

    def where(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """An expert's place among each of its tokens' choices, and these tokens: views of one tensor."""
        tokens, used = chosen.shape
        found = empty(self.tape, (-(-tokens * used // self.experts), 2), dtypes.int64, "nonzero")
        return alias(found, found.shape[:1], (2,)), alias(found, found.shape[:1], (2,))
