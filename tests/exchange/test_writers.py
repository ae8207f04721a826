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
SWIFT: dict[str, Any] = {"precision": "bf16-true", "autocast": True}
ZEROED = {"precision": "deepspeed-bf16", "autocast": False}
PLAIN: dict[str, Any] = {"precision": "bf16-true", "optimizer": "adamw_torch", "sequence_length": 512}
KEEPS, FEW, FSDP2 = (
    {"activation_checkpointing": "none"},
    {"targets": ["q_proj", "v_proj"], "dtype": "bf16"},
    {"strategy": "fsdp2"},
)


def trained(training: dict[str, Any], gpus: int = 1, **more: Any) -> dict[str, Any]:
    return {"model": "Qwen/Qwen2.5-0.5B", "hardware": {"gpus": gpus}, "training": {**TUNED, **training}, **more}


def of(model: str, training: dict[str, Any], gpus: int = 1, **more: Any) -> dict[str, Any]:
    return {"model": model, "hardware": {"gpus": gpus}, "training": training, **more}


def served(engine: str, serving: dict[str, Any], gpus: int = 1, **more: Any) -> dict[str, Any]:
    hardware = {"gpu": "h100-80gb", "gpus": gpus}
    return {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "task": "serve",
        "hardware": hardware,
        "serving": {"engine": engine, **serving},
        **more,
    }


