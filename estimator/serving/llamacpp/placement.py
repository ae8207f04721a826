"""A model that llama.cpp serves from a GGUF file: where its tensors, its cache and its graph lie.

After llama.cpp's src/llama-model.cpp (`load_tensors`: the token embedding stays in the host's memory, and of the layers the first
do), src/llama-kv-cache.cpp and src/llama-context.cpp. Everything is allocated before the first token.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimator.contract.errors import Contradiction
from estimator.contract.job import Serving
from estimator.families.spec import DecoderSpec, ModelSpec, RotaryDecoderSpec
from estimator.families.windows import SLIDING, WindowedSpec, layer_types
from estimator.quantization.gguf_kinds import block
from estimator.quantization.gguf_mixtures import facts, type_of
from estimator.quantization.gguf_tensors import file_tensors
from estimator.serving.llamacpp.graph import Batch, Sizes, compute_bytes, host_bytes
from estimator.weights import Checkpoint

ON_GPU, ON_HOST = 128, 64
"""Bytes that ggml aligns tensors to, in CUDA's memory and in the host's."""
PADDED_ROW = 512
"""Elements that CUDA's matrices of blocks have rows filled up to (MATRIX_ROW_PADDING, ggml-cuda.cu)."""
CELLS = 256
"""Tokens that a sequence's cache is rounded up to (src/llama-context.cpp)."""
UBATCH = 512
"""Tokens of a pass, where a job does not say."""
TURNED = 64
"""Numbers of values that are turned together, at least, before they are cached in blocks."""
NAMES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of the file: its layer (None outside), its bytes, and how many it takes on the GPU."""

    name: str
    layer: int | None
    nbytes: int
    gpu_bytes: int


@dataclass(frozen=True, slots=True)
class Placed:
    """Bytes on the GPU and in the host's memory: of weights, of the cache, of the graph's buffers; and of logits on the host."""

    weights: int
    cache: int
    compute: int
    host: dict[str, int]


def of_file(checkpoint: Checkpoint) -> tuple[Stored, ...]:
    """The tensors of a GGUF file, as they lie in it. Raises `InvalidJob` where parts of it are missing."""
    if checkpoint.missing:
        raise Contradiction(checkpoint.summary, checkpoint.path)
    return tuple([_stored(t.name, t.dtype, t.shape[-1] if t.shape else 1, t.nbytes) for t in checkpoint.tensors])


def of_kind(kind: str, spec: ModelSpec) -> tuple[Stored, ...]:
    """The tensors of a file of a kind."""
    kind, tensors = NAMES.get(kind, kind.upper()), file_tensors(spec)
    model, found = facts(spec, tensors), []
    for tensor in tensors:
        chosen = type_of(kind, tensor, model)
        found.append(_stored(tensor.name, chosen.name, tensor.columns, tensor.elements // chosen.elements * chosen.nbytes))
    return tuple(found)


def _stored(name: str, dtype: str, columns: int, nbytes: int) -> Stored:
    chosen, missing = block(dtype), -columns % PADDED_ROW
    more = missing // chosen.elements * chosen.nbytes if chosen.elements > 1 else 0
    number = name.split(".")[1] if name.startswith("blk.") else ""
    return Stored(name, int(number) if number.isdigit() else None, nbytes, -(-(nbytes + more) // ON_GPU) * ON_GPU)


def placed(serving: Serving, spec: ModelSpec, tensors: tuple[Stored, ...] | None = None) -> Placed:
    """Where everything lies, of a file's `tensors` or of those of the kind that is asked for.

    The output layer counts as a layer after the last; a tied one is a copy.
    """
    assert isinstance(spec, RotaryDecoderSpec)
    tensors = tensors or of_kind(serving.weights, spec)
    layers, asked = spec.num_hidden_layers, serving.gpu_layers
    first = 0 if asked is None else max(0, layers + 1 - asked)
    tied = all(tensor.name != OUTPUT for tensor in tensors)
    gpu = [t for t in tensors if t.name != EMBEDDING and (layers if t.layer is None else t.layer) >= first]
    output = [t for t in tensors if t.name == (EMBEDDING if tied else OUTPUT)]
    weights = sum(t.gpu_bytes for t in gpu) + sum(t.gpu_bytes for t in output if tied and first <= layers)
    held = sum(t.nbytes for t in tensors if t not in gpu)
    caches = layer_caches(serving, spec)
    batch = batch_of(serving, spec)
    sizes = sizes_of(spec)
    compute = compute_bytes(sizes, batch, on_gpu=True, alignment=ON_GPU)
    if first:  # of a large batch the host's products are the GPU's, too: its weights are sent there, a layer's at a time
        outside = [t for t in tensors if t not in gpu and t.layer is not None] + [t for t in output if first > layers]
        sent: dict[int | None, int] = {}
        for tensor in outside:
            sent[tensor.layer] = sent.get(tensor.layer, 0) + tensor.gpu_bytes
        compute += max(sent.values(), default=0)
    return Placed(
        weights,
        sum(caches[first:]),
        compute,
        {
            "weights": held,
            "kv_cache": sum(caches[:first]),
            "compute_buffer": host_bytes(sizes, batch, ON_HOST),
            "logits": spec.vocab_size * serving.concurrency * 4,
        },
    )


def cells(context: int) -> int:
    """Tokens that a sequence's cache has room for."""
    return -(-context // CELLS) * CELLS


def window_cells(serving: Serving, spec: DecoderSpec) -> int:
    """Of a layer with a sliding window: the window and a pass beside it (src/llama-kv-cache-iswa.cpp)."""
    window = spec.sliding_window if isinstance(spec, WindowedSpec) else 0
    return cells(min(cells(serving.context), window + (serving.ubatch or UBATCH)))


def layer_caches(serving: Serving, spec: DecoderSpec) -> list[int]:
    """Bytes of each layer's cache, of all sequences."""
    each = serving.concurrency * cache_bytes(serving, spec)
    whole, window = cells(serving.context) * each, window_cells(serving, spec) * each
    return [window if slides else whole for slides in sliding(spec) or [False] * spec.num_hidden_layers]


def sliding(spec: DecoderSpec) -> tuple[bool, ...]:
    """Which layers llama.cpp gives a sliding window: Gemma's do, where Mistral's files say of none."""
    if spec.can.graph != "gemma-3":
        return ()
    return tuple([kind == SLIDING for kind in layer_types(spec)])


def cache_bytes(serving: Serving, spec: DecoderSpec) -> int:
    """Bytes of a token's keys and values in one layer."""
    width = spec.num_key_value_heads * spec.head_dim
    return sum(_row_bytes(kind, width) for kind in (serving.kv_cache, serving.values_cache or serving.kv_cache))


def _row_bytes(kind: str, width: int) -> int:
    chosen = block(NAMES.get(kind, kind.upper()))
    if width % chosen.elements:
        raise Contradiction(f"{width} numbers of a token are no blocks of {chosen.elements}: write fp16", "serving.kv_cache")
    return width // chosen.elements * chosen.nbytes


def batch_of(serving: Serving, spec: RotaryDecoderSpec) -> Batch:
    """The largest pass that llama.cpp makes room for.

    Keys and values that are cached in blocks are turned before, where heads are of whole `TURNED` numbers
    (src/llama-kv-cache.cpp, `attn_rot_k`): keys in as many as fit a head.
    """
    room, fits = cells(serving.context), spec.head_dim % TURNED == 0
    keys, values = (fits and kind not in NAMES for kind in (serving.kv_cache, serving.values_cache or serving.kv_cache))
    most = spec.head_dim & -spec.head_dim
    tokens = min(serving.ubatch or UBATCH, room * serving.concurrency)
    tokens = -(-tokens // serving.concurrency) * serving.concurrency
    outputs = min(tokens, serving.outputs or tokens)
    flash, window = serving.flash_attention is not False, window_cells(serving, spec)
    return Batch(tokens, outputs, room, flash, window, most if keys else 0, TURNED if values else 0)


def sizes_of(spec: RotaryDecoderSpec) -> Sizes:
    """What the graph asks of a model."""
    keys = spec.num_key_value_heads * spec.head_dim
    return Sizes(
        hidden=spec.hidden_size,
        queries=spec.num_attention_heads * spec.head_dim,
        keys=keys,
        values=keys,
        heads=spec.num_attention_heads,
        wide=spec.intermediate_size,
        vocabulary=spec.vocab_size,
        layers=spec.num_hidden_layers,
        biased=spec.can.graph == "biased",
        normed=getattr(spec, "qk_norm", False),
        sliding=sliding(spec),
        gemma=spec.can.graph == "gemma-3",
    )
