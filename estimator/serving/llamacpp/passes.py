"""What llama.cpp's passes do: kernels, bytes and arithmetic of a prompt's batch, and of a step of a token for each sequence."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from estimator.contract.job import Serving
from estimator.families.spec import ModelSpec
from estimator.serving.llamacpp.cache import UBATCH, batch_of
from estimator.serving.llamacpp.ggml import Tensor
from estimator.serving.llamacpp.graphs import built
from estimator.serving.llamacpp.models import shape_of, window
from estimator.serving.llamacpp.operations import Devices
from estimator.serving.llamacpp.placement import EMBEDDING, OUTPUT, WeightTensor, of_kind
from estimator.serving.llamacpp.shape import Batch, Shape

NORMS = (r"rms_norm mul rope(?: set_rows)?", r"rms_norm mul(?: add)?")
MIXERS = (r"ssm_conv(?: add)? unary", "unary (?:mul|sqr)", "scale unary scale", "rope set_rows")
ROUTERS = (
    r"(?:soft_max|unary(?: sqrt)?)(?: add)? argsort get_rows(?: sum_rows clamp div)?(?: scale)?",
    "argsort get_rows soft_max",
)
"""Nodes after one another that one kernel runs, views left out; additions one after another are one, too, and what a token's
experts say times their weights, summed (ggml/src/ggml-cuda/ggml-cuda.cu, `ggml_cuda_try_fuse`, as of October 2026;
ggml-vulkan.cpp has most of them)."""
PRODUCTS = ("mul_mat add mul_mat add glu", "mul_mat mul_mat glu", "mul_mat add")
"""Of a product with one vector, and with experts (`mul_mat_id`, `add_id`) of a few: a gate, and what is added
(`ggml_cuda_should_fuse_mul_mat_vec_q`)."""
HYBRIDS = ("soft_max argsort get_rows sum_rows clamp div", "rms_norm mul", "ssm_conv unary", "unary mul", "rope set_rows")
GATES = ("mul_mat_id mul_mat_id glu", "mul_mat mul_mat glu")
"""Those that every build runs as one which knows delta nets, whatever the card; gates' of a few tokens."""
SUMMED = 15
"""Experts of a token up to which one kernel sums them (ggml-cuda.cu, `MOE_WEIGHTED_REDUCTION_MAX_EXPERTS`)."""
VECTORS = 8
"""Tokens up to which products are with vectors (ggml-cuda/mmvq.cuh, `MMVQ_MAX_BATCH_SIZE`)."""
TILE = 64
"""Rows that a kernel multiplies with an expert at a time, however few there are (ggml-vulkan.cpp, `m_warptile_mmqid`, which
AMD's cards take; ggml-cuda/mmq.cu takes up to 128)."""
HALF = 2
"""Bytes of a weight in float16; a block has fewer for each of its weights."""


@dataclass(slots=True)
class Pass:
    """One pass through the graph.

    Attributes:
        kernels: nodes that compute something; of these `products` multiply two matrices, `unpacking` with one in blocks.
        fused: of kernels, and of those that turn what is multiplied into blocks, how many newer builds run as part of others.
        whole_bytes, block_bytes: of matrices that are read, without blocks and in blocks; of experts those that are chosen.
        unpacked_bytes: what those in blocks would take in float16.
        flops: of products with these matrices; `tiled_flops`: with those that fill up the tiles of experts.
        operand_bytes: what is multiplied with these matrices, and what comes out, in float32.
        scores_flops: of attention.
        scores_bytes: of attention in two products, queries, scores and what comes out, in float32, each time that one reads or
            writes them; `cached_bytes`: what these products read of the cache.
        moved_bytes: what all other nodes read and write, the cache with them where attention is one kernel.
    """

    kernels: int = 0
    fused: int = 0
    products: int = 0
    unpacking: int = 0
    whole_bytes: float = 0
    block_bytes: float = 0
    unpacked_bytes: float = 0
    flops: float = 0
    tiled_flops: float = 0
    operand_bytes: float = 0
    scores_flops: float = 0
    scores_bytes: float = 0
    cached_bytes: float = 0
    moved_bytes: float = 0

    @property
    def other_bytes(self) -> float:
        """All that is no matrix of the model."""
        return self.operand_bytes + self.scores_bytes + self.cached_bytes + self.moved_bytes

    def add(self, more: Pass, less: Pass, times: int) -> None:
        """Add so many times what one pass has more than another."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + times * (getattr(more, name) - getattr(less, name)))


class Passes(NamedTuple):
    """A prompt's mean pass, how many there are, and its last; a decoding step when half of each answer is written; and layers."""

    reading: Pass
    many: float
    last: Pass
    step: Pass
    layers: int


