"""What of a family is modelled in addition to its own training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Batch = Literal["padding", "packed"]
BATCHES: tuple[Batch, ...] = ("padding", "packed")
"""Kinds of batches that have masks of their own."""


Graph = Literal[
    "plain",
    "biased",
    "gemma",
    "gemma-2",
    "gemma-3",
    "phi-3",
    "gpt-oss",
    "deepseek",
    "olmoe",
    "granite",
    "smollm-3",
    "seed-oss",
    "ministral-3",
    "qwen-vl",
    "qwen-3-vl",
    "olmo-2",
    "exaone-4",
    "glm-4",
    "glm-4-moe",
    "minimax-m2",
    "command-r",
    "command-r7b",
    "hunyuan",
    "gpt-2",
    "gpt-neox",
    "bloom-1",
    "starcoder-2",
    "nemotron-4",
    "phi-2",
    "olmo-1",
    "falcon-1",
    "stable-lm",
    "mpt-1",
    "arcee-1",
    "qwen-3.5",
    "qwen-3-next",
    "nemotron-h",
    "jamba-1",
    "lfm-2",
    "falcon-h1",
    "glm-1",
    "apertus-1",
    "jais-2",
    "phi-moe",
    "exaone-moe",
    "mellum-2",
    "afmoe-1",
    "gemma-4",
    "state-space",
    "bert-1",
    "bert-distilled",
    "nomic-bert",
    "jina-3",
    "modern-bert",
    "euro-bert",
    "llama-4",
    "cohere2-moe",
    "mistral-4",
    "glm-4v",
    "glm-4v-moe",
    "hunyuan-3",
    "deepseek-3.2",
    "gemma-3n",
    "kimi-linear",
    "mimo-2",
    "minicpm-3",
    "thinned",
    "granite-swa",
    "granite-moe-swa",
]
"""Graphs of llama.cpp's."""


Routing = Literal[
    "softmax",
    "not normalized",
    "shared gate",
    "of the chosen",
    "sigmoid",
    "scaled sigmoid",
    "plain sigmoid",
    "llama-4",
    "corrected",
    "gate beside",
]
"""How experts are chosen in them."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What jobs may do with models of one type. Each is judged by itself, so no type has one because another has it.

    `batches`: kinds of batches whose masks and positions are known. `prompts`: embeddings may stand in the place of token ids.
    `returns_cache`: its output has the cache that it is called with also where `use_cache` is false. `ppo`: TRL's PPO.
    `bottleneck`: AdapterHub's bottleneck adapters, by where its norms stand. `tensor`: training on tensor-parallel ranks with
    DTensor. `megatron`: as Megatron-Core builds it, by what its layers are there. `gguf`: the tensors of its GGUF files.
    `graph`: llama.cpp's graph, by what is special in it; `routing`: how experts are chosen there. `mlx_routers`: how what chooses
    experts is stored where all else is in MLX's few bits.
    """

    batches: tuple[Batch, ...] = ()
    prompts: bool = False
    returns_cache: bool = False
    ppo: bool = False
    bottleneck: Literal["pre-norm", "post-norm"] | None = None
    tensor: bool = False
    megatron: Literal["dense", "mixture", "latent", "classic"] | None = None
    gguf: bool = False
    graph: Graph | None = None
    routing: Routing = "softmax"
    mlx_routers: Literal["as all else", "8 bits", "whole"] = "as all else"
