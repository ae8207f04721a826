"""How vLLM shares out the memory of its cache: layers in groups, pages of one size, blocks, and how many requests they hold.

After v1/core/kv_cache_planning.py (`get_kv_cache_groups`, `unify_kv_cache_spec_page_size`,
`_get_kv_cache_groups_uniform_page_size`, `_max_memory_usage_bytes_from_groups`, `_estimate_max_model_len_from_groups`),
v1/kv_cache_interface.py and platforms/interface.py (`_align_hybrid_block_size`) of 0.33; where older releases differ, it says so.

A page is what one layer keeps of one block of tokens. Layers that keep alike are cut into groups of equally many; a block of the
pool is a page of every layer of a group, whichever group takes it:

    blocks = bytes // (layers of a group x page),  concurrency = blocks / sum over groups of the blocks of one request
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from estimator.families.cache_layers import CacheLayer, indexer_bytes

BLOCK = 16
"""Tokens of a block, unless more are asked for or states of fixed size need more."""
LATENT_BLOCK = 64
"""That of latent attention: its kernels' own on Hopper and Blackwell (platforms/cuda.py)."""
CHOSEN_BLOCK = 128
"""That of keys and values of which an indexer picks blocks of as many tokens (models/minimax_m3/common/sparse_attention.py)."""
STATES_BESIDE_LATENTS = 128
"""What a block of latent attention is a multiple of where states lie beside it (`_align_hybrid_block_size`)."""
FLOAT32 = 4
"""Bytes of a number of a state that is in float32."""
SCALED_LATENT = 656
"""Bytes of a token's latent in FP8 that an indexer chooses from, but on Blackwell: scales beside it, and what is rotated in 16
bits (layers/attention/mla_attention.py, `fp8_ds_mla`)."""
FULL = {"full", "latent", "indexer"}
"""What keeps every token: where nothing else is kept, all layers are in one group, however wide each is
(`_get_kv_cache_groups_uniform_type`)."""
NEARLY = 1.5
"""How much longer the longest group may be than the shortest before groups are cut to the shortest."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What one layer keeps on one rank: `page` bytes for each block of `block` tokens."""

    kind: str
    block: int
    page: int
    tokens: int | None = None
    guessed: int = 0
    """Of states, tokens that are guessed ahead: there is a state after each, since any may be the last that is right."""
    over: int = 1
    """Ranks over which the tokens of a request are spread."""

    def blocks(self, length: int, in_flight: int) -> int:
        """Blocks of one request of `length` tokens, of which passes that are not settled have `in_flight`."""
        if self.kind == "state":
            return 1 + self.guessed
        if self.kind == "window":
            assert self.tokens is not None
            return _up(min(self.tokens - 1 + in_flight, length), self.block) + 1
        if self.kind == "chunk":
            assert self.tokens is not None
            return _up(min(self.tokens + in_flight, length), self.block)
        return _up(self.tokens or 1 if self.kind == "cross" else _up(length, self.over), self.block)


@dataclass(frozen=True, slots=True)
class Groups:
    """All layers, as groups of `size` layers with one page size: what each group's layers keep."""

    kinds: tuple[Kept, ...]
    size: int
    padding: int
    """Layers that groups are filled up by."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool."""
        return self.size * max((kind.page for kind in self.kinds), default=0)

    @property
    def growing(self) -> tuple[Kept, ...]:
        """The kinds that count for the bytes of a token: but for states all, and of packed groups those that keep every token."""
        if len({kind.page for kind in self.kinds}) > 1:
            return tuple(kind for kind in self.kinds if kind.kind == "full")
        return tuple(kind for kind in self.kinds if kind.kind != "state")

    def request_blocks(self, length: int, in_flight: int) -> int:
        """Blocks that one request of `length` tokens takes of the pool, from all groups."""
        return sum(kind.blocks(length, in_flight) for kind in self.kinds)

    def longest(self, blocks: int, most: int, in_flight: int) -> int:
        """The longest request, of up to `most` tokens, that so many blocks hold; 0 if they hold none."""
        if not self.kinds or self.request_blocks(1, in_flight) > blocks:
            return 0 if self.kinds else most
        least, above = 1, most + 1
        while above - least > 1:
            middle = (least + above) // 2
            if self.request_blocks(middle, in_flight) <= blocks:
                least = middle
            else:
                above = middle
        return least


