"""A model that llama.cpp serves from a GGUF file: where its tensors, its cache and its graph lie.

After llama.cpp's src/llama-model.cpp (`load_tensors`: the token embedding stays in the host's memory, and of the layers the first
do), src/llama-kv-cache.cpp and src/llama-context.cpp. Everything is allocated before the first token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from estimator.contract.errors import Contradiction
from estimator.contract.job import Serving
from estimator.families.spec import ModelSpec
from estimator.quantization.gguf_kinds import block
from estimator.quantization.gguf_mixtures import facts, type_of
from estimator.quantization.gguf_names import BARE
from estimator.quantization.gguf_tensors import file_tensors
from estimator.serving.llamacpp.cache import batch_of, layer_caches
from estimator.serving.llamacpp.devices import layer_devices, overridden
from estimator.serving.llamacpp.ggml import Tensor
from estimator.serving.llamacpp.graphs import built
from estimator.serving.llamacpp.models import shape_of, vocabulary
from estimator.serving.llamacpp.operations import Devices
from estimator.serving.llamacpp.scheduler import ON_GPU, buffers
from estimator.serving.llamacpp.shape import Batch, Shape
from estimator.serving.llamacpp.types import NAMES
from estimator.weights.checkpoint import Checkpoint

PADDED_ROW = 512
"""Elements that CUDA's matrices of blocks have rows filled up to (MATRIX_ROW_PADDING, ggml-cuda.cu)."""
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
INPUTS = (EMBEDDING, "position_embd.weight", "token_types.weight", "per_layer_token_embd.weight")
"""Tables in which a token's rows are looked up."""


SKIPPING = ("glm-4-moe", "glm-4v-moe", "hunyuan-3", "deepseek-3.2", "mimo-2")
"""Graphs whose layers that guess tokens ahead stay in the file (`TENSOR_SKIP`, src/models/glm4-moe.cpp); Qwen3.5's are loaded."""


@dataclass(frozen=True, slots=True)
class WeightTensor:
    """A tensor of the file: its layer (None outside), its bytes, and how many it takes on the GPU."""

    name: str
    layer: int | None
    nbytes: int
    gpu_bytes: int


@dataclass(frozen=True, slots=True)
class OnGpu:
    """Bytes that one GPU holds of weights, of the cache, and of the graph's buffer; `layers` that it has, the output as one."""

    weights: int
    cache: int
    compute: int
    layers: int

    @property
    def nbytes(self) -> int:
        return self.weights + self.cache + self.compute


@dataclass(frozen=True, slots=True)
class Placed:
    """What each GPU holds, and bytes in the host's memory, by what they are."""

    gpus: tuple[OnGpu, ...]
    host: dict[str, int]

    @property
    def fullest(self) -> OnGpu:
        """The GPU that holds most; without one the host, of which logits lie beside its graph's buffer."""
        if not self.gpus:
            own = self.host
            return OnGpu(own["weights"], own["kv_cache"], own["compute_buffer"] + own["logits"], 0)
        return max(self.gpus, key=lambda gpu: gpu.nbytes)


def of_file(checkpoint: Checkpoint) -> tuple[WeightTensor, ...]:
    """The tensors of a GGUF file, as they lie in it. Raises `InvalidJob` where parts of it are missing."""
    if checkpoint.missing:
        raise Contradiction(checkpoint.summary, checkpoint.path)
    return tuple([_stored(t.name, t.dtype, t.shape[-1] if t.shape else 1, t.nbytes) for t in checkpoint.tensors])


