"""A GGUF file's metadata under the names of config.json, for encoders: models whose tokens see each other in both directions.

Keys after what llama.cpp's conversion/bert.py and gemma.py write. A file has no pooler, no output layer, and no rows of learned
positions that stand for padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.weights.gguf_said import Said, UnsaidError, body, decoder

PADDING = 1
"""The padding's place in the vocabularies of RoBERTa and its like, after which positions begin."""
BY_TOKENIZER = {"bert": "bert", "gpt2": "roberta", "t5": "xlm-roberta"}
"""Which of the models that are all "bert" has which tokenizer (`tokenizer.ggml.model`)."""


def _encoder(said: Said) -> dict[str, Any]:
    return {
        **{name: value for name, value in body(said).items() if name != "tie_word_embeddings"},
        "intermediate_size": said.size("feed_forward_length"),
        "num_attention_heads": said.size("attention.head_count"),
        "max_position_embeddings": said.size("context_length"),
    }


def _types(said: Said) -> dict[str, Any]:
    return {"type_vocab_size": said.rows("token_types.weight")}


def _bert(said: Said) -> dict[str, Any]:
    found = {**_encoder(said), "max_position_embeddings": said.rows("position_embd.weight")}
    kind = BY_TOKENIZER.get(str(said.metadata.get("tokenizer.ggml.model")))
    if kind is None:
        raise UnsaidError("tokenizer.ggml.model")
    if kind == "bert" and not said.has("token_types.weight"):
        return {"model_type": "distilbert", **found}
    if kind != "bert":
        found |= {"max_position_embeddings": found["max_position_embeddings"] + PADDING + 1, "pad_token_id": PADDING}
    return {"model_type": kind, **found, **_types(said)}


def _jina3(said: Said) -> dict[str, Any]:
    found = _encoder(said)
    positions = found["max_position_embeddings"] + PADDING + 1
    return {"model_type": "jina_embeddings_v3", **found, "max_position_embeddings": positions, **_types(said)}


def _modern_bert(said: Said) -> dict[str, Any]:
    windows = {"local_attention": said.size("attention.sliding_window")}
    period = {"global_attn_every_n_layers": said.size("attention.sliding_window_pattern")}
    return {"model_type": "modernbert", **_encoder(said), **windows, **period, **said.optional(hidden_act="hidden_activation")}


def _eurobert(said: Said) -> dict[str, Any]:
    heads = said.optional(num_key_value_heads="attention.head_count_kv")
    return {"model_type": "eurobert", **_encoder(said), **heads, "head_dim": said.head()}


def _embedding_gemma(said: Said) -> dict[str, Any]:
    window = {"sliding_window": said.size("attention.sliding_window"), "use_bidirectional_attention": True}
    return {"model_type": "gemma3_text", **decoder(said), **window}


ENCODERS: dict[str, Callable[[Said], dict[str, Any]]] = {
    "bert": _bert,
    "nomic-bert": lambda said: {"model_type": "nomic_bert", **_encoder(said), **_types(said)},
    "jina-bert-v3": _jina3,
    "modern-bert": _modern_bert,
    "eurobert": _eurobert,
    "gemma-embedding": _embedding_gemma,
}
"""The mapping of each `general.architecture`."""
