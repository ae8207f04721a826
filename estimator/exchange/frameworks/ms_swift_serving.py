"""ms-swift's `swift deploy`, `infer`, `app` and `rollout`: vLLM, SGLang, or transformers' `generate`.

ms-swift 4.6: arguments/{infer_args,deploy_args}.py; an engine's arguments are its own, after `vllm_` and `sglang_`.
"""

from __future__ import annotations

from estimator.contract.errors import NotModelled
from estimator.exchange import spread as spreading
from estimator.exchange import trainer
from estimator.exchange.configuration import Configuration
from estimator.exchange.frameworks.engines import delegate

COMMANDS = ("deploy", "infer", "app", "rollout")
NAMES = {"vllm": "model", "sglang": "model_path"}
"""What each engine calls the model."""
USUAL = {"gpu_memory_utilization": 0.9, "max_num_seqs": 256}
"""What ms-swift tells vLLM where it is told nothing (rlhf_trainers/args_mixin.py)."""
NEVER = ("use_async_engine", "limit_mm_per_prompt", "mm_processor_cache_gb", "reasoning_parser", "engine_kwargs")
"""Settings after `vllm_` that change nothing that a GPU holds, or are no words of a command."""
ANSWER = 2048
"""Tokens of an answer where nothing limits it."""


def read(conf: Configuration) -> None:
    """The serving job that arguments are."""
    command = conf.launch.program.rpartition(" ")[2]
    engine = "vllm" if command == "rollout" else (conf.text("infer_backend") or "transformers").lower()
    task = (conf.text("task_type") or "causal_lm").lower()
    if task not in ("causal_lm", "embedding"):
        raise NotModelled(f"serving of {task[:40]} is not modelled", conf.where("task_type"))
    if conf.names("adapters"):
        conf.leave("adapters", "adapters beside the weights: their rank is not in the command")
    if engine in NAMES:
        conf.skip("max_length", "max_new_tokens", "max_batch_size")
        given = {key.removeprefix(f"{engine}_"): conf.take(key) for key in list(conf.given) if key.startswith(f"{engine}_")}
        given = {key: value for key, value in given.items() if key not in NEVER}
        given[NAMES[engine]] = conf.text("model")
        given["dtype"] = str(conf.text("torch_dtype") or "auto").removeprefix("torch.")
        if engine == "vllm":
            given = {**USUAL, **given} | ({"enable_lora": True} if conf.names("adapters") else {})
        delegate(conf, engine, given)
    elif engine in ("transformers", "pt"):
        conf.put("model", conf.text("model"))
        conf.put("task", "serve")
        conf.put("serving.engine", "transformers")
        weights = trainer.dtype(conf, "torch_dtype")
        bits = conf.whole("quant_bits") if (conf.text("quant_method") or "bnb") == "bnb" else None
        conf.put("serving.weights", {4: "nf4", 8: "int8"}.get(bits or 0, weights))
        conf.put("serving.concurrency", conf.whole("max_batch_size") or 1)
        answer = conf.whole("max_new_tokens") or ANSWER
        tokens = conf.whole("max_length") or 2 * answer
        conf.put("serving.context", tokens)
        if not conf.has("max_length"):
            conf.assume("max_length", tokens, "nothing limits a prompt: as long as the answer is taken")
        conf.put("serving.output_length", min(answer, tokens - 1))
        spreading.hardware(conf)
    else:
        raise NotModelled(f"{engine[:40]} is not modelled: ask of vllm, sglang or transformers", conf.where("infer_backend"))
