"""The graph that llama.cpp computes for a batch: which tensors, in which order, each from which.

After llama.cpp's src/models/llama.cpp, qwen2.cpp, qwen3.cpp and gemma3.cpp, src/llama-graph.cpp (`build_attn`, `build_attn_mha`,
`build_ffn`) and src/llama-kv-cache.cpp (`cpy_k`, `cpy_v`), for a whole cache and a full batch (`graph_reserve`,
src/llama-context.cpp), as of October 2026. Numbers are float32, places of the cache int64, all other numbers of inputs int32.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.serving.llamacpp.ggml import Kind, Node, planned

FLOAT, PLACE, NUMBER = 4, 8, 4
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """`tokens` of a batch, of which `outputs` get logits, beside a cache of `cells`; `flash`: with flash attention.

    `turned_keys`, `turned_values`: in how many numbers at a time they are turned before they are cached (by Hadamard matrices,
    where the cache has blocks); 0: not at all.
    """

    tokens: int
    outputs: int
    cells: int
    flash: bool
    window_cells: int = 0
    """Of the cache of layers with a sliding window."""
    turned_keys: int = 0
    turned_values: int = 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a graph asks of a model: numbers of one token, and how many layers."""

    hidden: int
    queries: int
    keys: int
    values: int
    heads: int
    wide: int
    vocabulary: int
    layers: int
    biased: bool = False
    normed: bool = False
    sliding: tuple[bool, ...] = ()
    """Which layers have a sliding window; none is said if none has."""
    gemma: bool = False
    """Whether the layers are Gemma's: norms after each half, queries and embedded tokens scaled."""


def compute_bytes(sizes: Sizes, batch: Batch, on_gpu: bool, alignment: int) -> int:
    """The buffer of a graph: that of a GPU which has all layers, or of a CPU that has all."""
    inputs = _Inputs(sizes, batch)
    given, looked_up, joined = _embedding(sizes, batch)
    if not on_gpu:
        nodes = [*looked_up, *joined, *_nodes(sizes, batch, inputs, looked_up[0])]
        return planned(nodes, alignment, (*given, *inputs.all))
    embedded, some = (Node(node.nbytes) for node in looked_up)  # copies of what comes from the CPU, as the GPU's part begins
    states, places = given[-2:]
    others = Node(states.nbytes, (states,))
    nodes = [states, some, places, embedded, *inputs.all, others, Node(others.nbytes, (others, some, places), "view")]
    return planned([*nodes, *_nodes(sizes, batch, inputs, embedded)], alignment)


def host_bytes(sizes: Sizes, batch: Batch, alignment: int) -> int:
    """The buffer that stays in the host's memory where a GPU has all layers: the embedded tokens and all inputs."""
    given, looked_up, _ = _embedding(sizes, batch)
    kept = [Node(0, tuple(looked_up), "view", elsewhere=True)]  # both live until they are copied
    return planned([*looked_up, *kept], alignment, (*given, *_Inputs(sizes, batch).all))


def _embedding(sizes: Sizes, batch: Batch) -> tuple[tuple[Node, ...], list[Node], list[Node]]:
    """Inputs and nodes before the layers: what is looked up in the token embedding, of which the first is what the layers get,
    and what the other is joined with.

    `build_inp_embd` has tokens, and also hidden states, and both mixed, whether they are used or not.
    """
    size = sizes.hidden * batch.tokens * FLOAT
    ids, states, mixed_ids, mixed_states = (Node(nbytes) for nbytes in (batch.tokens * NUMBER, size) * 2)
    places = Node(batch.tokens * PLACE)
    embedded, some, others = Node(size, (ids,)), Node(size, (mixed_ids,)), Node(size, (mixed_states,))
    joined = Node(size, (others, some, places), "view")
    return (ids, states, mixed_ids, mixed_states, places), [embedded, some], [others, joined]


class _Inputs:
    """What a graph is given beside tokens: positions, the mask, where keys and values go, and which tokens get logits."""

    def __init__(self, sizes: Sizes, batch: Batch):
        self.positions = Node(batch.tokens * NUMBER)
        self.whole = _Cached(sizes, batch, batch.cells)
        self.sliding = _Cached(sizes, batch, batch.window_cells) if any(sizes.sliding) else None
        self.outputs = Node(batch.outputs * NUMBER)

    @property
    def all(self) -> tuple[Node, ...]:
        caches = [self.whole, *([self.sliding] if self.sliding else [])]
        return self.positions, *[node for cache in caches for node in cache.all], self.outputs


