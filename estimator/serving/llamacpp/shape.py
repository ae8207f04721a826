"""What llama.cpp's graph asks of a model and of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Batch:
    """`tokens` of a batch, of which `outputs` get logits, beside a cache of `cells`; `flash`: with flash attention.

    `turned_keys`, `turned_values`: in how many numbers at a time they are turned before they are cached (by Hadamard matrices,
    where the cache has blocks); 0: not at all. `unpacked_keys`, `unpacked_values`: whether they are not in float16, which GPUs'
    flash attention makes of them.
    """

    tokens: int
    outputs: int
    cells: int
    flash: bool
    window_cells: int = 0
    """Of the cache of layers with a sliding window."""
    key_bytes: int = 0
    value_bytes: int = 0
    """Of a token's keys and values in a layer's cache."""
    streams: int = 1
    """Caches of their own; one that all sequences share is one."""
    sequences: int = 1
    """Of a batch, each with equally many tokens."""
    turned_keys: int = 0
    turned_values: int = 0
    unpacked_keys: bool = False
    unpacked_values: bool = False
    index_bytes: int = 0
    """Of a token's key in an indexer's cache."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Latent attention: ranks of the compressed queries (0: they are not compressed) and of keys with values, and the parts of a
    head of keys."""

    queries: int
    rank: int
    plain: int
    rotary: int


@dataclass(frozen=True, slots=True)
class Indexer:
    """What picks the keys that a token attends to: how many (`picked`), by so many heads of a size. `layers`: which have one;
    the others take what was picked before."""

    heads: int
    size: int
    picked: int
    layers: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture: how many there are and are used, how wide, and how they are chosen.

    `softmax`: over the scores of all experts, of the chosen ones only, or none, but a sigmoid. `shared`: width of the experts
    that every token passes, together; `shared_gate`: what makes their gate. `groups`, of which `best_groups` are looked at: 0
    where there are none. `latent`: width of what experts get and give, where that is not the model's. `by_scores`: whether they
    are chosen by scores before the sigmoid; `weighed_first`: whether what they get is weighed, and not what they give.
    """

    count: int
    used: int
    wide: int
    sparse: tuple[bool, ...]
    softmax: Literal["of all", "of the chosen", "none"] = "of all"
    normalized: bool = True
    scaled: bool = False
    biased: bool = False
    selection_bias: bool = False
    shared: int = 0
    shared_gate: Literal["sigmoid", "silu"] | None = None
    groups: int = 0
    best_groups: int = 0
    latent: int = 0
    by_scores: bool = False
    weighed_first: bool = False


@dataclass(frozen=True, slots=True)
class Sharing:
    """Layers that see everything, where others have windows: heads of keys and their size. `values_of_keys`: whether they make
    values of what they make keys of. `kept`: of each layer the one whose cache it reads, itself or an earlier one. `per_layer`:
    numbers that each layer gets of each token beside hidden states. `wide`: of each layer's feed-forward layer; `sparse`: whether
    that lets its largest values alone through."""

    key_heads: int
    head: int
    values_of_keys: bool
    kept: tuple[int, ...]
    per_layer: int
    wide: tuple[int, ...]
    sparse: tuple[bool, ...]

    def alike(self, layer: int) -> tuple[bool, int, bool]:
        """What layers have in common whose passes are the same."""
        return self.kept[layer] == layer, self.wide[layer], self.sparse[layer]

    def of(self, layers: list[int], sliding: tuple[bool, ...]) -> Sharing:
        """With some of the layers, in their order, each of which reads its own cache or the last before it of its kind;
        `sliding` says of all layers which have a window."""
        kept: list[int] = []
        for place, layer in enumerate(layers):
            before = [p for p in range(place) if kept[p] == p and sliding[layers[p]] == sliding[layer]]
            kept.append(place if self.kept[layer] == layer else before[-1])
        wide, sparse = tuple([self.wide[layer] for layer in layers]), tuple([self.sparse[layer] for layer in layers])
        return replace(self, kept=tuple(kept), wide=wide, sparse=sparse)


