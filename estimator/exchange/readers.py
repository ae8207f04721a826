"""What reads the files of each framework and of each program, in one table each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from estimator.exchange import accelerate, deepspeed, megatron_job, torchtitan_job
from estimator.exchange.compose import compose
from estimator.exchange.configuration import Configuration
from estimator.exchange.found import Found
from estimator.exchange.frameworks import (
    axolotl,
    deepspeed_chat,
    huggingface,
    litgpt,
    llama_cpp,
    llama_factory,
    llama_factory_v1,
    llm_foundry,
    megatron_bridge,
    ms_swift,
    ms_swift_megatron,
    nemo_automodel,
    ollama,
    open_instruct,
    openrlhf,
    oumi,
    sglang,
    tensorrt_llm,
    torchtune,
    unsloth,
    verl,
    vllm,
    vllm_recipe,
)
from estimator.exchange.platforms import Inside, dstack, kserve, kubernetes, skypilot

FRAMEWORKS: dict[str, Callable[[Configuration], None]] = {
    "axolotl": axolotl.read,
    "llama-factory": llama_factory.read,
    "llama-factory-v1": llama_factory_v1.read,
    "trl": huggingface.read,
    "transformers": huggingface.read,
    "unsloth": unsloth.read,
    "ms-swift": ms_swift.read,
    "ms-swift-megatron": ms_swift_megatron.read,
    "nemo-automodel": nemo_automodel.read,
    "megatron-bridge": megatron_bridge.read,
    "litgpt": litgpt.read,
    "torchtune": torchtune.read,
    "oumi": oumi.read,
    "deepspeed-chat": deepspeed_chat.read,
    "verl": verl.read,
    "openrlhf": openrlhf.read,
    "open-instruct": open_instruct.read,
    "llm-foundry": llm_foundry.read,
    "vllm": vllm.read,
    "vllm-recipe": vllm_recipe.read,
    "sglang": sglang.read,
    "tensorrt-llm": tensorrt_llm.read,
    "llama.cpp": llama_cpp.read,
    "ollama": ollama.read,
}
"""Frameworks whose files are whole jobs."""
PARTS: dict[str, Callable[[str], Found]] = {
    "deepspeed": deepspeed.read,
    "accelerate": accelerate.read,
    "torchtitan": torchtitan_job.read,
    "megatron": megatron_job.read,
}
"""Programs whose files say how a job is spread, without a model."""
PLATFORMS: dict[str, Callable[[Mapping[str, Any]], Inside]] = {
    "skypilot": skypilot,
    "dstack": dstack,
    "kserve": kserve,
    "kubernetes": kubernetes,
    "compose": compose,
}
"""Whose files hold a command, and ask for GPUs."""
LATER = {"llama-factory": "llama-factory-v1"}
"""Frameworks whose command reads the files of another version, too."""
FILES = ("llama-factory", "axolotl", "ms-swift", "oumi")
"""Commands of frameworks whose words end with a file of settings."""
SCRIPTED = ("trl", "transformers")
"""Frameworks whose programs are scripts of the user's, which may hold the settings themselves."""
OVERRIDES = ("verl", "megatron-bridge")
"""Frameworks whose words are settings with their values: `a.b=c`."""
SHORT: dict[str, Mapping[str, str]] = {
    "llama.cpp": llama_cpp.SHORT,
    "vllm": vllm.SHORT,
    "sglang": sglang.SHORT,
    "oumi": oumi.SHORT,
    "megatron-bridge": megatron_bridge.SHORT,
}
"""Short options of commands, and what they are short for."""
