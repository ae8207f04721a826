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
from estimator.tape.dtypes import bfloat16
from estimator.tape.tape import Slot, Tape

NAMES: dict[str, str] = {
    "embed_tokens": "token_embd",
    "wte": "token_embd",
    "embed_in": "token_embd",
    "word_embeddings": "token_embd",
    "embeddings": "token_embd",
    "wpe": "position_embd",
    "lm_head": "output",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "qkv_proj": "attn_qkv",
    "query_key_value": "attn_qkv",
    "c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "attention.dense": "attn_output",
    "self_attention.dense": "attn_output",
    "sinks": "attn_sinks",
    "q_a_proj": "attn_q_a",
    "q_b_proj": "attn_q_b",
    "kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "gate_up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "dense_h_to_4h": "ffn_up",
    "dense_4h_to_h": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "router": "ffn_gate_inp",
    "gate.wg": "ffn_gate_inp",
    "shared_expert_gate": "ffn_gate_inp_shexp",
    "experts.down_proj": "ffn_down_exps",
    "in_proj": "ssm_in",
    "x_proj": "ssm_x",
    "dt_proj": "ssm_dt",
    "dt_bias": "ssm_dt",
    "out_proj": "ssm_out",
    "conv1d": "ssm_conv1d",
    "A_log": "ssm_a",
    "D": "ssm_d",
}
"""By the end of the name that transformers has. Norms are found by their single dimension, and by `_norm`."""
NORMS: dict[str, str] = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "q_a_layernorm": "attn_q_a_norm",
    "kv_a_layernorm": "attn_kv_a_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "query_layernorm": "attn_q_norm",
    "key_layernorm": "attn_k_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}
"""Norms that have names of their own."""
AFTER_ATTENTION = ("gemma-2", "gemma-3", "gpt-oss", "olmo-2", "exaone-4", "seed-oss", "glm-4-moe")
"""Graphs whose norm after attention is called so (`post_attention_norm`), by `Abilities.graph`."""
CORRECTION = "e_score_correction_bias"
"""What is added to the scores of experts before the best are chosen, a parameter or a buffer."""
ALWAYS_FLOAT32 = ("position_embd", "ffn_gate_inp", "ffn_gate_inp_shexp", "ssm_conv1d", "ssm_a", "ssm_d")
"""Matrices that the conversion leaves in float32 (conversion/base.py, `prepare_tensors`), and quantization, too."""


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
        end = self.name.removesuffix(".weight").rpartition(".")[2]
        matrix = self.dimensions > 1 and self.name.endswith(".weight")
        return not matrix or end.endswith("_norm") or end in ALWAYS_FLOAT32


def file_tensors(spec: ModelSpec) -> list[FileTensor]:
    """Every tensor of a model's GGUF file. Raises `NotModelled` for families whose files are not described here."""
    if not spec.can.gguf:
        known = ", ".join(having(lambda kind: kind.can.gguf))
        raise NotModelled(f"GGUF files of {spec.model_type} are not modelled yet; {known} are", "model")
    build = Builder(Tape(), bfloat16, unrolled=True)
    build_model(spec, build, next(iter(heads(spec.model_type))))
    corrections = [_correction(each.count, each.slot) for each in build.buffers if each.name.endswith(CORRECTION)]
    return [tensor for parameter in build.parameters for tensor in _tensors(spec, parameter)] + corrections


def _correction(experts: int, slot: Slot | None) -> FileTensor:
    layer = slot.start if slot else None
    return FileTensor(f"blk.{layer}.exp_probs_b.bias", experts, experts, 1, layer)


def _tensors(spec: ModelSpec, parameter: Parameter) -> Iterator[FileTensor]:
    """What one parameter becomes."""
    layer = parameter.slot.start if parameter.slot else None
    before = "" if layer is None else f"blk.{layer}."
    path, _, end = parameter.name.rpartition(".")
    if end not in ("weight", "bias"):
        path, end = parameter.name, "weight"
    if path.endswith("_proj_bias"):
        path, end = path.removesuffix("_bias"), "bias"
    shape = parameter.tensor.shape
    turned = end == "weight" and any(part in path for part in spec.input_first)
    columns = shape[-2] if turned else shape[-1]

    def tensor(name: str, size: int = columns, share: int = 1) -> FileTensor:
        found = f"{before}{name}.{end}"
        return FileTensor(found, size, prod(shape) // share, len(shape), layer, "_exps" in name)

    if path.endswith(CORRECTION):
        yield _correction(prod(shape), parameter.slot)
    elif path.endswith("experts.gate_up_proj"):
        yield tensor("ffn_gate_exps", share=2)
        yield tensor("ffn_up_exps", share=2)
    elif path.endswith("kv_b_proj"):
        keys, values = spec.config()["qk_nope_head_dim"], spec.config()["v_head_dim"]
        for name, size, own in (("attn_k_b", keys, keys), ("attn_v_b", columns, values)):
            yield FileTensor(f"{before}{name}.weight", size, prod(shape) // (keys + values) * own, 3, layer)
    elif (known := _known(path)) is not None:
        yield tensor(known + ("_shexp" if ".shared_" in path and "expert_gate" not in path else ""))
    elif "norm" in path or path in ("ln_f",) or path.startswith("ln_"):
        last = path.rpartition(".")[2]
        if path == "norm" and layer is None:
            yield tensor("output_norm")
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
