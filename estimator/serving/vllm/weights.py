"""Bytes of a model's weights on one rank, as vLLM logs them ("Model loading took"): each tensor in the block that holds it.

A log is the difference of `torch.cuda.memory_allocated` around loading, rotary tables included
(vllm/model_executor/layers/rotary_embedding/base.py: cosines and sines of all positions, in the model's type).
"""

from __future__ import annotations

from collections.abc import Iterator

from estimator.contract.errors import Contradiction
from estimator.contract.job import Serving
from estimator.families.build import within
from estimator.families.rotary import RotarySpec
from estimator.families.spec import DecoderSpec, ModelSpec, RotaryDecoderSpec
from estimator.quantization.formats import FORMATS, check_group, parts
from estimator.runtime.allocator import LARGE, ROUNDING, SPLIT
from estimator.serving.vllm.mxfp4 import mxfp4_sizes
from estimator.serving.vllm.tensors import Held, held
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.gpu import Gpu
from estimator.tape.tape import ALLOCATION_STEP

LOADED = ("nf4", "nf4-double", "fp4", "int8", "gptq-", "awq-", "torchao-", "fp8", "mxfp4", "nvfp4")
"""How the formats begin that vLLM loads."""


def check_format(serving: Serving, experts: bool) -> None:
    """Raise `InvalidJob` for weights in a format that vLLM does not load, or not for such a model."""
    name = serving.weights
    if name in dtypes.BY_NAME:
        if serving.weights_group or serving.unquantized:
            raise Contradiction(f"nothing is quantized in {name}: leave groups and exceptions out", "serving.weights_group")
        return
    check_group(name, serving.weights_group, "serving.weights_group")
    if not FORMATS[name].linears and not experts:
        raise Contradiction(
            f"{name} stores a mixture's experts, and these models have none: write nvfp4 or fp8", "serving.weights"
        )
    if not name.startswith(LOADED):
        raise Contradiction(f"vLLM loads no weights in {name}; write engine transformers, or gptq-int4", "serving.weights")


def weights_bytes(serving: Serving, spec: ModelSpec, tensor: int, plain: DType, gpu: Gpu) -> int:
    """Of one of `tensor` ranks; what is not quantized is in the type `plain`."""
    total = rotary_bytes(spec, plain)
    for each in held(spec, tensor, serving.enable_expert_parallel):
        total += each.times * sum(_block(size) for size in _sizes(each, serving, plain, gpu))
    return total


def rotary_bytes(spec: ModelSpec, plain: DType) -> int:
    """Tables of cosines and sines: of each kind of layer that has frequencies of its own one."""
    text = spec.language_model
    if not isinstance(text, DecoderSpec) or not isinstance(text, RotaryDecoderSpec | RotarySpec):
        return _latent_rotary(text, plain)
    size = getattr(text, "rotary_size", text.head_dim)
    table = (text.max_position_embeddings or 0) * size * plain.itemsize
    return _block(table) + (_block(table * spec.stretched) if getattr(text, "tables", False) else 0)


def _latent_rotary(text: ModelSpec, plain: DType) -> int:
    turned = text.head_dim if isinstance(text, DecoderSpec) and any(x.kind == "latent" for x in text.cache_layers) else 0
    return _block((text.max_position_embeddings or 0) * turned * plain.itemsize)


def _sizes(each: Held, serving: Serving, plain: DType, gpu: Gpu) -> Iterator[int]:
    """Bytes of the tensors that stand for one: itself, or codes and scales."""
    name = serving.weights
    known = FORMATS.get(name)
    stored = known is not None and (known.linears if each.kind == "linear" else each.kind == "experts" and len(each.shape) == 3)
    routes = each.end in ("gate", "router", "shared_expert_gate")
    if not stored or each.seen or routes or _excepted(each, serving):
        yield each.numel * plain.itemsize
        return
    count, (outputs, inputs) = (each.shape[0], each.shape[1:]) if each.kind == "experts" else (1, each.shape)
    if name == "mxfp4":
        yield from mxfp4_sizes(each, gpu)
        return
    for part in parts(name, (outputs, inputs), serving.weights_group):
        yield count * part.nbytes


def _excepted(each: Held, serving: Serving) -> bool:
    path = each.name.rpartition(".")[0]
    names = [f"{path}.{end}" if path else end for end in each.end.split("+")]
    return any(within(name, tuple(serving.unquantized or ())) for name in names)


def _block(nbytes: int) -> int:
    """Bytes of the block that torch's caching allocator gives to a tensor: a segment of its own is split only where more than
    `SPLIT` would be left over."""
    if not nbytes:
        return 0
    nbytes = -(-nbytes // ALLOCATION_STEP) * ALLOCATION_STEP
    if nbytes < LARGE:
        return nbytes
    segment = -(-nbytes // ROUNDING) * ROUNDING
    return segment if segment - nbytes <= SPLIT else nbytes
