"""What llama.cpp calls the tensors of encoders, whose files have no output layer.

After gguf-py/gguf/tensor_mapping.py and conversion/bert.py of llama.cpp (October 2026): the pooler and the heads are left out,
and RoBERTa's positions begin after the padding's. Checkpoints of NomicBERT and of Jina's third embeddings have queries, keys and
values in one matrix.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from estimator.families.parameter import Parameter
from estimator.families.spec import ModelSpec

NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "embed_tokens": "token_embd",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "attention.q_lin": "attn_q",
    "attention.k_lin": "attn_k",
    "attention.v_lin": "attn_v",
    "attention.out_lin": "attn_output",
    "sa_layer_norm": "attn_output_norm",
    "ffn.lin1": "ffn_up",
    "ffn.lin2": "ffn_down",
    "output_layer_norm": "layer_output_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm",
    "post_mlp_layernorm": "layer_output_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "attn.Wqkv": "attn_qkv",
    "attn.Wo": "attn_output",
    "attn_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "mlp.Wi": "ffn_up",
    "mlp.Wo": "ffn_down",
    "final_norm": "output_norm",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
}
JOINED = {"attn_q": "attn_qkv", "attn_k": None, "attn_v": None}
"""Where queries, keys and values are one matrix."""


class Stored(NamedTuple):
    """A tensor of the file: its name without layer and end, and its elements."""

    name: str
    elements: int


def stored(spec: ModelSpec, parameter: Parameter) -> Stored | None:
    """What one parameter of an encoder becomes; None where it is left out, or lies in another's tensor."""
    path, elements = parameter.name.rpartition(".")[0], prod(parameter.tensor.shape)
    name = NAMES.get(path)
    if name == "position_embd":
        return Stored(name, elements // parameter.tensor.shape[0] * (spec.longest_sequence or parameter.tensor.shape[0]))
    if name in JOINED and spec.can.graph in ("nomic-bert", "jina-3"):
        whole = JOINED[name]
        return Stored(whole, 3 * elements) if whole else None
    if name == "attn_output_norm" and spec.can.graph == "euro-bert":
        return Stored("ffn_norm", elements)
    return Stored(name, elements) if name else None
