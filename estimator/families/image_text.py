"""A language model that sees images: what a tower and what follows it make of them takes the places of tokens.

After the `...Model` and `...ForConditionalGeneration` classes of transformers' modeling_llava.py and modeling_gemma3.py (5.23).
A batch has its pixels in float32, as processors make them; the towers cast them. Each sequence has so many images as the job
says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from estimator.contract.job.audio import Audio
from estimator.contract.job.images import Images
from estimator.families import build_model
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.heads import Batch, CausalLM, FusedHead, Model
from estimator.families.model_output import Held
from estimator.families.modules import token_positions
from estimator.families.parts import SpeakingSpec
from estimator.families.windows import FULL, SLIDING, LayerType
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import to
from estimator.tape.scatter import masked_scatter
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import split, unsqueeze

Masks = dict[LayerType, Tensor | None]
Made = tuple[Masks | None] | tuple[Masks, Tensor]
"""Masks, and what they were made of."""


def language_model(
    spec: SpeakingSpec,
    build: Builder,
    part: str = "model.language_model",
    make: Callable[[Any, Builder], Model] | None = None,
) -> CausalLM:
    """The language model of one that sees, in the `part` that it is called, by `make` or its family. Where it cannot attend as
    the job says and the tower does (Gemma 2), it attends as it does unasked."""
    outside, ways = build.attention, spec.language_model.attentions
    build.attention = outside if outside in ways else ways[0]
    with build.part(part):
        language = make(spec.language_model, build) if make else build_model(spec.language_model, build, "causal-lm")
    build.attention = outside
    assert isinstance(language, CausalLM)
    return language


def grids_of(build: Builder) -> Callable[[Tensor, Tensor], Tensor]:
    """What makes frames, rows and columns of each image of a batch, where a model is told them."""
    images = 0 if build.images is None else build.images.count * build.sequences
    return lambda ids, pixels: empty(ids.tape, (images, 3), dtypes.int64, "image_grid_thw")


def by_image(features: Tensor, tokens: int) -> tuple[Tensor, ...]:
    """The features of each image, of so many `tokens`, where those of all lie in one tensor."""
    return tuple(split(features, [tokens] * (features.shape[0] // tokens), 0))


class Sight(Protocol):
    """The tower and what is between it and the language model."""

    def pixels(self, tape: Tape, images: int) -> Tensor:
        """So many images, as the processor makes them."""

    def __call__(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """What the language model gets, and what else lives until it is done."""


class ImageTextToText(FusedHead):
    """`sight` and a language model; without `sight` images are not modelled.

    `joined`: the features of all images as one tensor. `masks`: those of the language model, where it does not make them itself,
    and what they were made of, from token ids, embeddings and what is `beside`: what else a batch has, made for token ids and
    pixels. `held`: what else lies in memory with the model. `counts_first`: whether positions are counted before the tower runs,
    not by the language model. `gives_all`: whether the output holds all that the tower gave, not the features that were put in.
    `keeps_places`: whether the places of images are known until the language model is done. `videos`: whether the model looks for
    those of videos, too. `caps`: whether logits go through what the language model's go through by itself (Gemma 2's tanh).
    `given`: what else a job has of what `sight` reads, such as sound; `shown`: whether the output holds features at all.
    """

    def __init__(
        self,
        language: CausalLM,
        sight: Sight | None,
        build: Builder,
        joined: Callable[[tuple[Tensor, ...]], Tensor] = lambda seen: seen[0],
        masks: Callable[[Tensor, Tensor, Tensor | None], Made] = lambda ids, embeds, types: (None,),
        beside: Callable[[Tensor, Tensor], Tensor] | None = None,
        held: object = None,
        counts_first: bool = False,
        gives_all: bool = False,
        keeps_places: bool = True,
        videos: bool = False,
        caps: bool = False,
        given: Images | Audio | None = None,
        shown: bool = True,
    ):
        assert isinstance(language.body, Decoder)
        self.body, self.lm_head, self.loss = language.body, language.lm_head, language.loss
        self.logits = language.logits if caps else language.lm_head
        self.sight, self.joined, self.masks, self.beside = sight, joined, masks, beside
        self.images, self.shown = given or build.images, shown
        self.counts_first, self.gives_all, self.keeps_places = counts_first, gives_all, keeps_places
        self.held, self.videos = held, videos

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Token ids, which are the labels too; pixels; and what else some models get."""
        ids = empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids")
        if self.images is None:
            return (ids,)
        assert self.sight is not None
        pixels = self.sight.pixels(tape, batch.sequences * self.images.count)
        return (ids, pixels) if self.beside is None else (ids, pixels, self.beside(ids, pixels))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        ids = inputs[0]
        hidden, *features = self._read(*inputs)
        shown = tuple(features) if self.shown else ()
        with ids.tape.losing():
            if self.loss.fused is not None:
                return self.loss.fused(hidden, self.lm_head.weight, ids), shown
            logits = self.logits(hidden)
            return self.loss(logits, ids), (logits, *shown)

    def _read(self, ids: Tensor, pixels: Tensor | None = None, types: Tensor | None = None) -> tuple[Tensor, ...]:
        """Last hidden states, and the images' features, which the output holds."""
        embeds = self.body.embed_tokens(ids)
        positions = token_positions(ids.tape, ids.shape[1]) if self.counts_first else None
        if pixels is None:
            masks = self.masks(ids, embeds, None)
            return (self.body.decode(ids, embeds, masks[0], positions),)
        assert self.sight is not None
        seen = self.sight(pixels)
        features = to(self.joined(seen), embeds.dtype)
        places: Tensor | None = unsqueeze(empty(ids.tape, ids.shape, dtypes.bool_, "eq"), 2)
        assert places is not None
        others = empty(ids.tape, ids.shape, dtypes.bool_, "eq") if self.videos else None
        embeds = masked_scatter(embeds, places, features)
        places = places if self.keeps_places else None
        masks = self.masks(ids, embeds, types)
        hidden = self.body.decode(ids, embeds, masks[0], positions)
        del places, masks, others
        return (hidden, *seen) if self.gives_all else (hidden, features)