ALIKE = 4
"""Layers that do the same after which a plan repeats itself."""
Mixer = Literal["attention", "delta net", "kimi delta", "mamba-1", "mamba-2", "convolution", "both", "none"]
"""What a layer has before its feed-forward layer; `both` are attention and Mamba-2, side by side."""


@dataclass(frozen=True, slots=True)
class State:
    """What layers without attention keep: sizes of a mixer.

    `inner`: numbers of all its heads, each of which has `size` in the state; `groups`: heads of keys; `kernel`: tokens that the
    convolution sees, of `convolved` numbers each. `rank`: of Mamba's steps. `normed`: whether Mamba-2 normalises what it gives,
    or Mamba what its scan gets, and whether weights follow. `joined_gates`: whether one matrix makes both gates of a delta net.
    """

    kernel: int
    convolved: int
    inner: int = 0
    size: int = 0
    heads: int = 1
    groups: int = 1
    rank: int = 0
    normed: bool | Literal["without weights"] = True
    joined_gates: bool = False

    @property
    def numbers(self) -> int:
        """Of one sequence's state, the convolution's apart."""
        return self.inner * self.size

    @property
    def nbytes(self) -> int:
        """Of one sequence in one layer."""
        return 4 * ((self.kernel - 1) * self.convolved + self.numbers)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph asks of a model: sizes in numbers of one token, and what is special in its layers.

    Attributes:
        values: numbers of a token's values in the cache, of the layer with most; `values_wide`: of a head's, after attention.
        whole_keys: heads of keys in layers that see everything, where others have more; 0 where they have as many.
        biased, output_bias, feed_bias: whether queries, keys and values have biases, attention's output, the feed-forward layer.
        normed: whether queries and keys are normalised, by heads or as a whole.
        joined, joined_feed: whether one matrix makes queries, keys and values, and one the feed-forward layer's gate and input.
        gated: whether the feed-forward layer has a gate; else `activation` names what it has.
        normed_late: whether that happens after they were turned by their positions.
        pre_norms, post_norms: whether each half of a layer is normalised before it, and after it (Gemma).
        fed_norm: what the norm before the feed-forward layer is called.
        parallel: whether both halves of a layer read the same, and in which order they are added; or each by a norm of its own.
        clipped: whether queries, keys and values are kept within a limit.
        second_norm: whether attention reads what a norm of its own makes.
        norm_weight: whether norms multiply with anything. `normed_embedding`: whether embeddings are normalised.
        scaled_embedding: whether embeddings are multiplied by a number, or by one of each token (images are not multiplied).
        learned_positions: whether positions are looked up, and added to embeddings. `logits_bias`: whether logits have a bias.
        scaled_output: whether hidden states are multiplied by a number before that.
        unfolded: a latent of which keys and values are made before they are cached.
        residual_first: whether the residual stands first in the layer's last sum, or in both.
        cut: from where on the graph has the chosen tokens only.
        capped_scores, after_logits: operations on attention's scores, where flash attention does not have them, and on logits.
        sliding: which layers have a sliding window; none is said if none has.
        rotary: which layers turn queries and keys by their positions.
        positions: numbers that say where a token is.
        tempered: which queries are scaled by their positions: of all layers, of those that do not turn them, or of a latent.
        normed_bare: whether queries and keys that are turned are normalised then, without weights.
        deepstack: first layers after each of which something of the images is added.
        mixers: of each layer; empty where all are attention. `state`: what those that are not keep.
        alone: whether a layer is a mixer or a feed-forward layer, not one before the other.
        normed_first: whether a layer's first norm is computed before all else of it.
        gate_beside: whether that gate is a product of its own. `post_norm_first`: whether what attention gave is normalised
            before the chosen tokens are taken.
        gated_queries: whether queries come with a gate of what attention gives.
        sharing: what layers that see everything have of their own.
        thinned: of each layer whether it attends, and the width of its feed-forward layer, 0 without one; empty where all do.
        streams: of hidden states, of which each layer sees one (Gemma 3n). `bypass`: width of what is beside its attention.
        encodes: whether tokens see each other in both directions, and nothing is cached. `typed`: whether a type of tokens is
            added to embeddings. `first_unnormed`: whether the first layer has no norm before it.
    """

    hidden: int
    head: int
    heads: int
    key_heads: int
    values: int
    values_wide: int
    wide: int
    vocabulary: int
    layers: int
    rotary: tuple[bool, ...]
    whole_keys: int = 0
    biased: bool = False
    output_bias: bool = False
    feed_bias: bool = False
    normed: Literal["heads", "whole"] | None = None
    joined: bool = False
    joined_feed: bool = False
    gated: bool = True
    activation: tuple[str, ...] = ()
    layer_norm: bool = False
    norm_bias: bool = False
    norm_weight: bool = True
    clipped: bool = False
    second_norm: bool = False
    normed_embedding: bool = False
    learned_positions: bool = False
    logits_bias: bool = False
    scaled_output: bool = False
    normed_late: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    fed_norm: str = "ffn_norm"
    parallel: Literal["attention first", "feed-forward first", "residual second", "normed apart"] | None = None
    residual_first: Literal["last", "both"] | None = None
    scaled_embedding: bool | Literal["by token"] = False
    scaled_queries: bool = False
    scaled_residual: bool = False
    cut: Literal["in the last layer", "before the norm", "after the norm"] = "in the last layer"
    sinks: bool = False
    capped_scores: tuple[str, ...] = ()
    after_logits: tuple[str, ...] = ()
    sliding: tuple[bool, ...] = ()
    positions: int = 1
    tempered: Literal["all", "unturned", "latent"] | None = None
    normed_bare: bool = False
    deepstack: int = 0
    experts: Experts | None = None
    latent: Latent | None = None
    unfolded: Latent | None = None
    indexer: Indexer | None = None
    mixers: tuple[Mixer, ...] = ()
    state: State | None = None
    alone: bool = False
    normed_first: bool = False
    gated_queries: bool = False
    gate_beside: bool = False
    post_norm_first: bool = False
    sharing: Sharing | None = None
    thinned: tuple[tuple[bool, int], ...] = ()
    streams: int = 1
    bypass: int = 0
    encodes: bool = False
    typed: bool = False
    first_unnormed: bool = False

    def shortened(self) -> Shape:
        """With `ALIKE` of the layers at the end that do the same, which take turns in the same places of a buffer."""
        first = self.layers - 1
        while first > self.deepstack and self.kind(first - 1) == self.kind(self.layers - 1):
            first -= 1
        if self.sharing or self.indexer or self.thinned or self.layers - first <= ALIKE:
            return self
        kept = first + ALIKE
        experts = self.experts and replace(self.experts, sparse=self.experts.sparse[:kept])
        return replace(
            self,
            layers=kept,
            experts=experts,
            rotary=self.rotary[:kept],
            sliding=self.sliding[:kept],
            mixers=self.mixers[:kept],
        )

    def kind(self, layer: int) -> tuple[object, ...]:
        """What layers that compute the same have alike."""
        sparse, slides = self.experts and self.experts.sparse[layer], bool(self.sliding) and self.sliding[layer]
        sharing, indexed = self.sharing and self.sharing.alike(layer), self.indexer and self.indexer.layers[layer]
        return self.rotary[layer], sparse, slides, self.mixer(layer), sharing, indexed, self.thinned and self.thinned[layer]

    def mixer(self, layer: int) -> Mixer:
        """What a layer has before its feed-forward layer."""
        return self.mixers[layer] if self.mixers else "attention"
