"""How large ggml plans the buffer of a graph: tensors that are alive at once, in the places that its allocator finds for them.

After ggml/src/ggml-alloc.c of llama.cpp: `ggml_gallocr_alloc_graph_impl`, `ggml_dyn_tallocr_alloc` (the smallest free block that
is large enough, or else the end) and `ggml_dyn_tallocr_free_bytes`. Before anything runs, each node of the graph gets its place,
in the order of the graph; a node may take that of a parent which nothing else needs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

ENDLESS = 2**62
"""Bytes at the end of a buffer whose size is yet to be found."""
Kind = Literal["new", "in-place", "view"]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A tensor of so many bytes, computed from others: `new` of its own, `in-place` of a parent's bytes if it can be, or a `view`
    of its first source. Weights and caches, which lie elsewhere, are no sources."""

    nbytes: int
    sources: tuple[Node, ...] = ()
    kind: Kind = "new"
    elsewhere: bool = False
    """Whether it is a view of what lies elsewhere."""

    @property
    def viewed(self) -> Node | None:
        """The node whose bytes a view shows."""
        node = self
        while node.kind == "view" and not node.elsewhere:
            node = node.sources[0]
        return None if node is self else node


class Free:
    """The free blocks of a buffer by their places, and the end of what was ever taken."""

    def __init__(self, alignment: int):
        self.alignment = alignment
        self.blocks: list[list[int]] = [[0, ENDLESS]]
        self.most = 0

    def take(self, nbytes: int) -> int:
        """The place of a new tensor."""
        nbytes = self._aligned(nbytes)
        fits = [block for block in self.blocks[:-1] if block[1] >= nbytes]
        least = min((block[1] for block in fits), default=0)
        block = next((b for b in reversed(fits) if b[1] == least), self.blocks[-1])
        place = block[0]
        block[0] += nbytes
        block[1] -= nbytes
        if not block[1]:
            self.blocks.remove(block)
        self.most = max(self.most, place + nbytes)
        return place

    def give(self, place: int, nbytes: int) -> None:
        """Make a tensor's bytes free, joined with free ones beside them."""
        self.blocks = sorted([*self.blocks, [place, self._aligned(nbytes)]])
        joined = [self.blocks[0]]
        for block in self.blocks[1:]:
            if sum(joined[-1]) == block[0]:
                joined[-1][1] += block[1]
            else:
                joined.append(block)
        self.blocks = joined

    def _aligned(self, nbytes: int) -> int:
        return -(-nbytes // self.alignment) * self.alignment


def planned(nodes: list[Node], alignment: int, inputs: tuple[Node, ...] = ()) -> int:
    """Bytes of the buffer for a graph's nodes, in their order. `inputs` get their places before all of them."""
    free, places = Free(alignment), {}
    children = Counter(source for node in nodes for source in node.sources)
    views = Counter(node.viewed for node in nodes if node.viewed is not None)
    for given in inputs:
        places[given] = free.take(given.nbytes)
    for node in nodes:
        if node.kind == "view" or node in places:
            pass
        elif (parent := _replaced(node, children, views, places)) is not None:
            places[node] = places.pop(parent)
        else:
            places[node] = free.take(node.nbytes)
        for source in node.sources:
            children[source] -= 1
            _drop(source, children, views, places, free)
    return free.most


def _replaced(node: Node, children: Counter[Node], views: Counter[Node], places: dict[Node, int]) -> Node | None:
    """What a node takes the place of: a parent of its size that nothing else needs. (A view has no place, and is none.)"""
    if node.kind != "in-place":
        return None
    alone = (p for p in node.sources if p in places and p.nbytes == node.nbytes and children[p] == 1 and not views[p])
    return next(alone, None)


def _drop(node: Node, children: Counter[Node], views: Counter[Node], places: dict[Node, int], free: Free) -> None:
    """Free what nothing needs any more."""
    if children[node] or views[node]:
        return
    viewed = node.viewed
    if viewed is not None:
        views[viewed] -= 1
        if views[viewed] or children[viewed]:
            return
        node = viewed
    if node in places:
        free.give(places.pop(node), node.nbytes)