ZERO3 = {"parallelism": {"strategy": "zero3"}}
OUMI: dict[str, Any] = {"precision": "bf16-true", "autocast": True}
ZERO2, DDP = ({"parallelism": {"strategy": strategy}} for strategy in ("zero2", "ddp"))
MEGATRON: dict[str, Any] = {"implementation": "megatron"}
VERL: dict[str, Any] = {"precision": "bf16-mixed", "autocast": True, "attention": "flash_attention_2", "gradient_clipping": True}
VERL |= {"optimizer": "adamw_torch", "activation_checkpointing": "full"}
FSDP = {"parallelism": {"strategy": "fsdp2"}}
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
    ("trl", trained({**TRL, "precision": "deepspeed-bf16", "autocast": False}, gpus=4, **ZERO2)),
    ("axolotl", trained({"quantization": "nf4-double", "adapter": LORA, "gradient_accumulation_steps": 4})),
    ("axolotl", trained({"loss": "cut", "attention": "flash_attention_2"}, gpus=2, **DDP)),
    ("axolotl", trained({"implementation": "liger", "loss": "fused", "evaluation": {"micro_batch_size": 2}})),
    ("axolotl", trained({"autocast": False, "loss": "chunked"})),
    ("axolotl", trained({"precision": "bf16-mixed"}, gpus=2, parallelism={"strategy": "fsdp2"})),
    ("llama-factory", trained({**LLAMA_FACTORY, "adapter": LORA})),
    ("llama-factory", trained({**LLAMA_FACTORY, "quantization": "nf4-double", "adapter": {**LORA, "dropout": 0.1}})),
    ("llama-factory", trained({**LLAMA_FACTORY, "precision": "bf16-mixed", "autocast": False, "attention": "flash_attention_2"})),
    ("llama-factory", trained({**LLAMA_FACTORY, "autocast": False, "optimizer": "paged_adamw_8bit"})),
    ("ms-swift", trained({**SWIFT, "adapter": LORA, "gradient_accumulation_steps": 8})),
    ("ms-swift", trained({**SWIFT, "quantization": "nf4-double", "adapter": {**LORA, "targets": ["q_proj"], "dtype": "bf16"}})),
    ("ms-swift", trained({**SWIFT, "attention": "flash_attention_2", "implementation": "liger", "loss": "fused"})),
    ("ms-swift", trained({**SWIFT, **ZEROED, "adapter": LORA}, gpus=2, **ZERO2)),
    ("ms-swift", trained({**SWIFT, "precision": "bf16-mixed"}, gpus=2, parallelism={"strategy": "fsdp2"})),
    ("trl", trained({"objective": {"type": "dpo", "reference": "precomputed"}, "adapter": LORA, "sequence_length": 512})),
    ("trl", trained({"objective": "reward", "precision": "bf16-mixed", "autocast": False}, gpus=2, **DDP)),
    ("axolotl", trained({"objective": "dpo", "adapter": {**LORA, "targets": ["q_proj", "v_proj"]}})),
    ("llama-factory", trained({**LLAMA_FACTORY, "objective": "orpo", "adapter": LORA})),
    ("ms-swift", trained({**SWIFT, "objective": "kto", "adapter": LORA, "micro_batch_size": 2, "sequence_length": 512})),
    ("litgpt", of("llama-2-7b", {**PLAIN, "loss": "chunked", "adapter": {**LORA, "dtype": "bf16"}, **KEEPS})),
    ("litgpt", of("llama-2-7b", {**PLAIN, "loss": "chunked", "adapter": {**LORA, **FEW}, "quantization": "nf4", **KEEPS})),
    ("litgpt", of("llama-2-7b", PLAIN, gpus=4, parallelism={"strategy": "fsdp1"})),
    ("torchtune", of("llama-3.1-8b", {**PLAIN, "loss": "chunked", "micro_batch_size": 2, "optimizer": "paged-adamw"})),
    ("torchtune", of("Qwen/Qwen2.5-0.5B", {**PLAIN, "adapter": {**LORA, "dtype": "bf16"}, "optimizer": "adamw_torch_fused"})),
    ("torchtune", of("qwen3-0.6b", {**PLAIN, "optimizer_in_backward": True, "loss": "chunked", **KEEPS})),
    ("torchtune", of("llama-3.2-3b", {**PLAIN, "adapter": {**LORA, **FEW}, "quantization": "nf4-double", "loss": "chunked"})),
    (
        "torchtune",
        of("llama-3.1-8b", {**PLAIN, "gradient_clipping": True}, gpus=4, parallelism={"strategy": "fsdp2", "tensor": 2}),
    ),
    ("nemo-automodel", of("llama-3.2-3b", {**PLAIN, "adapter": {**LORA, "dtype": "bf16"}}, gpus=2, parallelism=FSDP2)),
    ("nemo-automodel", of("qwen3-4b", {**PLAIN, "loss": "cut", "optimizer": "adam"}, gpus=2, parallelism=FSDP2)),
    ("oumi", trained({**OUMI, "adapter": LORA, "gradient_accumulation_steps": 2})),
    ("oumi", trained({**OUMI, "adapter": LORA, "quantization": "nf4-double"})),
    ("oumi", trained({**OUMI, "adapter": LORA, "quantization": "nf4", "quantization_compute": "fp32"})),
    ("oumi", trained({**OUMI, "precision": "bf16-mixed"}, gpus=4, parallelism={"strategy": "fsdp1"})),
    ("openrlhf", of("llama-3.1-8b", {**ZEROED, "gradient_clipping": True, "sequence_length": 2048}, gpus=8, **ZERO3)),
    (
        "openrlhf",
        of("qwen2.5-7b", {**ZEROED, "adapter": {**LORA, **FEW}, "implementation": "liger", "loss": "fused"}, 2, **ZERO2),
    ),
    ("openrlhf", of("qwen2.5-7b", {**ZEROED, "micro_batch_size": 4}, 8, **ZERO2, offload={"optimizer": "cpu"})),
    (
        "megatron-bridge",
        of("qwen3-8b", {**MEGATRON, "sequence_length": 2048}, gpus=8, parallelism={"tensor": 4, "sequence": True}),
    ),
    (
        "megatron-bridge",
        of(
            "qwen3-30b-a3b",
            {**MEGATRON, "activation_checkpointing": "full", "loss": "fused"},
            gpus=16,
            parallelism={"expert": 8, "tensor": 2, "sequence": True, "expert_tensor": 1, "pipeline": 2},
        ),
    ),
    (
        "megatron-bridge",
        of("llama-3-8b", {**MEGATRON, "adapter": {"type": "lora", "rank": 8, "dropout": 0.05}}, 2, parallelism={"tensor": 2}),
    ),
    (
        "megatron-bridge",
        {
            "model": "llama-3-8b",
            "hardware": {"gpu": "h100-80gb", "gpus": 2},
            "training": {
                **MEGATRON,
                "activation_checkpointing": {"modules": ["mlp"]},
                "fp8": {"param_gather": True, "amax_history_len": 1024},
            },
            "parallelism": {"strategy": "zero1"},
        },
    ),
    ("verl", of("Qwen/Qwen2.5-0.5B", {**VERL, "micro_batch_size": 2}, 4, **FSDP)),
    ("verl", of("Qwen/Qwen2.5-0.5B", {**VERL, "adapter": LORA}, 2, parallelism={"strategy": "fsdp1"})),
    ("vllm", served("vllm", {"context": 8192})),
    ("vllm", {**served("vllm", {"context": 8192, "weights": "mxfp4", "moe_mxfp8": True}), "model": "openai/gpt-oss-20b"}),
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
    """The file says the same bytes, on the same GPUs, with the allocator's segments as its framework sets them."""
    text = written(job, to)
    found = read(text, around=Surroundings(hardware=Hardware(**job["hardware"])))
    assert found.framework == to
    if grow := found.job.get("training", {}).get("expandable_segments"):
        job = {**job, "training": {**job["training"], "expandable_segments": grow}}
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
    ("axolotl", trained({"objective": "grpo"}), "grpo is not written for axolotl: fine-tuning and dpo, orpo, kto, reward are"),
    ("trl", trained({"objective": "dpo"}, gpus=2, parallelism={"strategy": "fsdp2"}), "training.objective"),
    ("axolotl", trained({}) | {"model": {"model_type": "llama", **SIZES}}, "names a model of the hub"),
    ("llama-factory", trained({}), "a file of llama-factory says: training.precision is bf16-true, and there bf16-mixed"),
    ("ms-swift", trained({"optimizer": "soap"}), "no name for soap"),
    ("litgpt", trained(PLAIN), "an output layer of its own"),
    ("litgpt", of("llama-2-7b", PLAIN), "training.activation_checkpointing is full, and there none"),
    ("litgpt", of("llama-2-7b", {**PLAIN, "optimizer": "lion"}), "litgpt has no lion"),
    ("torchtune", of("llama-2-7b", {**PLAIN, "precision": "bf16-mixed"}), "one type for everything"),
    ("torchtune", of("falcon-7b", PLAIN), "no builder of falcon-7b"),
    ("torchtune", of("llama-2-7b", {**PLAIN, "loss": "cut"}), "torchtune has no cut"),
    ("nemo-automodel", of("llama-2-7b", {**PLAIN, "quantization": "nf4", "adapter": LORA}), "quantization is nf4, and there not"),
    ("openrlhf", trained({}), "under DeepSpeed"),
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