def compare(embeds: Tensor, features: Tensor) -> None:
    """What features take the place of is copied to be counted, found by the places of what is not zero (cuda/Nonzero.cu)."""
    count = features.numel
    places = empty(embeds.tape, (len(embeds.shape), count), dtypes.int64, "nonzero")
    taken = empty(embeds.tape, (count,), embeds.dtype, "index")
    del places, taken


def types_of(ids: Tensor, pixels: Tensor) -> Tensor:
    """Which tokens are of images, or of a prefix."""
    return empty(ids.tape, ids.shape, dtypes.int64, "token_type_ids")


def block_masks(types: Tensor, dtype: DType, implementation: str) -> Made:
    """Masks in which the tokens of an image see each other, and the numbers of the images (modeling_gemma3.py,
    `create_masks_for_vision_model`; masking_utils.py, `create_causal_mask`, `sdpa_mask` and `eager_mask`)."""
    blocks = _blocks(types)
    full = of_blocks(blocks, dtype, implementation)
    return {FULL: full, SLIDING: as_asked(in_window(blocks), dtype, implementation)}, blocks


def prefix_masks(types: Tensor, dtype: DType, implementation: str, windows: bool = False) -> Made:
    """A mask in which the tokens of a prefix see each other, and which tokens are of it; with one for a sliding window, too,
    where there are `windows` (modeling_paligemma.py, `PaliGemmaModel.forward`)."""
    held = empty(types.tape, types.shape, dtypes.bool_, "eq")
    blocks = empty(types.tape, types.shape, dtypes.int64, "where")
    del held
    masks: Masks = {FULL: of_blocks(blocks, dtype, implementation)}
    if windows:
        masks[SLIDING] = as_asked(window_or_image(blocks), dtype, implementation)
    return masks, blocks


def of_blocks(blocks: Tensor, dtype: DType, implementation: str) -> Tensor:
    """A mask in which what looks back, or at its own block, is seen (masking_utils.py, `create_causal_mask`)."""
    return as_asked(all_or_image(blocks), dtype, implementation)


