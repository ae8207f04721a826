"""The tensors of the GGUF file that llama.cpp makes of a model: their names, sizes and layers.

Names after TENSOR_NAMES and what each of llama.cpp's conversion/*.py does to tensors (bc6b1f728, gguf-py/gguf/constants.py):
experts lie in one tensor for all, gates apart from what they gate; DeepSeek's `kv_b_proj` is split in keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from estimator.contract.errors import NotModelled
from estimator.families import build_model, having, heads
from estimator.families.build import Builder
from estimator.families.parameter import Parameter
from estimator.families.spec import ModelSpec
from estimator.quantization.gguf_encoders import stored
from estimator.quantization.gguf_names import (
    AFTER_ATTENTION,
    ALWAYS_FLOAT32,
    BARE,
    CORRECTIONS,
    NAMES,
    NORMS,
    OUTPUT_NORMS,
    SCALES,
)
from estimator.tape.dtypes import bfloat16
from estimator.tape.slots import Slot
from estimator.tape.tape import Tape


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor as it lies in the file: `columns` are the elements of a row, of which blocks are made. `layer` is None outside."""

    name: str
    columns: int
    elements: int
    dimensions: int
    layer: int | None
    experts: bool = False

    @property
    def float32(self) -> bool:
        """Whether it is kept in float32 whatever the file's type."""
        end = self.name.removesuffix(".weight")
        matrix = self.dimensions > 1 and self.name.endswith(".weight")
        return not matrix or end.endswith(("_norm", *[f".{name}" for name in ALWAYS_FLOAT32])) or end in ALWAYS_FLOAT32


def file_tensors(spec: ModelSpec) -> list[FileTensor]:
    """Every tensor of a model's GGUF file. Raises `NotModelled` for families whose files are not described here."""
    if not spec.can.gguf:
        known = ", ".join(having(lambda kind: kind.can.gguf))
        raise NotModelled(f"GGUF files of {spec.model_type} are not modelled yet; {known} are", "model")
    build = Builder(Tape(), bfloat16, unrolled=True)
    build_model(spec, build, next(iter(heads(spec.model_type))))
    corrections = [_correction(spec, each.count, each.slot) for each in build.buffers if each.name.endswith(CORRECTIONS)]
    beside = corrections + _gemma4(spec, build) + _gemma3n(spec)
    return [tensor for parameter in build.parameters for tensor in _tensors(spec, parameter)] + beside


def _gemma4(spec: ModelSpec, build: Builder) -> list[FileTensor]:
    """Numbers that its layers' results are multiplied by, and by which layers that see everything turn less (`rope_freqs`, which
    lies with each of them, and is counted with the output)."""
    if spec.can.graph != "gemma-4":
        return []
    layers = [each.slot.start for each in build.buffers if each.name.endswith("layer_scalar") and each.slot]
    half = spec.config()["global_head_dim"] // 2
    scales = [FileTensor(f"blk.{layer}.layer_output_scale.weight", 1, 1, 1, layer) for layer in layers]
    return [*scales, FileTensor("rope_freqs.weight", half, half, 1, None)]


def _gemma3n(spec: ModelSpec) -> list[FileTensor]:
    """Keys and values of layers that take those of others, which its checkpoints have and no engine uses."""
    if spec.can.graph != "gemma-3n":
        return []
    asked = spec.config()
    layers, hidden, head = asked["num_hidden_layers"], asked["hidden_size"], asked["head_dim"]
    width, found = asked["num_key_value_heads"] * head, []
    for layer in range(layers - asked["num_kv_shared_layers"], layers):
        found += [FileTensor(f"blk.{layer}.attn_{name}.weight", hidden, hidden * width, 2, layer) for name in "kv"]
        found.append(FileTensor(f"blk.{layer}.attn_k_norm.weight", head, head, 1, layer))
    return found


def _correction(spec: ModelSpec, experts: int, slot: Slot | None) -> FileTensor:
    layer = slot.start if slot else None
    end = "" if spec.can.graph == "hunyuan-3" else ".bias"
    return FileTensor(f"blk.{layer}.exp_probs_b{end}", experts, experts, 1, layer)