def kept(
    layers: tuple[CacheLayer, ...],
    tensor: int,
    cached: int,
    plain: int,
    block: int | None = None,
    guessed: int = 0,
    scaled: bool = False,
    over: int = 1,
) -> list[Kept]:
    """What layers keep on one of `tensor` ranks, in numbers of `cached` bytes, states of `plain` bytes, of sequences of which
    so many tokens are `guessed` ahead; `scaled`: whether latents in FP8 that an indexer chooses from have scales beside them;
    `over`: ranks over which the tokens of a request are spread.

    Latents are not divided, and key heads are copied where they are fewer than ranks. Where states lie beside attention, a block
    holds as many tokens as make a page of attention as large as a state, which is filled up to it.
    """
    latents = any(layer.kind == "latent" for layer in layers)
    picked = any(layer.kind == "indexer" and not layer.scaled for layer in layers)
    given = block or (CHOSEN_BLOCK if picked else LATENT_BLOCK if latents else BLOCK)
    state = max((_state_bytes(layer, tensor, plain, guessed) for layer in layers if layer.kind == "state"), default=0)
    tokens = [_token_bytes(layer, tensor, cached, scaled) for layer in layers if layer.kind != "state"]
    if state and tokens:
        given = max(given, STATES_BESIDE_LATENTS) if latents else given
        given = max(given, given * _up(state, given * min(tokens)))
        state = given * min(tokens)
    made = []
    for layer in layers:
        page = state if layer.kind == "state" else given * _token_bytes(layer, tensor, cached, scaled)
        seen = None if layer.kind == "latent" else layer.tokens
        made.append(Kept(layer.kind, given, page, seen, guessed if layer.kind == "state" else 0, over))
    return made


def _state_bytes(layer: CacheLayer, tensor: int, plain: int, guessed: int) -> int:
    """Of a sequence; what is recurrent may be in float32 (models/config.py, `NemotronHForCausalLMConfig`). A convolution keeps
    its inputs of guessed tokens, too (layers/mamba/mamba_utils.py, `conv_kernel - 1 + num_spec`)."""
    more = layer.channels * guessed // tensor * plain
    if not layer.wide:
        return layer.state // tensor * plain + more
    return layer.convolved // tensor * plain + (layer.state - layer.convolved) // tensor * FLOAT32 + more


def _token_bytes(layer: CacheLayer, tensor: int, cached: int, scaled: bool) -> int:
    if layer.kind == "indexer":
        return indexer_bytes(layer)
    if layer.kind == "latent" and layer.tokens and cached == 1 and scaled:
        return SCALED_LATENT
    heads = layer.heads if layer.kind == "latent" else max(1, layer.heads // tensor)
    return heads * (layer.key_size + layer.value_size) * cached


def grouped(layers: list[Kept], here: frozenset[int] | None = None) -> Groups:
    """Layers in groups of equally many. `here`: which of them a rank of a pipeline has, of whose groups the largest counts: every
    n-th layer of a kind is in the same group, so that all stages have a part of each."""
    if not layers:
        return Groups((), 0, 0)
    if len(set(layers)) > 1 and len({layer.block for layer in layers}) == 1 and {layer.kind for layer in layers} <= FULL:
        whole = sum(layer.page for layer in layers)
        page = whole if here is None else sum(layers[place].page for place in here)
        return Groups((Kept("full", layers[0].block, page, over=layers[0].over),), 1, 0)
    kinds: dict[Kept, list[int]] = {}
    for number, layer in enumerate(_one_page(layers)):
        kinds.setdefault(layer, []).append(number)
    least, most = min(map(len, kinds.values())), max(map(len, kinds.values()))
    size = most if most < least * NEARLY else least
    groups, sizes = [], []
    for kind, places in kinds.items():
        many = _up(len(places), size)
        groups += [kind] * many
        sizes += [size if here is None else sum(place in here for place in places[i::many]) for i in range(many)]
    whole = here is None or len(here) == len(layers)
    return Groups(tuple(groups), size if whole else max(sizes), len(groups) * size - len(layers))


def _one_page(layers: list[Kept]) -> list[Kept]:
    """With pages of the largest size: smaller ones hold more tokens, or else are filled up."""
    largest = max(layer.page for layer in layers)
    made = []
    for layer in layers:
        more, rest = divmod(largest, layer.page)
        longer = layer.block * more if not rest and layer.kind != "state" else layer.block
        made.append(replace(layer, page=largest, block=longer))
    return made


def _up(a: int, b: int) -> int:
    return -(-a // b)