def passes(serving: Serving, spec: ModelSpec, tensors: tuple[WeightTensor, ...] | None) -> Passes:
    """What a served model's passes do."""
    return _passes(serving.model_dump_json(), spec, tensors)


@lru_cache(maxsize=32)
def _passes(asked: str, spec: ModelSpec, tensors: tuple[WeightTensor, ...] | None) -> Passes:
    serving = Serving.model_validate_json(asked)
    prompt, output = serving.lengths
    whole, at_once = batch_of(serving, spec), min(prompt, serving.ubatch or UBATCH)
    seen = (prompt + at_once) // 2
    reading = replace(whole, tokens=at_once, outputs=1, streams=1, sequences=1)
    step = replace(whole, tokens=serving.concurrency, outputs=serving.concurrency)
    stored = {tensor.name: tensor.nbytes for tensor in tensors or of_kind(serving.weights, spec)}
    stored.setdefault(OUTPUT, stored[EMBEDDING])
    mean = _counted(spec, _seeing(reading, spec, seen), stored)
    return Passes(
        reading=mean,
        many=prompt / at_once,
        last=mean if prompt == at_once else _counted(spec, _seeing(reading, spec, prompt), stored),
        step=_counted(spec, _seeing(step, spec, prompt + output // 2), stored),
        layers=spec.num_hidden_layers,
    )


def _seeing(batch: Batch, spec: ModelSpec, tokens: int) -> Batch:
    """A batch whose sequences have so many tokens in the cache, or as many as a window sees."""
    return replace(batch, cells=tokens, window_cells=min(tokens, window(spec) or tokens))


def _counted(spec: ModelSpec, batch: Batch, stored: dict[str, int]) -> Pass:
    """The nodes of a batch's graph: layers that are alike are counted once, and their matrices have the mean of their bytes."""
    shape = shape_of(spec)
    alike: dict[tuple[object, ...], list[int]] = {}
    for layer in range(shape.layers):
        alike.setdefault(shape.kind(layer), []).append(layer)
    last = [max(layers) for layers in alike.values()]
    found = _of_layers(shape, batch, stored, alike, sorted(last))
    base = replace(found)
    for layers in alike.values():
        one = _of_layers(shape, batch, stored, alike, sorted([layers[0], *last]))
        found.add(one, base, len(layers) - 1)
    return found


def _of_layers(
    shape: Shape, batch: Batch, stored: dict[str, int], alike: dict[tuple[object, ...], list[int]], layers: list[int]
) -> Pass:
    """The nodes of a graph that has these layers alone, each for those that are like it."""
    groups = [next(group for group in alike.values() if layer in group) for layer in layers]
    made: dict[str, Tensor] = {}

    def weight(name: str, layer: int | None) -> Tensor:
        end = name if name.endswith((".bias", ".scale")) else f"{name}.weight"
        key = end if layer is None else f"blk.{layer}.{end}"
        if key not in made:
            names = [end] if layer is None else [f"blk.{one}.{end}" for one in groups[layer]]
            made[key] = Tensor("none", (1,), nbytes=sum(stored.get(one, 0) for one in names) // len(names))
            made[key].weight = True
        return made[key]

    experts = shape.experts and replace(shape.experts, sparse=tuple([shape.experts.sparse[layer] for layer in layers]))
    few = replace(
        shape,
        layers=len(layers),
        rotary=tuple([shape.rotary[layer] for layer in layers]),
        sliding=tuple([shape.sliding[layer] for layer in layers]) if shape.sliding else (),
        experts=experts,
        sharing=shape.sharing and shape.sharing.of(layers, shape.sliding or (False,) * shape.layers),
        mixers=tuple([shape.mixer(layer) for layer in layers]) if shape.mixers else (),
        thinned=tuple([shape.thinned[layer] for layer in layers]) if shape.thinned else (),
        indexer=shape.indexer and replace(shape.indexer, layers=tuple([shape.indexer.layers[layer] for layer in layers])),
    )
    graph = built(few, batch, Devices((0,) * len(layers), 1, forced=False), weight)
    found, touched, count = Pass(), 1.0, 0
    if experts:
        count, touched = experts.count, 1 - (1 - experts.used / experts.count) ** batch.tokens
    run = [node for node in graph.nodes if node.op != "view" and not _empty(node)]
    for node in run:
        found.kernels += 1
        _count(found, node, touched, count)
    found.fused = sum(_fused(run, _together(batch.tokens, experts.used if experts else 0), count))
    if {"delta net", "kimi delta"} & {*few.mixers}:
        kernels, unpacking = _fused(run, _of_hybrids(batch.tokens <= VECTORS), count)
        found.kernels, found.unpacking = found.kernels - kernels, found.unpacking - unpacking
        found.fused -= kernels + unpacking
    return found


@lru_cache(maxsize=16)
def _together(tokens: int, used: int) -> re.Pattern[str]:
    """Names of nodes that one kernel runs, for so many tokens of which each chooses so many experts."""
    kinds = [*ROUTERS, *NORMS, *MIXERS]
    if 1 < used <= SUMMED:
        kinds.append(f"(?<=(?:mul_mat_id|..get_rows|....add_id) )mul(?: mul)?(?: add){{{used - 1}}}")
    if tokens == 1:
        kinds += PRODUCTS
    if tokens <= VECTORS:
        kinds += [kind.replace("mul_mat", "mul_mat_id").replace("add", "add_id") for kind in PRODUCTS]
    return _any_of(*kinds)


@lru_cache(maxsize=2)
def _of_hybrids(few: bool) -> re.Pattern[str]:
    return _any_of(*HYBRIDS, *(GATES if few else ()))


def _any_of(*kinds: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\S)(?:{'|'.join([*kinds, 'add(?: add)+'])})(?!\S)")


def _fused(run: list[Tensor], together: re.Pattern[str], experts: int) -> tuple[int, int]:
    """Kernels that run as part of others, and how many of these multiply with a matrix in blocks: what is multiplied is turned
    into blocks once for both."""
    names, kernels, unpacking = " ".join([node.op for node in run]), 0, 0
    for found in together.finditer(names):
        kernels += found.group().count(" ")
        first = run[names.count(" ", 0, found.start())]
        unpacking += int(found.group().endswith("glu") and _in_blocks(first, experts))
    return kernels, unpacking


def _empty(node: Tensor) -> bool:
    """Whether a node computes nothing: a backend skips it (ggml-cuda.cu, `ggml_is_empty`). So where no other sequence's states
    are kept, and, unless a sequence begins, what clears its states (llama-graph.cpp, `build_rs`)."""
    return 0 in node.shape or (node.op == "scale" and node.nbytes == 0)


def _count(found: Pass, node: Tensor, touched: float, experts: int) -> None:
    if node.op in ("mul_mat", "mul_mat_id") and node.sources[0].weight:
        matrix, inner = node.sources[0], node.sources[1].shape[0]
        several = node.op == "mul_mat_id"
        share = touched if several else 1.0
        elements = _elements(node, experts)
        flops = 2 * prod(node.shape) * inner
        found.flops += flops
        found.tiled_flops += flops * (
            _filled(prod(node.shape[1:]) / (share * experts)) if several and node.shape[2] > VECTORS else 1
        )
        if _in_blocks(node, experts):
            found.unpacking += 1
            found.block_bytes += share * matrix.nbytes
            found.unpacked_bytes += share * elements * HALF
        else:
            found.whole_bytes += share * matrix.nbytes
        found.products += 1
        found.operand_bytes += node.nbytes + node.sources[1].nbytes
        return
    if node.op == "get_rows":
        found.moved_bytes += 2 * node.nbytes
        return
    if node.op == "flash_attn":
        queries, keys = node.sources[0], node.sources[1]
        found.scores_flops += 2 * prod(queries.shape) * keys.shape[1] + 2 * prod(node.shape) * keys.shape[1]
    elif node.op == "lightning_indexer":
        found.scores_flops += 2 * prod(node.sources[0].shape) * node.shape[0]
    elif node.op == "mul_mat":
        found.products += 1
        found.scores_flops += 2 * prod(node.shape) * node.sources[1].shape[0]
        found.scores_bytes += node.nbytes + node.sources[1].nbytes
        found.cached_bytes += node.sources[0].nbytes
        return
    found.moved_bytes += node.nbytes + sum(source.nbytes for source in node.sources if not source.weight)


def _elements(node: Tensor, experts: int) -> int:
    """How many the matrix of a product has: latent attention's has one for each head."""
    many = experts if node.op == "mul_mat_id" else prod(node.shape[2:3])
    return node.shape[0] * node.sources[1].shape[0] * many


def _in_blocks(node: Tensor, experts: int) -> bool:
    return node.sources[0].nbytes < HALF * _elements(node, experts)


def _filled(rows: float) -> float:
    """How many times as many rows tiles have as an expert has in the mean: half of a tile more, and one at least."""
    return max(TILE, rows + TILE / 2) / rows