def _tensors(spec: ModelSpec, parameter: Parameter) -> Iterator[FileTensor]:
    """What one parameter becomes."""
    layer = parameter.slot.start if parameter.slot else None
    before = "" if layer is None else f"blk.{layer}."
    path, _, end = parameter.name.rpartition(".")
    if end not in ("weight", "bias"):
        path, end = parameter.name, "weight"
    if path.endswith("_bias") and not path.endswith(CORRECTIONS):
        path, end = path.removesuffix("_bias"), "bias"
    shape = tuple([size for size in parameter.tensor.shape if size > 1]) or (1,)
    turned = end == "weight" and any(part in path for part in spec.input_first)
    columns = shape[-2] if turned else shape[-1]

    def tensor(name: str, size: int = columns, elements: int = prod(shape)) -> FileTensor:
        bare = name in BARE or (name == "ffn_norm" and spec.can.graph == "falcon-h1")
        found = f"{before}{name}" if bare else f"{before}{name}.{end}"
        return FileTensor(found, size, elements, len(shape), layer, "_exps" in name)

    if spec.encodes and spec.can.graph != "gemma-3":
        if kept := stored(spec, parameter):
            yield tensor(kept.name, elements=kept.elements)
        return
    if ".act_fn." in parameter.name:
        return  # numbers of the metadata (Apertus' xIELU)
    if path.endswith(CORRECTIONS):
        yield _correction(spec, prod(shape), parameter.slot)
    elif path.startswith("altup_") and layer is None:
        name, _, stream = path.partition(".")
        name = "altup_proj" if name == "altup_projections" else "altup_unembd_proj"
        if stream == "0":  # one tensor for all streams but the first
            yield FileTensor(f"{name}.weight", columns, prod(shape) * (spec.config()["altup_num_inputs"] - 1), 3, None)
    elif path == "embed_tokens_per_layer" and spec.can.graph == "gemma-3n":
        yield tensor("per_layer_token_embd", elements=columns * spec.config()["vocab_size"])
    elif path in SCALES:
        yield FileTensor(f"{before}{SCALES[path]}", columns, columns, 1, layer)
    elif path.endswith("experts.gate_up_proj") and spec.can.graph in ("gemma-4", "granite-moe-swa"):
        yield tensor("ffn_gate_up_exps")
    elif path.endswith("experts.gate_up_proj"):
        for name in ("ffn_gate_exps", "ffn_up_exps"):
            yield tensor(name, elements=prod(shape) // 2)
    elif path.endswith("shared_mlp.input_linear") and spec.can.graph == "granite-moe-swa":
        yield tensor("ffn_up_shexp")
    elif path.startswith("shared_mlp"):
        which = "_shexp" if getattr(spec, "num_experts", 0) else ""
        for name in ("ffn_gate", "ffn_up") if path.endswith("input_linear") else ():
            yield tensor(name + which, elements=prod(shape) // 2)
        if path.endswith("output_linear"):
            yield tensor("ffn_down" + which)
    elif path.endswith("conv1d") and spec.can.graph == "kimi-linear":
        for name in "qkv":
            yield tensor(f"ssm_conv1d_{name}", elements=prod(shape) // 3)
    elif path.endswith("in_proj_qkvz"):
        gate = columns * spec.value_size  # type: ignore[attr-defined]
        yield tensor("attn_qkv", elements=prod(shape) - gate)
        yield tensor("attn_gate", elements=gate)
    elif path.endswith("kv_b_proj") and spec.can.graph == "minicpm-3":
        yield tensor("attn_kv_b")
    elif path.endswith("kv_b_proj"):
        keys, values = spec.config()["qk_nope_head_dim"], spec.config()["v_head_dim"]
        for name, size, own in (("attn_k_b", keys, keys), ("attn_v_b", columns, values)):
            yield FileTensor(f"{before}{name}.weight", size, prod(shape) // (keys + values) * own, 3, layer)
    elif (known := _known(path)) is not None:
        yield tensor(known + ("_shexp" if ".shared_" in path and "expert_gate" not in path else ""))
    elif "norm" in path or path in ("ln_f",) or path.startswith("ln_"):
        last = path.rpartition(".")[2]
        if layer is None and path in OUTPUT_NORMS:
            yield tensor(OUTPUT_NORMS[path])
        elif last == "post_attention_layernorm" and spec.can.graph in AFTER_ATTENTION:
            yield tensor("post_attention_norm")
        else:
            yield tensor(NORMS.get(last) or path.replace(".", "_").removesuffix("_norm") + "_norm")
    else:
        raise NotModelled(f"where {parameter.name} of {spec.model_type} lies in a GGUF file is not modelled yet", "model")


def _known(path: str) -> str | None:
    """The file's name of a module, by the longest end of its path that has one."""
    parts = path.split(".")
    ends = (".".join(parts[i:]) for i in range(len(parts)))
    return next((NAMES[end] for end in ends if end in NAMES), None)
