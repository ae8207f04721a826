"""How a model is served."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from estimator.contract.job.part import Count, Length, Part, Storage
from estimator.contract.job.speculation import Draft, Guessed, Speculative

GgufKind = Literal[
    "q8_0",
    "q6_k",
    "q5_k_m",
    "q5_k_s",
    "q5_1",
    "q5_0",
    "q4_k_m",
    "q4_k_s",
    "q4_1",
    "q4_0",
    "iq4_nl",
    "iq4_xs",
    "q3_k_l",
    "q3_k_m",
    "q3_k_s",
    "iq3_m",
    "iq3_s",
    "iq3_xs",
    "iq3_xxs",
    "q2_k",
    "q2_k_s",
    "iq2_m",
    "iq2_s",
    "iq2_xs",
    "iq2_xxs",
    "iq1_m",
    "iq1_s",
    "mxfp4_moe",
]
"""Kinds of GGUF files that are quantized, as llama.cpp names them."""
CacheType = Literal["bf16", "fp16", "fp32", "fp8", "fp4", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]

Engine = Literal["vllm", "sglang", "tensorrt-llm", "transformers", "llama.cpp", "ollama"]


class Serving(Part):
    """How the model is served."""

    engine: Engine = "vllm"
    weights: Literal["bf16", "fp16", "fp32"] | Storage | GgufKind = Field(
        "bf16", description="of llama.cpp the kind of the GGUF file; a model that is named by such a file has its own types"
    )
    weights_group: Count | None = Field(None, description="quantized weights that share a scale; without it, as many as is usual")
    unquantized: list[str] | None = Field(None, description="parts of the names of linear layers that are not quantized")
    mixed_weights: dict[Storage, list[str]] | None = Field(
        None,
        description="of vLLM, SGLang and TensorRT-LLM, other formats of some layers, by parts of their names: {fp8: [self_attn]}",
    )
    kv_cache: CacheType = Field(
        "bf16",
        description="without it, of llama.cpp fp16; what has blocks is llama.cpp's alone, and fp4 SGLang's and TensorRT-LLM's",
    )
    values_cache: CacheType | None = Field(None, description="of llama.cpp, the type of values where it is not that of keys")
    context: Length = Field(4096, description="tokens per sequence, prompt and answer together")
    prompt_length: Length | None = Field(None, description="tokens of a prompt, for the time; without it, half of the context")
    output_length: Length | None = Field(
        None, description="tokens of an answer, for the time; without it, what is left of the context"
    )
    concurrency: Annotated[int, Field(ge=1, le=2**20)] = Field(1, description="sequences at the same time")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="of vLLM, the share of a GPU's memory that it may take; without it, its release's own"
    )
    engine_version: Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{1,3})?$")] | None = Field(
        None, description="of vLLM, SGLang and TensorRT-LLM, the release, such as 0.19.1; without it, the newest that is known"
    )
    runner: Literal["generate", "pooling"] | None = Field(
        None,
        description="of vLLM, whether it writes text or gives vectors of texts (--runner); without it, as the model is made for",
    )
    language_model_only: bool = Field(
        False, description="of vLLM, whether it leaves out what sees or hears, and reads texts alone (--language-model-only)"
    )
    enable_lora: bool = Field(False, description="of vLLM, whether requests may name a LoRA adapter (--enable-lora)")
    max_loras: Annotated[int, Field(ge=1, le=2**12)] | None = Field(
        None, description="of vLLM, adapters of a pass at most, each of which has a slot on the GPU; without it, 1"
    )
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None = Field(
        None, description="of vLLM, the highest rank of adapters, for which every slot has room; without it, 16"
    )
    max_num_seqs: Annotated[int, Field(ge=1, le=2**16)] | None = Field(
        None, description="of vLLM, sequences of a pass at most; without it, its own for the GPU"
    )
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=2**24)] | None = Field(
        None, description="of vLLM, tokens of a pass at most; without it, its server's own for the GPU"
    )
    block_size: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="of vLLM, tokens of a block of its cache; without it, its own"
    )
    enforce_eager: bool = Field(False, description="of vLLM, whether it captures no CUDA graphs")
    enable_expert_parallel: bool = Field(
        False, description="of vLLM, whether tensor-parallel ranks hold whole experts, instead of a part of each"
    )
    moe_mxfp8: bool | None = Field(
        None,
        description="of vLLM on Blackwell, whether experts in MXFP4 multiply numbers in MXFP8 "
        "(VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8); without it, in BF16",
    )
    data_parallel_size: Count | None = Field(
        None,
        description="of vLLM, replicas of one engine (--data-parallel-size), whose experts lie on all of them; without it, those "
        "of parallelism.data with enable_expert_parallel, else 1: each replica alone",
    )
    decode_context_parallel_size: Count | None = Field(
        None,
        description="of vLLM, tensor-parallel ranks over which the tokens of a sequence's cache are spread "
        "(--decode-context-parallel-size); without it, 1",
    )
    cpu_offload_gb: Annotated[float, Field(ge=0, le=10**5)] = Field(
        0, description="of vLLM, GiB of each GPU's weights that lie in the host's memory (--cpu-offload-gb)"
    )
    speculative_config: Speculative | None = Field(
        None, description="of vLLM, how next tokens are guessed ahead (--speculative-config); without it, not at all"
    )
    speculative_acceptance: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="how likely a guessed token is accepted if those before it were, for the time; without it, unknown",
    )
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="of SGLang, the share of what is free before loading that weights and cache may have; without it, its own "
        "for the GPU",
    )
    chunked_prefill_size: Annotated[int, Field(ge=1, le=2**24)] | None = Field(
        None, description="of SGLang, tokens of prompts in a pass at most; without it, its own for the GPU"
    )
    max_running_requests: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        None, description="of SGLang, requests at the same time at most; without it, what its cache allows"
    )
    max_total_tokens: Annotated[int, Field(ge=1, le=2**40)] | None = Field(
        None,
        description="of SGLang, and TensorRT-LLM (kv_cache_config.max_tokens), tokens of its cache at most; without it, what the "
        "memory allows",
    )
    page_size: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="of SGLang, tokens of a page of its cache; without it, 1"
    )
    attn_dp_size: Count | None = Field(
        None,
        description="of SGLang, parts of the tensor-parallel ranks whose attention and cache are their own (--attn-dp-size; "
        "before, --dp-size with --enable-dp-attention); without it, 1",
    )
    ep_size: Count | None = Field(
        None,
        description="of SGLang and TensorRT-LLM, parts of the tensor-parallel ranks over which whole experts are spread "
        "(--ep-size, --ep_size); without it, 1: a part of each on every rank",
    )
    cuda_graph_max_bs: Annotated[int, Field(ge=1, le=2**16)] | None = Field(
        None, description="of SGLang, sequences of the largest decoding step that is captured; without it, its own for the GPU"
    )
    disable_cuda_graph: bool = Field(
        False, description="of SGLang, and TensorRT-LLM (cuda_graph_config: null), whether it captures no CUDA graphs"
    )
    disable_radix_cache: bool = Field(False, description="of SGLang, whether it keeps no prefixes of requests that are done")
    swa_full_tokens_ratio: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="of SGLang, tokens that layers with a window have room for, as a share of those of others; without it, 0.8",
    )
    mamba_full_memory_ratio: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None, description="of SGLang, memory for states as a share of that for keys and values; without it, 0.9"
    )
    speculative_algorithm: Literal["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"] | None = Field(
        None, description="of SGLang, what guesses next tokens ahead; without it, nothing does"
    )
    speculative_draft_model_path: Draft | None = Field(
        None, description="of SGLang, the model or head that guesses; of NEXTN the checkpoint's own layers"
    )
    speculative_num_steps: Guessed | None = Field(
        None, description="of SGLang, passes of what guesses before each that verifies; without it, its own for the model"
    )
    speculative_eagle_topk: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="of SGLang, guesses that each pass branches into; without it, its own for the model"
    )
    speculative_num_draft_tokens: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="of SGLang, tokens of a sequence that a pass verifies; without it, its own for the model"
    )
    free_gpu_memory_fraction: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="of TensorRT-LLM, the share of what weights and a pass leave free that its cache takes "
        "(kv_cache_config.free_gpu_memory_fraction); without it, 0.9",
    )
    max_batch_size: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        None, description="of TensorRT-LLM, requests at the same time at most; without it, 2048"
    )
    max_num_tokens: Annotated[int, Field(ge=1, le=2**24)] | None = Field(
        None, description="of TensorRT-LLM, tokens of a pass at most; without it, 8192"
    )
    tokens_per_block: Literal[2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] | None = Field(
        None, description="of TensorRT-LLM, tokens of a block of its cache (kv_cache_config.tokens_per_block); without it, 32"
    )
    enable_attention_dp: bool = Field(
        False,
        description="of TensorRT-LLM, whether every rank has attention, a cache and requests of its own, and shares nothing but "
        "experts",
    )
    model_draft: Draft | None = Field(
        None, description="of llama.cpp, a smaller model that guesses next tokens ahead (model_draft)"
    )
    weights_draft: Literal["bf16", "fp16", "fp32"] | GgufKind | None = Field(
        None, description="of llama.cpp, the kind of the smaller model's GGUF file; without it, the model's"
    )
    gpu_layers_draft: Annotated[int, Field(ge=0, le=2**16)] | None = Field(
        None, description="of llama.cpp, the smaller model's layers on the GPU (n_gpu_layers_draft); without it, all"
    )
    spec_draft_n_max: Guessed | None = Field(
        None, description="of llama.cpp, tokens that are guessed ahead at most (spec_draft_n_max); without it, 3"
    )
    gpu_layers: Annotated[int, Field(ge=0, le=2**16)] | None = Field(
        None, description="of llama.cpp, layers on the GPU, with the output as one more (n_gpu_layers); without it, all"
    )
    tensor_split: Annotated[list[Annotated[float, Field(ge=0, le=10**6)]], Field(min_length=1, max_length=128)] | None = Field(
        None, description="of llama.cpp, each GPU's share of the layers (tensor_split), such as [3, 1]; without it, equal ones"
    )
    cpu_moe: bool | None = Field(None, description="of llama.cpp, whether all experts stay in the host's memory (cpu_moe)")
    n_cpu_moe: Annotated[int, Field(ge=0, le=2**16)] | None = Field(
        None, description="of llama.cpp, layers whose experts stay in the host's memory, from the first on (n_cpu_moe)"
    )
    override_tensor: Annotated[list[Annotated[str, Field(max_length=600)]], Field(max_length=100)] | None = Field(
        None,
        description="of llama.cpp, where tensors lie whose names match, such as exps=CPU or blk\\.1\\.=CUDA0 (override_tensor); "
        "the first that matches counts",
    )
    kv_unified: bool | None = Field(
        None, description="of llama.cpp, whether sequences share one cache, of the tokens of all (kv_unified)"
    )
    swa_full: bool | None = Field(
        None, description="of llama.cpp, whether layers with a sliding window cache all tokens as well (swa_full)"
    )
    ubatch: Count | None = Field(None, description="of llama.cpp, tokens of a pass (n_ubatch); without it, 512")
    outputs: Count | None = Field(
        None,
        description="of llama.cpp, tokens of a pass whose logits are made at most (n_outputs_max): its server of 2026 makes "
        "one for each sequence; without it, of all, as before",
    )
    flash_attention: bool | None = Field(
        None, description="of llama.cpp, whether attention is its flash attention (flash_attn); without it, true"
    )
    hours: Annotated[float, Field(gt=0, le=10**6)] | None = Field(None, description="how long it is served, for the cost")

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of a prompt and of its answer, one at least of each."""
        prompt = self.prompt_length or max(1, self.context - (self.output_length or self.context // 2))
        return prompt, self.output_length or max(1, self.context - prompt)
