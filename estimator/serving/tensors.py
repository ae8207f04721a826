"""A model's weights as servers' layers hold them on one rank: which are one tensor, and how each is shared out.

After vllm/model_executor/layers of 0.33, whose shapes SGLang's layers have (sglang/srt/layers of 0.5.23): linear.py
(`QKVParallelLinear`, `MergedColumnParallelLinear`: layers that read the same are one; outputs or
inputs are divided, key heads copied where there are fewer than ranks), vocab_parallel_embedding.py (rows padded to a multiple of
64), fused_moe/layer.py (each expert's width divided, or whole experts), and of latent attention models/deepseek_v2.py (what makes
a latent is on every rank).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import Literal, NamedTuple

from estimator.contract.errors import Contradiction
from estimator.families import built, heads
from estimator.families.cache_layers import CacheLayer
from estimator.families.parameter import Parameter
from estimator.families.spec import ModelSpec
from estimator.parallel.topology import Topology
from estimator.tape.layout import Shape

PADDING = 64
"""Rows of an embedding come in multiples of it."""
JOINED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("q_a_proj", "kv_proj"),
    ("kv_proj", "gate_proj"),
    ("query", "key", "value"),
)
"""Layers that are one in a server, by the ends of their names."""
INDEXER = ("wq_b", "wk", "weights_proj")
"""An indexer's layers."""
DECAYS = ("f_a_proj", "g_a_proj")
"""The first of two layers that make a delta attention's decay, and its gate, of few numbers."""
STREAMS = ("correction_coefs", "prediction_coefs", "modality_router")
"""The layers that correct several streams of hidden states."""
PER_LAYER = ("per_layer_input_gate", "per_layer_projection")
"""What a layer makes of its own input of each token."""
LATENT_EXPERTS = ("fc1_latent_proj", "fc2_latent_proj")
"""What experts of fewer numbers than hidden states have get and give (vLLM's models/nemotron_h.py)."""
ROUTERS = ("gate", "router")
"""What chooses experts, or the module that it is in."""
WHOLE = (
    *("q_a_proj", "kv_a_proj_with_mqa", "kv_proj", *DECAYS, *ROUTERS, "shared_expert_gate"),
    *LATENT_EXPERTS,
    *INDEXER,
    *STREAMS,
    *PER_LAYER,
)
"""Layers that every rank holds whole: what makes a latent, what chooses experts, and what chooses tokens."""
COMPRESSOR = ".compressor."
"""In the names of what makes compressed keys, and of the indexer that chooses them, which every rank holds whole."""
CHOOSING_KEYS, CHOOSING_QUERIES = ".indexer.k_proj", ".indexer.q_proj"
"""Of an indexer that picks blocks for each key head: its key, which is whole, and its queries, which go with the key heads."""
GROUPED = "o_a_proj"
"""A product for each group of heads, whose weights are one parameter and no layer."""
DBRX = {"w1": "gate_proj", "v1": "up_proj", "w2": "down_proj"}
"""What others call DBRX's experts."""
BRIDGE = "linear"
"""A layer's own, between a block that layers share and its mixer (Zamba 2), which every rank holds whole."""
KEYS = ("k_proj", "v_proj")
QUERIES_KEYS_VALUES = ("qkv_proj", "query_key_value", "c_attn", "Wqkv")
INPUTS_DIVIDED = (
    "o_proj",
    "o_b_proj",
    "linear_right",
    "out_proj",
    "down_proj",
    "c_proj",
    "dense",
    "dense_4h_to_h",
    "fc2",
    "fc_out",
    "output_linear",
)
"""Layers whose inputs are divided, so that every rank has the whole bias."""
ATTENTION = re.compile(r"attn|attention")
"""In the names of what attention consists of."""
Kind = Literal["linear", "experts", "embedding", "other"]


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of one rank, `times` over. `shape`: of a linear layer [out, in], of experts [experts, out, in], of which a token
    uses `used`. `layer`: which of the model's kinds of layers it is in, and `at` which layers of the model these are; None
    outside. `seen`: part of what reads images, or hears; `heard`: of what hears."""

    name: str
    kind: Kind
    shape: Shape
    times: int
    layer: int | None = None
    used: int = 0
    seen: bool = False
    heard: bool = False
    at: range | None = None

    @property
    def end(self) -> str:
        """The last word of its name."""
        return self.name.rpartition(".")[2]

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def routes(self) -> bool:
        """Whether it chooses experts: of a router in a module of its own whatever its last word is."""
        return self.kind == "linear" and not self.seen and not set(ROUTERS).isdisjoint(self.name.split(".")[-2:])


Stage = tuple[int, int]
"""Which of so many stages of a pipeline, from 0."""


def held(
    spec: ModelSpec,
    tensor: int = 1,
    expert_ranks: int = 0,
    headless: bool = False,
    stage: Stage = (0, 1),
    spread: Spread | None = None,
) -> tuple[Held, ...]:
    """The tensors of one of `tensor` ranks of a stage: of experts whole ones, over `expert_ranks`, or with 0 a part of each;
    without a head if `headless`; `spread`: what is shared out otherwise."""
    return _held(spec.model_dump_json(), _Spec(spec), tensor, expert_ranks, headless, stage, spread or Spread())


def check_output_groups(spec: ModelSpec, place: Topology) -> None:
    """Raise `Contradiction` where groups of heads, which attention's output is made in, do not divide by the ranks."""
    groups = int(getattr(spec.language_model, "o_groups", 0))
    if groups % place.tensor:
        raise Contradiction(f"{groups} groups of attention's output do not divide by the ranks", "parallelism.tensor")


