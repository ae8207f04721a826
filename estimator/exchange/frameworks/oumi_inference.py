"""oumi's YAML of `oumi infer`, whose engines are vLLM's `LLM`, llama.cpp by its Python package, and transformers' `generate`.

oumi 0.9: core/configs/inference_config.py, inference/{vllm,llama_cpp,native_text}_inference_engine.py.
"""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import NotModelled
from estimator.exchange import spread as spreading
from estimator.exchange import trainer
from estimator.exchange.configuration import Configuration
from estimator.exchange.frameworks import llama_cpp
from estimator.exchange.frameworks.engines import delegate

REMOTE = ("REMOTE_VLLM", "SGLANG", "REMOTE", "HUGGING_FACE_ROUTER")
"""Engines that ask a server which is started by another command."""
ANSWER = 1024
"""Tokens of an answer where the file says nothing (generation_params.py)."""


def read(conf: Configuration) -> None:
    """The serving job that a file is."""
    engine = (conf.text("engine") or "NATIVE").upper()
    name, wanted = conf.text("model.model_name"), conf.part("model.model_kwargs")
    tokens, answer = conf.whole("model.model_max_length"), conf.whole("generation.max_new_tokens") or ANSWER
    conf.skip("model.attn_implementation", "generation.batch_size")
    if engine == "VLLM":
        delegate(conf, "vllm", {"model": name, "max_model_len": tokens, **_of_vllm(conf, wanted)})
    elif engine == "LLAMACPP":
        given = {"model": wanted.get("filename"), "hf_repo": name, "ctx_size": tokens, "n_gpu_layers": llama_cpp.ALL}
        delegate(conf, "llama.cpp", {key: value for key, value in given.items() if value})
    elif engine == "NATIVE":
        conf.put("model", name)
        conf.put("task", "serve")
        conf.put("serving.engine", "transformers")
        weights = trainer.dtype(conf, "model.torch_dtype_str")
        conf.put("serving.weights", "nf4" if wanted.get("load_in_4bit") else "int8" if wanted.get("load_in_8bit") else weights)
        conf.put("serving.concurrency", conf.whole("generation.batch_size") or 1)
        conf.put("serving.context", tokens or 2 * answer)
        if tokens is None:
            conf.assume("model.model_max_length", 2 * answer, "nothing limits a prompt: as long as the answer is taken")
        conf.put("serving.output_length", min(answer, (tokens or 2 * answer) - 1))
        spreading.hardware(conf)
    elif engine in REMOTE:
        raise NotModelled("it asks a server, which another command starts: send that command", conf.where("engine"))
    else:
        raise NotModelled(f"{engine[:40]} is a service of others: nothing of it is on a GPU here", conf.where("engine"))


def _of_vllm(conf: Configuration, wanted: Any) -> dict[str, Any]:
    """What oumi gives vLLM's `LLM` beside the model."""
    said: dict[str, Any] = {"dtype": conf.text("model.torch_dtype_str"), "gpu_memory_utilization": 0.9, "enforce_eager": True}
    conf.assume("enforce_eager", True, "oumi's own: no CUDA graphs")
    if conf.gpus > 1:
        said["tensor_parallel_size"] = conf.gpus
    if str(wanted.get("filename", "")).lower().endswith(".gguf"):
        raise NotModelled("GGUF files in vLLM are not modelled: ask of them as of llama.cpp's", conf.where("model.model_kwargs"))
    quantized = wanted.get("quantization_config")
    if wanted.get("load_in_4bit") or wanted.get("load_in_8bit"):
        said["quantization"] = "bitsandbytes"
    elif isinstance(quantized, dict) and quantized.get("quant_method") == "mxfp4":
        said["quantization"] = "mxfp4"
    if conf.has("model.adapter_model"):
        said["enable_lora"] = True
        conf.leave("model.adapter_model", "its rank is not in the file: vLLM's own is taken for it")
    return said | ({"language_model_only": True} if wanted.get("language_model_only") else {})
