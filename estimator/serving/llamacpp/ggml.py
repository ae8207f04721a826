"""ggml's tensors and graphs, and how large it plans the buffers of a graph.

After ggml/src/ggml.c (`ggml_build_forward_expand`) and ggml/src/ggml-alloc.c of llama.cpp: `ggml_gallocr_alloc_graph_impl`,
`ggml_dyn_tallocr_alloc` (the smallest free block that is large enough, or else the end) and `ggml_dyn_tallocr_free_bytes`. Before
anything runs, each node of the graph gets its place, in the order of the graph; a node may take that of a source which nothing
else needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

ENDLESS = 2**62
"""Bytes at the end of a buffer whose size is yet to be found."""
IN_PLACE = frozenset(
    {"add", "add_id", "sub", "mul", "div", "scale", "clamp", "fill", "unary", "sqr", "sqrt", "rope", "rms_norm", "soft_max"}
)
"""Operations that may write over a source (`ggml_op_can_inplace`)."""


class Tensor:
    """A tensor of a graph, computed by `op` from its sources.

    Attributes:
        shape: elements, the innermost dimension first.
        nbytes, gpu_bytes: what it takes in the host's memory, and in a GPU's.
        span: of a view with gaps, bytes from its first number to its last, which a copy of it takes.
        root: the tensor whose bytes it shows; None where it has its own.
        dense: whether it has no gaps, so that equal shapes are equal layouts.
        device: where it lies before the graph is planned: the number of a GPU, or the number of GPUs for the host. None: nowhere.
        weight: whether it is one of the model's.
        given: whether it is an input of the graph.
        kept: whether it is never freed.
        backend: what computes it; set by the scheduler.
    """

    __slots__ = (
        "backend",
        "dense",
        "device",
        "given",
        "gpu_bytes",
        "kept",
        "nbytes",
        "op",
        "root",
        "shape",
        "sources",
        "span",
        "weight",
    )

    def __init__(
        self,
        op: str,
        shape: tuple[int, ...],
        sources: Iterable[Tensor] = (),
        *,
        width: int = 4,
        root: Tensor | None = None,
        dense: bool = True,
        nbytes: int | None = None,
        span: int | None = None,
    ):
        self.op, self.shape, self.sources = op, shape, list(sources)
        self.root: Tensor | None = None if root is None else root.root or root
        self.dense = dense
        self.nbytes = self.gpu_bytes = prod(shape) * width if nbytes is None else nbytes
        self.span = span
        self.device: int | None = None
        self.backend: int | None = None
        self.weight = self.given = self.kept = False

    def copy(self) -> Tensor:
        """A tensor of its own with the same layout."""
        made = Tensor("none", self.shape, dense=self.dense, nbytes=self.span or self.nbytes)
        made.gpu_bytes = self.span or self.gpu_bytes
        return made


class Graph:
    """What is computed, in its order, and what is computed from."""

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leafs: list[Tensor] = []
        self._seen: set[Tensor] = set()

    def expand(self, tensor: Tensor) -> Tensor:
        """Add a tensor, after all that it is computed from."""
        if tensor not in self._seen:
            self._seen.add(tensor)
            for source in tensor.sources:
                self.expand(source)
            (self.leafs if tensor.op == "none" else self.nodes).append(tensor)
        return tensor


class Free:
    """The free blocks of a buffer by their places, and the end of what was ever taken."""

    def __init__(self, alignment: int):
        self.alignment = alignment
        self.blocks: list[list[int]] = [[0, ENDLESS]]
        self.most = 0

    def take(self, nbytes: int) -> int:
        """The place of a new tensor."""
        nbytes = self.aligned(nbytes)
        best = self.blocks[-1]
        least = ENDLESS
        for block in self.blocks[:-1]:
            if nbytes <= block[1] <= least:
                best, least = block, block[1]
        place = best[0]
        best[0] += nbytes
        best[1] -= nbytes
        if not best[1]:
            self.blocks.remove(best)
        self.most = max(self.most, place + nbytes)
        return place

    def give(self, place: int, nbytes: int) -> None:
        """Make a tensor's bytes free, joined with free ones beside them."""
        nbytes = self.aligned(nbytes)
        if not nbytes:
            return
        at = next(i for i, block in enumerate(self.blocks) if block[0] > place)
        self.blocks.insert(at, [place, nbytes])
        for left in (at, at - 1):
            if 0 <= left < len(self.blocks) - 1 and sum(self.blocks[left]) == self.blocks[left + 1][0]:
                self.blocks[left][1] += self.blocks[left + 1][1]
                del self.blocks[left + 1]

    def aligned(self, nbytes: int) -> int:
        """Bytes that it takes."""
        return -(-nbytes // self.alignment) * self.alignment


class Plan:
    """Places for the nodes of a graph, in buffers of so many bytes' alignment each; the last buffer is the host's."""

    def __init__(self, alignments: Sequence[int]):
        self.buffers = [Free(alignment) for alignment in alignments]
        self.host = len(alignments) - 1
        self.places: dict[Tensor, tuple[int, int]] = {}
        self.children: dict[Tensor, int] = {}
        self.views: dict[Tensor, int] = {}
        self.known: set[Tensor] = set()

    def planned(self, nodes: list[tuple[Tensor, int]], leafs: list[tuple[Tensor, int]]) -> list[int]:
        """Bytes of each buffer. Each node and each leaf comes with the number of its buffer."""
        children, views = self.children, self.views
        for leaf, buffer in leafs:
            self._place(leaf, buffer)
        for node, buffer in nodes:
            if node.root is not None and node.op != "none":
                views[node.root] = views.get(node.root, 0) + 1
            for source in node.sources:
                children[source] = children.get(source, 0) + 1
                if source.given:
                    self._place(source, buffer)
        for node, buffer in nodes:
            for source in node.sources:
                self._place(source, buffer)
            self._place(node, buffer)
            for source in node.sources:
                children[source] -= 1
                if not children[source] and not views.get(source):
                    self._drop(source)
        return [buffer.most for buffer in self.buffers]

    def _bytes(self, tensor: Tensor, buffer: int) -> int:
        return tensor.nbytes if buffer == self.host else tensor.gpu_bytes

    def _place(self, tensor: Tensor, buffer: int) -> None:
        if tensor in self.known or tensor.device is not None or tensor.root is not None:
            return
        self.known.add(tensor)
        taken = self._taken_over(tensor) if tensor.op in IN_PLACE else None
        if taken is None:
            self.places[tensor] = buffer, self.buffers[buffer].take(self._bytes(tensor, buffer))
            return
        found, place = self.places[tensor] = self.places.pop(taken)
        free = self.buffers[found]
        less = free.aligned(self._bytes(tensor, found))
        free.give(place + less, free.aligned(self._bytes(taken, found)) - less)

    def _taken_over(self, tensor: Tensor) -> Tensor | None:
        """What a node takes the place of: a source of its layout that nothing else needs. (A view has no place, and is none.)"""
        for source in tensor.sources:
            alike = source in self.places and not source.kept and source.dense and source.shape == tensor.shape
            if alike and self.children.get(source) == 1 and not self.views.get(source):
                return source
        return None

    def _drop(self, tensor: Tensor) -> None:
        """Free what nothing needs any more."""
        if tensor.root is not None:
            tensor = tensor.root
            self.views[tensor] = self.views.get(tensor, 0) - 1
            if self.views[tensor] or self.children.get(tensor):
                return
        if tensor in self.places and not tensor.kept:
            buffer, place = self.places.pop(tensor)
            self.buffers[buffer].give(place, self._bytes(tensor, buffer))