def _blocks(types: Tensor) -> Tensor:
    """The number of the image that each token is of (`get_block_sequence_ids_for_mask`)."""
    tape, (batch, tokens) = types.tape, types.shape
    shape = batch, tokens
    held = empty(tape, shape, dtypes.bool_, "eq"), empty(tape, (batch, tokens + 1), dtypes.bool_, "constant_pad_nd")
    other = empty(tape, shape, dtypes.bool_, "bitwise_not")
    start = empty(tape, shape, dtypes.bool_, "bitwise_and")
    del other
    number = empty(tape, shape, dtypes.int32, "_to_copy")
    counted = empty(tape, shape, dtypes.int64, "cumsum")
    del number
    groups = empty(tape, shape, dtypes.int64, "sub")
    del counted
    made = empty(tape, shape, dtypes.int64, "where")
    del held, start, groups
    return made


def all_or_image(blocks: Tensor) -> Tensor:
    """What looks back, or at its own image: booleans [batch, 1, tokens, keys]."""
    places = _places(blocks)
    made = _either(blocks)
    del places
    return made


def _either(blocks: Tensor) -> Tensor:
    tape, (_, tokens) = blocks.tape, blocks.shape
    one = empty(tape, (), dtypes.bool_, "new_zeros")
    back = empty(tape, (1, 1, tokens, tokens), dtypes.bool_, "le")
    either = empty(tape, back.shape, dtypes.bool_, "bitwise_or")
    del back, one
    image = _same_image(blocks)
    made = empty(tape, image.shape, dtypes.bool_, "bitwise_or")
    del image, either
    return made


def in_window(blocks: Tensor) -> Tensor:
    """The same, of the keys in a sliding window alone."""
    tape, (_, tokens) = blocks.tape, blocks.shape
    places, ones = _places(blocks), empty(tape, (), dtypes.bool_, "new_ones")
    seen = _either(blocks)
    joined = empty(tape, seen.shape, dtypes.bool_, "bitwise_and")
    del seen, ones
    first = empty(tape, (tokens,), dtypes.int64, "sub")
    near = empty(tape, (1, 1, tokens, tokens), dtypes.bool_, "gt")
    del first
    made = empty(tape, joined.shape, dtypes.bool_, "bitwise_and")
    del near, joined, places
    return made


def window_or_image(blocks: Tensor) -> Tensor:
    """What looks back in a sliding window, or at its own image."""
    tape, (_, tokens) = blocks.tape, blocks.shape
    places, one = _places(blocks), empty(tape, (), dtypes.bool_, "new_zeros")
    ones = empty(tape, (), dtypes.bool_, "new_ones")
    back = (1, 1, tokens, tokens)
    first = empty(tape, (tokens,), dtypes.int64, "sub")
    near = empty(tape, back, dtypes.bool_, "gt")
    del first
    joined = empty(tape, back, dtypes.bool_, "bitwise_and")
    del near, ones
    before = empty(tape, back, dtypes.bool_, "le")
    window = empty(tape, back, dtypes.bool_, "bitwise_and")
    del joined, before
    either = empty(tape, back, dtypes.bool_, "bitwise_or")
    del window, one
    image = _same_image(blocks)
    made = empty(tape, image.shape, dtypes.bool_, "bitwise_or")
    del image, either, places
    return made


def _same_image(blocks: Tensor) -> Tensor:
    """Which tokens are of one image: booleans [batch, 1, tokens, keys]."""
    tape, (batch, tokens) = blocks.tape, blocks.shape
    rows = [empty(tape, (batch, tokens), dtypes.int64, "index") for _ in ("queries", "keys")]
    square = (batch, 1, tokens, tokens)
    same = empty(tape, square, dtypes.bool_, "eq")
    some = empty(tape, (batch, tokens), dtypes.bool_, "ge")
    image = empty(tape, square, dtypes.bool_, "bitwise_and")
    del same, some, rows
    return image


def _places(blocks: Tensor) -> list[Tensor]:
    """Numbers of sequences, heads, queries and keys."""
    batch, tokens = blocks.shape
    return [empty(blocks.tape, (size,), dtypes.int64, "arange") for size in (batch, 1, tokens, tokens)]


def as_asked(mask: Tensor, dtype: DType, implementation: str) -> Tensor:
    """A mask of booleans, or for `eager` of numbers that are added."""
    return mask if implementation == "sdpa" else empty(mask.tape, mask.shape, dtype, "where")
