"""Whole jobs as files of the frameworks that run them: read back, the same to the byte; or refused by the field that differs."""

from __future__ import annotations

from typing import Any

import pytest

from estimator import InvalidJob, estimate
from estimator.contract.job import Hardware
from estimator.exchange import Surroundings, read, written
from estimator.exchange.writers import WHOLE

LORA = {"type": "lora", "rank": 16, "targets": "all-linear", "dtype": "fp32"}
TUNED: dict[str, Any] = {"precision": "bf16-true", "autocast": True, "gradient_clipping": True, "optimizer": "adamw_torch_fused"}
TRL, LLAMA_FACTORY = {"loss": "fused"}, {"reentrant_checkpointing": True}


def trained(training: dict[str, Any], gpus: int = 1, **more: Any) -> dict[str, Any]:
    return {"model": "Qwen/Qwen2.5-0.5B", "hardware": {"gpus": gpus}, "training": {**TUNED, **training}, **more}


def served(engine: str, serving: dict[str, Any], gpus: int = 1, **more: Any) -> dict[str, Any]:
    hardware = {"gpu": "h100-80gb", "gpus": gpus}
    return {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "task": "serve",
        "hardware": hardware,
        "serving": {"engine": engine, **serving},
        **more,
    }


ZERO2, DDP = ({"parallelism": {"strategy": strategy}} for strategy in ("zero2", "ddp"))
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}
JOBS: list[tuple[str, dict[str, Any]]] = [
    ("trl", trained(TRL)),
    ("trl", trained({**TRL, "adapter": LORA, "sequence_length": 1024, "micro_batch_size": 4})),
    (
        "trl",
        trained({**TRL, "quantization": "nf4-double", "adapter": {**LORA, "dtype": "bf16", "targets": ["q_proj", "v_proj"]}}),
    ),
    ("trl", trained({**TRL, "precision": "bf16-mixed", "autocast": False, "optimizer": "adamw_bnb_8bit"}, gpus=2, **DDP)),
    ("trl", trained({**TRL, "precision": "32-true", "autocast": False, "activation_checkpointing": "none"})),
    (
        "trl",
        trained({**TRL, "precision": "bf16-mixed"}, gpus=4, parallelism={"strategy": "fsdp2", "reshard_after_forward": False}),
    ),
    ("trl", trained({**TRL, "precision": "deepspeed-bf16", "autocast": False, "gradient_clipping": False}, gpus=4, **ZERO2)),
    ("axolotl", trained({"quantization": "nf4-double", "adapter": LORA, "gradient_accumulation_steps": 4})),
    ("axolotl", trained({"loss": "cut", "attention": "flash_attention_2"}, gpus=2, **DDP)),
    ("axolotl", trained({"implementation": "liger", "loss": "fused", "evaluation": {"micro_batch_size": 2}})),
    ("axolotl", trained({"autocast": False, "loss": "chunked"})),
    ("axolotl", trained({"precision": "bf16-mixed"}, gpus=2, parallelism={"strategy": "fsdp2"})),
    ("llama-factory", trained({**LLAMA_FACTORY, "adapter": LORA})),
    ("llama-factory", trained({**LLAMA_FACTORY, "quantization": "nf4-double", "adapter": {**LORA, "dropout": 0.1}})),
    ("llama-factory", trained({**LLAMA_FACTORY, "precision": "bf16-mixed", "autocast": False, "attention": "flash_attention_2"})),
    ("llama-factory", trained({**LLAMA_FACTORY, "autocast": False, "optimizer": "paged_adamw_8bit"})),
    ("vllm", served("vllm", {"context": 8192})),
    (
        "vllm",
        served(
            "vllm",
            {"context": 4096, "weights": "fp8", "kv_cache": "fp8", "enforce_eager": True},
            parallelism={"tensor": 2},
            gpus=2,
        ),
    ),
    (
        "vllm",
        served(
            "vllm",
            {
                "max_num_seqs": 64,
                "gpu_memory_utilization": 0.8,
                "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
            },
        ),
    ),
    ("sglang", served("sglang", {"context": 8192, "mem_fraction_static": 0.8, "chunked_prefill_size": 4096})),
    (
        "sglang",
        served("sglang", {"weights": "fp8", "kv_cache": "fp8", "disable_cuda_graph": True}, parallelism={"tensor": 2}, gpus=2),
    ),
    ("tensorrt-llm", served("tensorrt-llm", {"context": 8192, "kv_cache": "fp8", "free_gpu_memory_fraction": 0.8})),
    (
        "tensorrt-llm",
        served(
            "tensorrt-llm",
            {"max_batch_size": 64, "max_num_tokens": 4096, "tokens_per_block": 64, "disable_cuda_graph": True},
            parallelism={"tensor": 2},
            gpus=2,
        ),
    ),
]


@pytest.mark.parametrize(("to", "job"), JOBS, ids=[f"{to}-{number}" for number, (to, _) in enumerate(JOBS)])
def test_there_and_back(to: str, job: dict[str, Any]) -> None:
    """The file says the same bytes, on the same GPUs."""
    text = written(job, to)
    found = read(text, around=Surroundings(hardware=Hardware(**job["hardware"])))
    assert found.framework == to
    before, after = estimate(job), estimate(found.job)
    assert after.memory == before.memory
    assert not [one for one in found.left_out if one.meant]


REFUSED = [
    ("trl", trained({}), "training.loss is eager, and there fused"),
    (
        "trl",
        trained({**TRL, "adapter": {**LORA, "targets": ["q_proj"], "dtype": "bf16"}}),
        "training.adapter.dtype is bf16, and there fp32",
    ),
    ("trl", trained(TRL, gpus=2, parallelism={"tensor": 2}), "only data parallelism"),
    ("trl", trained({**TRL, "optimizer": "lion"}) | {"task": "serve"}, "trl trains"),
    ("trl", trained({**TRL, "optimizer": "soap"}), "no name for soap"),
    ("axolotl", trained({"adapter": {"type": "ia3"}}), "ia3 is not written yet"),
    ("axolotl", trained({"objective": "dpo"}), "only fine-tuning on texts"),
    ("axolotl", trained({}) | {"model": {"model_type": "llama", **SIZES}}, "names a model of the hub"),
    ("llama-factory", trained({}), "a file of llama-factory says: training.precision is bf16-true, and there bf16-mixed"),
    ("vllm", trained({}), "no job that vllm serves"),
    ("sglang", served("vllm", {}), "no job that sglang serves"),
    ("tensorrt-llm", served("tensorrt-llm", {"weights": "fp8"}), "serving.weights is fp8, and there"),
    ("nemo", trained({}), "no format"),
]


@pytest.mark.parametrize(("to", "job", "said"), REFUSED, ids=[f"{to}-{said}" for to, _, said in REFUSED])
def test_what_a_file_cannot_say_is_refused_by_name(to: str, job: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        written(job, to)


def test_every_writer_is_tried() -> None:
    assert {to for to, _ in JOBS} == set(WHOLE)