def stage_layers(depth: int, stage: Stage) -> range:
    """The layers of a stage: as many on each, and one more on the last but one and those before it where some are left over
    (vllm/distributed/utils.py, `get_pp_indices`)."""
    rank, ranks = stage
    sizes = [depth // ranks] * ranks
    for back in range(2, depth % ranks + 2):
        sizes[-back] += 1
    return range(sum(sizes[:rank]), sum(sizes[: rank + 1]))


class Spread(NamedTuple):
    """What an engine does not share out among all ranks of a tensor-parallel group.

    Attributes:
        attention: ranks among which attention and the embedding of what is read are divided; 0: all.
        width: ranks that share each expert's width; 0: all, or one where whole experts are spread.
        whole: parts of the names of what every rank holds whole.
        seen_whole: those of what sees.
        stages: the layers of a stage of so many layers.
    """

    attention: int = 0
    width: int = 0
    whole: tuple[str, ...] = ()
    seen_whole: tuple[str, ...] = ()
    stages: Callable[[int, Stage], range] = stage_layers


class _Spec:
    """A spec that a cache does not look at: its text is the key."""

    def __init__(self, spec: ModelSpec):
        self.spec = spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Spec)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=64)
def _held(_: str, asked: _Spec, tensor: int, expert_ranks: int, headless: bool, stage: Stage, spread: Spread) -> tuple[Held, ...]:
    spec = asked.spec
    attends = {
        place: each
        for place, each in zip(spec.cache_places, spec.cache_layers, strict=True)
        if each.kind not in ("state", "latent", "indexer")
    }
    keys = next(iter(attends.values()), CacheLayer("full", tensor))
    whole = whole_tensors(spec)
    if headless:
        body = _body(spec)
        whole = [each for each in whole if each.name in body]
    if stage[1] > 1:
        whole = list(_staged(whole, spread.stages(spec.language_model.num_hidden_layers, stage), stage))
    return tuple(
        each
        if each.heard and (spec.whole_ears or each.layer is None)
        else _shared_out(each, tensor, attends.get(each.at[0], keys) if each.at else keys, expert_ranks, spread)
        for each in _joined(whole)
    )


def _shared_out(each: Held, tensor: int, keys: CacheLayer, expert_ranks: int, spread: Spread) -> Held:
    """One rank's part: of experts their number first, then their width."""
    if each.kind == "experts" and spread.width:
        return divided(divided(each, 1, keys, expert_ranks), spread.width, keys, 0)
    if any(part in each.name for part in (spread.seen_whole if each.seen else spread.whole)):
        return each
    reads = each.kind == "embedding" and not each.name.startswith("lm_head")
    if spread.attention and not each.seen and (reads or ATTENTION.search(each.name)):
        return divided(each, spread.attention, keys, expert_ranks)
    return divided(each, tensor, keys, expert_ranks)