class _Cached:
    """What goes with one cache: where keys and values go, the mask, and what turns both."""

    def __init__(self, sizes: Sizes, batch: Batch, cells: int):
        self.cells = cells
        self.key_places = Node(batch.tokens * PLACE)
        self.value_places = Node(batch.tokens * PLACE * (1 if batch.flash else sizes.values))
        self.mask = Node(batch.tokens * cells * (2 if batch.flash else FLOAT))
        self.turns_keys = Node(batch.turned_keys**2 * FLOAT)
        self.turns_values = Node(batch.turned_values**2 * FLOAT)

    @property
    def all(self) -> tuple[Node, ...]:
        turns = [node for node in (self.turns_keys, self.turns_values) if node.nbytes]
        return self.key_places, self.value_places, self.mask, *turns


def _nodes(sizes: Sizes, batch: Batch, inputs: _Inputs, embedded: Node) -> list[Node]:
    """The nodes of all layers, and of the logits."""
    made: list[Node] = []

    def node(numbers: int, *sources: Node, kind: Kind = "new", elsewhere: bool = False) -> Node:
        made.append(Node(numbers * FLOAT, sources, kind, elsewhere))
        return made[-1]

    def normed(x: Node, numbers: int) -> Node:
        return node(numbers, node(numbers, x, kind="in-place"), kind="in-place")

    def projected(x: Node, width: int, rotated: bool) -> Node:
        size = width * tokens
        out = node(size, x)
        if sizes.biased:
            out = node(size, out, kind="in-place")
        out = node(size, out, kind="view")
        if not rotated:
            return out
        if sizes.normed:
            out = normed(out, size)
        return node(size, out, inputs.positions, kind="in-place")

    def turned(x: Node, width: int, by: Node) -> Node:
        if not by.nbytes:
            return x
        size = width * tokens
        return node(size, node(size, by, node(size, x, kind="view")), kind="view")

    tokens, hidden = batch.tokens, embedded
    if sizes.gemma:
        hidden = node(sizes.hidden * tokens, hidden, kind="in-place")
    for layer in range(sizes.layers):
        cache = inputs.sliding if inputs.sliding and sizes.sliding[layer] else inputs.whole
        before = normed(hidden, sizes.hidden * tokens)
        q = projected(before, sizes.queries, rotated=True)
        if sizes.gemma:
            q = node(sizes.queries * tokens, q, kind="in-place")
        q = turned(q, sizes.queries, cache.turns_keys)
        if inputs.sliding:  # the order in which the graph of two caches has them
            k = turned(projected(before, sizes.keys, rotated=True), sizes.keys, cache.turns_keys)
            v = turned(projected(before, sizes.values, rotated=False), sizes.values, cache.turns_values)
        else:
            v = turned(projected(before, sizes.values, rotated=False), sizes.values, cache.turns_values)
            k = turned(projected(before, sizes.keys, rotated=True), sizes.keys, cache.turns_keys)
        k = node(sizes.keys * tokens, k, kind="view")
        node(0, k, cache.key_places, kind="view", elsewhere=True)
        v = node(sizes.values * tokens, v, kind="view")
        node(0, v, cache.value_places, kind="view", elsewhere=True)
        q = node(sizes.queries * tokens, q, kind="view")
        if batch.flash:
            out = node(sizes.queries * tokens, q, cache.mask)
            out = node(sizes.queries * tokens, out, kind="view")
        else:
            scores = node(cache.cells * tokens * sizes.heads, q)
            chances = node(cache.cells * tokens * sizes.heads, scores, cache.mask, kind="in-place")
            out = node(sizes.queries * tokens, chances)
            out = node(sizes.queries * tokens, out, kind="view")
            out = node(sizes.queries * tokens, out)
        out = turned(out, sizes.queries, cache.turns_values)
        out, residual = node(sizes.hidden * tokens, out), hidden
        if layer == sizes.layers - 1:
            tokens = batch.outputs
            out, residual = (node(sizes.hidden * tokens, t, inputs.outputs) for t in (out, residual))
        if sizes.gemma:
            out = normed(out, sizes.hidden * tokens)
        attended = node(sizes.hidden * tokens, out, residual, kind="in-place")
        before = normed(attended, sizes.hidden * tokens)
        gate, up = (node(sizes.wide * tokens, before) for _ in range(2))
        fed = node(sizes.hidden * tokens, node(sizes.wide * tokens, gate, up))
        if sizes.gemma:
            fed = normed(fed, sizes.hidden * tokens)
        hidden = node(sizes.hidden * tokens, fed, attended, kind="in-place")
    node(sizes.vocabulary * tokens, normed(hidden, sizes.hidden * tokens))
    return made
