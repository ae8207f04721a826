"""What a model's weights are stored in on one rank: of each tensor that a server's layers hold the bytes, by the format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from estimator.contract.errors import Contradiction
from estimator.contract.job import Serving
from estimator.families.build import within
from estimator.families.rotary import RotarySpec
from estimator.families.spec import DecoderSpec, ModelSpec, RotaryDecoderSpec
from estimator.quantization.formats import FORMATS, check_group, parts
from estimator.runtime.allocator import LARGE, ROUNDING, SPLIT
from estimator.serving.tensors import Held
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.tape import ALLOCATION_STEP

LOADED = ("nf4", "nf4-double", "fp4", "int8", "gptq-", "awq-", "packed-", "torchao-", "fp8", "mxfp4", "nvfp4")
"""How the formats begin that servers load."""
Repacked = Callable[[Held], Iterator[int]]
"""Bytes of the codes and scales of experts in MXFP4, which kernels want in an order, or of sizes, of their own."""


def check_format(serving: Serving, experts: bool, server: str) -> None:
    """Raise `InvalidJob` for weights in a format that a server does not load, or not for such a model."""
    name = serving.weights
    if name in dtypes.BY_NAME and name not in FORMATS:
        if serving.weights_group or serving.unquantized or serving.mixed_weights:
            raise Contradiction(f"nothing is quantized in {name}: leave groups and exceptions out", "serving.weights_group")
        return
    check_group(name, serving.weights_group, "serving.weights_group")
    for other in serving.mixed_weights or ():
        if not other.startswith(LOADED) or not FORMATS[other].linears:
            raise Contradiction(f"{server} loads no layers in {other} beside others; write fp8", "serving.mixed_weights")
    if not FORMATS[name].linears and not experts:
        raise Contradiction(
            f"{name} stores a mixture's experts, and these models have none: write nvfp4 or fp8", "serving.weights"
        )
    if not name.startswith(LOADED):
        raise Contradiction(f"{server} loads no weights in {name}; write engine transformers, or gptq-int4", "serving.weights")


def stored_sizes(serving: Serving, tensors: Iterable[Held], plain: DType, mxfp4: Repacked) -> Iterator[tuple[int, int]]:
    """Bytes of what each of a rank's tensors is stored in, and how many there are of it; what is not quantized is in `plain`."""
    for each in tensors:
        if each.seen and serving.language_model_only:
            continue
        whole = _times_excepted(each, serving)
        if whole:
            yield each.numel * plain.itemsize, whole
        if each.times > whole:
            for size in _sizes(each, serving, plain, mxfp4):
                yield size, each.times - whole


def held_wide(each: Held, names: tuple[str, ...]) -> bool:
    """Whether a server holds a tensor in float32, whatever the model is in; `names`: parts of the names of those."""
    return any(name in each.name for name in names)


def rotary_tables(spec: ModelSpec, dtype: DType) -> tuple[int, ...]:
    """Bytes of the tables of cosines and sines of all positions: of each kind of layer that has frequencies of its own one."""
    text = spec.language_model
    if text.unrotated:
        return ()
    if (tables := text.served_tables) is not None:
        return tables
    if not isinstance(text, DecoderSpec) or not isinstance(text, RotaryDecoderSpec | RotarySpec):
        return (_latent_table(text, dtype),)
    size = getattr(text, "rotary_size", text.head_dim)
    table = (text.max_position_embeddings or 0) * size * dtype.itemsize
    return (table, table * spec.stretched) if getattr(text, "tables", False) else (table,)


def _latent_table(text: ModelSpec, dtype: DType) -> int:
    turned = text.head_dim if isinstance(text, DecoderSpec) and any(x.kind == "latent" for x in text.cache_layers) else 0
    indexers = any(layer.kind == "indexer" for layer in text.cache_layers)
    tables = 2 if indexers and not text.indexers_turn_alike else 1  # others turn in another order
    return (text.max_position_embeddings or 0) * turned * dtype.itemsize * tables


def _sizes(each: Held, serving: Serving, plain: DType, mxfp4: Repacked) -> Iterator[int]:
    """Bytes of the tensors that stand for one: itself, or codes and scales."""
    name = format_of(each, serving)
    if name is None:
        yield each.numel * plain.itemsize
        return
    count, (outputs, inputs) = (each.shape[0], each.shape[1:]) if each.kind == "experts" else (1, each.shape)
    if name == "mxfp4":
        yield from mxfp4(each)
        return
    for part in parts(name, (outputs, inputs), group_of(name, serving)):
        yield count * part.nbytes


def group_of(name: str, serving: Serving) -> int | None:
    """Weights that share a scale in a format: those that the job says, if it is the job's first."""
    return serving.weights_group if name == serving.weights else None


def format_of(each: Held, serving: Serving) -> str | None:
    """The format that a tensor is stored in; None where it is not quantized. The output layer is where it is named."""
    other: str | None = next((one for one, names in (serving.mixed_weights or {}).items() if _within(each, names)), None)
    if other is not None and each.kind == "embedding" and each.name.startswith("lm_head"):
        return other
    name: str = other or serving.weights
    return name if _stores(name, each, serving) else None


def quantized(each: Held, serving: Serving) -> bool:
    """Whether a tensor is stored in one of the job's formats."""
    return format_of(each, serving) is not None


def _stores(name: str, each: Held, serving: Serving) -> bool:
    """Whether a format stores a tensor: a linear layer's or experts', if the format has these, and no exception."""
    known = FORMATS.get(name)
    stored = known is not None and (known.linears if each.kind == "linear" else each.kind == "experts" and len(each.shape) == 3)
    routes = each.routes or each.end in ("shared_expert_gate", "wk", "weights_proj")
    return stored and not (each.seen or routes or _excepted(each, serving))


def _excepted(each: Held, serving: Serving) -> bool:
    return _within(each, serving.unquantized or [])


def _within(each: Held, parts: list[str]) -> bool:
    return any(within(name, tuple(parts)) for name in _names(each))


def _times_excepted(each: Held, serving: Serving) -> int:
    """In how many of its layers a tensor that is quantized in others is not: exceptions such as layers.3.mlp are of one layer."""
    single = tuple(one for one in serving.unquantized or () if one.startswith("layers."))
    if not single or each.at is None or not quantized(each, serving):
        return 0
    here = sum(any(within(f"layers.{layer}.{name}", single) for name in _names(each)) for layer in each.at)
    return each.times * here // len(each.at)


def _names(each: Held) -> list[str]:
    path = each.name.rpartition(".")[0]
    return [f"{path}.{end}" if path else end for end in each.end.split("+")]


def block_bytes(nbytes: int) -> int:
    """Bytes of the block that torch's caching allocator gives to a tensor: a segment of its own is split only where more than
    `SPLIT` would be left over."""
    if not nbytes:
        return 0
    nbytes = -(-nbytes // ALLOCATION_STEP) * ALLOCATION_STEP
    if nbytes < LARGE:
        return nbytes
    segment = -(-nbytes // ROUNDING) * ROUNDING
    return segment if segment - nbytes <= SPLIT else nbytes