def _staged(tensors: list[Held], layers: range, stage: Stage) -> Iterator[Held]:
    """What a stage holds: its layers; the first the input embedding, the last all else, with an embedding that is also the output
    layer; every one what reads images."""
    first, last = stage[0] == 0, stage[0] == stage[1] - 1
    tied = not any(each.name.startswith("lm_head") for each in tensors)
    for each in tensors:
        enters = each.at is None and ("emb" in each.name or each.end in ("wte", "wpe"))
        if each.seen or (first and enters) or (last and each.at is None and (tied or not enters)):
            yield each
        elif each.at is not None and (here := sum(place in layers for place in each.at)):
            yield replace(each, times=each.times * here // len(each.at))


def _body(spec: ModelSpec) -> set[str]:
    """Names of the tensors that are no head's: those that the model has with any of its heads; of two towers all."""
    known = heads(spec.model_type)
    both = [head for head in known if head == "contrastive"]
    found = [{parameter.name.removesuffix(".weight") for parameter in built(spec, head).parameters} for head in both or known]
    return set.intersection(*found) - {"lm_head"}


LANGUAGE = ("model.language_model", "model.text_model", "language_model")
"""The paths of the language model in those that see images."""


def whole_tensors(spec: ModelSpec) -> list[Held]:
    """The model's tensors, one for each parameter."""
    build = built(spec)
    text = len(built(spec.language_model).parameters) if spec.language_model is not spec else len(build.parameters)
    linears = set(build.linears)
    slots: dict[int, int] = {}
    for parameter in build.parameters:
        if parameter.slot is not None:
            slots.setdefault(id(parameter.slot), len(slots))
    biases = {p.name[: -len(".bias")]: p.tensor.shape[0] for p in build.parameters if p.name.endswith(".bias")}
    parts = any(parameter.part for parameter in build.parameters)
    found = []
    for number, parameter in enumerate(build.parameters):
        layer = None if parameter.slot is None else slots[id(parameter.slot)]
        seen = bool(parameter.part) and not parameter.part.startswith(LANGUAGE) if parts else number >= text
        named = _named(parameter, spec.language_model, linears, biases, layer, seen)
        heard = seen and bool(spec.ears) and parameter.part.startswith(spec.ears)
        found.append(replace(named, at=_layers(parameter), heard=heard))
    return found


def _layers(parameter: Parameter) -> range | None:
    """The layers that its slot stands for; of equal ones within a period the first."""
    slot = parameter.slot
    if slot is None:
        return None
    outer = slot.path[0]
    return range(slot.start, slot.start + outer.repeat * max(1, outer.step), max(1, outer.step))


def _named(
    parameter: Parameter, spec: ModelSpec, linears: set[str], biases: dict[str, int], layer: int | None, seen: bool
) -> Held:
    name, shape, times = parameter.name, parameter.tensor.shape, parameter.times
    plain = name.removesuffix(".weight")
    if not seen and (parameter.tokens or plain.startswith("lm_head")):
        return Held(plain, "embedding", shape, times, layer)
    if "experts." in name and "shared" not in name:
        if len(shape) == 3 and _inputs_first(plain, shape, spec.hidden_size):
            shape = (shape[0], shape[2], shape[1])
        if "experts.mlp." in name:  # DBRX's, one below the other; servers have them as other experts (vLLM's models/dbrx.py)
            experts: int = getattr(spec, "num_experts", 1)
            path, _, end = plain.rpartition(".")
            plain, rows = f"{path}.{DBRX[end]}", shape[0] // experts
            shape = (experts, shape[1], rows) if end == "w2" else (experts, rows, shape[1])
        used = parameter.active * shape[0] // parameter.count
        if name.endswith("gate_up_proj"):
            shape = (shape[0] - spec.idle_experts, *shape[1:])
        return Held(plain, "experts", shape, times, layer, used)
    linear = len(shape) == 2 and (plain in linears or plain.rpartition(".")[2] in (*WHOLE, GROUPED))
    if linear and biases.get(plain, shape[0]) == shape[1] != shape[0]:
        shape = (shape[1], shape[0])  # Conv1D, which has its inputs first
    return Held(plain, "linear" if linear else "other", shape, times, layer, seen=seen)


def _inputs_first(name: str, shape: Shape, hidden: int) -> bool:
    """Whether experts are stored as [experts, in, out]."""
    ins, outs = (1, 2) if name.endswith("gate_up_proj") else (2, 1)
    return shape[ins] == hidden and shape[outs] != hidden


def _joined(tensors: list[Held]) -> Iterator[Held]:
    """With the layers that read the same as one."""
    for _, group in groupby(tensors, lambda each: (each.layer, each.seen)):
        members = list(group)
        places = {each.name: each for each in members}
        gone: set[str] = set()
        for each in members:
            if each.name in gone:
                continue
            path, _, end = each.name.rpartition(".")
            others = _together(places, path, end)
            if len(others) < 2:
                yield each
                continue
            gone |= {other.name for other in others}
            if each.kind == "experts":
                rows = sum(other.shape[1] for other in others)
                yield replace(each, name=f"{path}.gate_up_proj", shape=(each.shape[0], rows, each.shape[2]))
                continue
            ends = "+".join(other.end for other in others)
            yield replace(each, name=f"{path}.{ends}", shape=(sum(other.shape[0] for other in others), each.shape[1]))


def _together(places: dict[str, Held], path: str, end: str) -> list[Held]:
    """The linear layers, or the experts, that a server has as one with those that end so."""
    for ends in JOINED:
        found = [places.get(f"{path}.{name}") for name in ends if end in ends]
        others = [other for other in found if other is not None and other.kind in ("linear", "experts")]
        if len(others) == len(ends):
            return others
    return []


def divided(each: Held, tensor: int, keys: CacheLayer, expert_ranks: int) -> Held:
    """One rank's part, in a layer that keeps such `keys`."""
    shape, ends = each.shape, each.end.split("+")
    if each.kind == "embedding":
        rows = -(-shape[0] // PADDING) * PADDING
        return replace(each, shape=(-(-rows // tensor), *shape[1:]))
    if each.kind == "experts" and expert_ranks:
        return replace(each, shape=(-(-shape[0] // expert_ranks), *shape[1:]))
    if tensor == 1:
        return each
    if each.kind == "experts":
        bias = len(shape) == 2
        if bias or "gate_up" in each.end:
            return replace(each, shape=(shape[0], -(-shape[1] // tensor), *shape[2:]) if "gate_up" in each.end else shape)
        return replace(each, shape=(*shape[:2], -(-shape[2] // tensor)))
    if each.kind == "other":
        return replace(each, shape=_part_of_bias(each, tensor))
    if each.routes or each.name == BRIDGE or set(ends) & set(WHOLE):
        return each
    if COMPRESSOR in each.name or each.name.endswith(CHOOSING_KEYS):
        return each
    if each.name.endswith(CHOOSING_QUERIES) and keys.heads < tensor:
        return replace(each, shape=(shape[0] // keys.heads, shape[1]))
    if set(ends) & set(INPUTS_DIVIDED):
        return replace(each, shape=(shape[0], -(-shape[1] // tensor)))
    copied = 0
    if not each.seen and keys.heads < tensor and (set(ends) & set(KEYS) or ends[0] in QUERIES_KEYS_VALUES):
        alone = {"k_proj": keys.key_size, "v_proj": keys.value_size}
        copied = alone.get(each.end, keys.key_size + keys.value_size)
    divided = shape[0] - copied * keys.heads
    return replace(each, shape=(-(-divided // tensor) + copied, shape[1]))


def _part_of_bias(each: Held, tensor: int) -> Shape:
    """Of what is neither a layer's weight nor an embedding: biases of divided outputs, sinks and a mixer's own are divided."""
    name, shape = each.name, each.shape
    path, _, end = name.rpartition(".")
    if end == "embed_tokens_per_layer":
        return (-(-(-(-shape[0] // PADDING) * PADDING) // tensor), *shape[1:])
    bias = end == "bias" and path.rpartition(".")[2] not in (*WHOLE, *INPUTS_DIVIDED) and "norm" not in path and "ln" not in path
    if len(shape) == 1 and (bias or end in ("sinks", "D", "dt_bias", "A_log")):
        return (-(-shape[0] // tensor),)
    if "mixer." in name or "mamba." in name or end == "conv1d":
        return (-(-shape[0] // tensor), *shape[1:])
    return shape