@lru_cache(maxsize=16)
def of_kind(kind: str, spec: ModelSpec) -> tuple[WeightTensor, ...]:
    """The tensors of a file of a kind."""
    kind, tensors = NAMES.get(kind, kind.upper()), file_tensors(spec)
    model, found = facts(spec, tensors), []
    for tensor in tensors:
        chosen = type_of(kind, tensor, model)
        found.append(_stored(tensor.name, chosen.name, tensor.columns, tensor.elements // chosen.elements * chosen.nbytes))
    return tuple(found)


def _stored(name: str, dtype: str, columns: int, nbytes: int) -> WeightTensor:
    chosen, missing = block(dtype), -columns % PADDED_ROW
    more = missing // chosen.elements * chosen.nbytes if chosen.elements > 1 else 0
    number = name.split(".")[1] if name.startswith("blk.") else ""
    return WeightTensor(name, int(number) if number.isdigit() else None, nbytes, -(-(nbytes + more) // ON_GPU) * ON_GPU)


def placed(
    serving: Serving, spec: ModelSpec, gpus: int = 1, tensors: tuple[WeightTensor, ...] | None = None, cuda: bool = True
) -> Placed:
    """Where everything lies, of a file's `tensors` or of those of the kind that is asked for, on so many GPUs.

    The output layer counts as a layer after the last; a tied one is a copy. `cuda`: whether the graph is as CUDA has it, with
    fused kernels, and keys and values in float16 for flash attention. Layers of a file after the model's last guess tokens ahead.
    """
    tensors = tensors or of_kind(serving.weights, spec)
    if spec.can.graph in SKIPPING:
        tensors = tuple([tensor for tensor in tensors if tensor.layer is None or tensor.layer < spec.num_hidden_layers])
    layers = layer_devices(serving, spec.num_hidden_layers, gpus)
    forced = overridden(serving, spec.num_hidden_layers, gpus)
    tied = all(tensor.name != OUTPUT for tensor in tensors)
    weights, at = [0] * (gpus + 1), {}
    for tensor in tensors:
        lies = forced(tensor.name)
        if lies is None:
            lies = gpus if tensor.name in INPUTS else layers[_layer(tensor, spec)]
        at[tensor.name] = lies, tensor
        weights[lies] += tensor.nbytes if lies == gpus else tensor.gpu_bytes
    if tied and (not spec.encodes or spec.can.graph == "gemma-3"):
        lies = forced(EMBEDDING)
        lies = layers[-1] if lies is None else lies
        at[OUTPUT] = lies, at[EMBEDDING][1]
        weights[lies] += at[EMBEDDING][1].gpu_bytes if lies < gpus else 0
    caches = layer_caches(serving, spec)
    cache = [sum(size for size, lies in zip(caches, layers, strict=False) if lies == gpu) for gpu in range(gpus + 1)]
    full = gpus not in layers
    pipeline = gpus > 1 and full and not (serving.override_tensor or serving.cpu_moe or serving.n_cpu_moe)
    batch = batch_of(serving, spec)
    batch = batch if cuda else replace(batch, unpacked_keys=False, unpacked_values=False)
    shape, apart = shape_of(spec), serving.override_tensor or serving.cpu_moe or serving.n_cpu_moe
    alone = len(set(layers)) == 1 and not apart
    compute = _planned(shape.shortened() if alone else shape, batch, layers, gpus, pipeline, at, cuda)
    held = [OnGpu(weights[gpu], cache[gpu], compute[gpu], layers.count(gpu)) for gpu in range(gpus)]
    host = {
        "weights": weights[gpus],
        "kv_cache": cache[gpus],
        "compute_buffer": compute[gpus],
        "logits": (vocabulary(spec) + spec.encodes * spec.hidden_size) * serving.concurrency * 4,
    }
    return Placed(tuple(held), host)


def _layer(tensor: WeightTensor, spec: ModelSpec) -> int:
    """The layer that a tensor lies with: the output, if it belongs to none or guesses ahead, but the norm of BLOOM's embeddings
    with the first, and what makes all layers' own input of Gemma 4's embeddings."""
    if tensor.layer is None:
        first = tensor.name.startswith("token_embd_norm") and spec.can.graph != "lfm-2"
        return 0 if first or tensor.name.startswith("per_layer_") else -1
    return min(tensor.layer, spec.num_hidden_layers)


def _planned(
    shape: Shape,
    batch: Batch,
    layers: tuple[int, ...],
    gpus: int,
    pipeline: bool,
    at: dict[str, tuple[int, WeightTensor]],
    fused: bool,
) -> list[int]:
    """Bytes of the graph's buffer of each GPU, and last of the host's."""
    made: dict[str, Tensor] = {}

    def weight(name: str, layer: int | None) -> Tensor:
        full = _full(name if layer is None else f"blk.{layer}.{name}")
        if full not in made:
            lies, stored = at.get(full, (layers[-1 if layer is None else layer], None))
            tensor = made[full] = Tensor("none", (1,), nbytes=stored.nbytes if stored else 0)
            tensor.gpu_bytes = stored.gpu_bytes if stored else 0
            tensor.device, tensor.weight = (gpus if name == "token_embd" else lies), True
        return made[full]

    devices = Devices(layers[:-1], gpus, forced=gpus not in layers or batch.tokens < 32)
    graph = built(shape, batch, devices, weight)
    return buffers(graph, gpus, pipeline, fused)


def _full(name: str) -> str:
    return name if name.endswith((".bias", ".scale", *BARE)) else f"{name}.weight"
