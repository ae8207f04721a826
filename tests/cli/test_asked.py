"""Questions as people speak them, and the arguments that they mean."""

from __future__ import annotations

import pytest

from estimator.cli.asked import written
from estimator.contract.errors import InvalidJob
from estimator.questions.read import read


@pytest.mark.parametrize(
    ("question", "arguments"),
    [
        ("how fast is 70B on 8xH100 for 20 users?", ["70B", "--on", "8xH100", "--concurrency", "20"]),
        ("how many tokens per second does qwen3 8b run on a 3090", ["qwen3 8b", "--on", "a 3090"]),
        (
            "kimi k2 on 8xH200 with 50 users at 32k context",
            ["kimi k2", "--on", "8xH200", "--concurrency", "50", "--context", "32k"],
        ),
        ("can a 4090 run gemma 3 27b with a context of 8k", ["gemma 3 27b", "--on", "a 4090", "--context", "8k"]),
        ("how many H100 for kimi k2.5", ["kimi k2.5", "--on", "H100"]),
        ("how many rtx 4090s do I need to run llama 3 70b?", ["llama 3 70b", "--on", "rtx 4090"]),
        ("which gpu for llama 3 70b", ["which", "llama 3 70b"]),
        ("what GPU do I need to fine-tune llama 3 8b?", ["which", "llama 3 8b", "--task", "qlora"]),
        ("how much vram does qwen3 32b need with 32k context", ["which", "qwen3 32b", "--context", "32k"]),
        ("how many GPUs would it take to train 70B with lora", ["which", "70B", "--task", "lora"]),
        ("what is the cheapest card to run gpt-oss-120b", ["which", "gpt-oss-120b"]),
        ("what is the max context for llama 3.1 8b on a 3060", ["llama 3.1 8b", "--on", "a 3060"]),
        ("what models fit on 24gb", ["models", "--fits", "--on", "24gb"]),
        ("which models can I run on my laptop?", ["models", "--fits", "--on", "here"]),
        ("will 8B run on this machine", ["8B", "--on", "here"]),
        ("qwen3-32b q4 on 24gb at 32k", ["qwen3-32b q4", "--on", "24gb", "--context", "32k"]),
        (
            "how much does it cost to fine-tune llama 3 8b on 100M tokens",
            ["which", "llama 3 8b", "--task", "qlora", "--tokens", "100M"],
        ),
        (
            "how long does it take to fine-tune llama 3 8b on 8xH100 with 100M tokens?",
            ["llama 3 8b", "--on", "8xH100", "--tokens", "100M"],
        ),
        (
            "how many users can 8xH100 serve with llama 3.3 70b",
            ["max", "llama 3.3 70b", "serving.concurrency", "--on", "8xH100", "--task", "serve"],
        ),
        (
            "how many people at once can qwen3 8b serve on a 4090?",
            ["max", "qwen3 8b", "serving.concurrency", "--on", "a 4090", "--task", "serve"],
        ),
        ("how many GPU(s) do I need to run 70B, please?", ["which", "70B"]),
        ("how many h100s to serve 20 users with 70B", ["70B", "--on", "h100", "--concurrency", "20"]),
        ("could I serve 70B to 20 users on 8xH100", ["70B", "--on", "8xH100", "--concurrency", "20"]),
        ("how much gpu memory to fine-tune 8B with lora", ["which", "8B", "--task", "lora"]),
        ("how much vram for 70B at 4 bit", ["which", "70B", "--task", "serve-4bit"]),
        ("can I do a full fine-tune of 8B on 80GB", ["8B", "--on", "80GB", "--task", "full"]),
        ("cheapest gpu for running 13B", ["which", "13B"]),
        ("what do I need to run 70B", ["which", "70B"]),
        ("how many 4090s for a 70B model with an 8k context window", ["70B", "--on", "4090", "--context", "8k"]),
        ("what can I run 70B on?", ["which", "70B"]),
        ("do I need an H100 for 70B", ["70B", "--on", "an H100"]),
        ("I have a 4090, can I run 13B?", ["13B", "--on", "a 4090"]),
        ("does 13B fit 24GB", ["13B", "--on", "24GB"]),
        ("what context can I get with 8B on 24GB", ["8B", "--on", "24GB"]),
        ("how long would training 70B on 8xH100 take", ["70B", "--on", "8xH100"]),
        ("what is the largest model I can run on 24GB", ["models", "--fits", "--on", "24GB"]),
        (
            "how many users can I serve with 8B on a 4090",
            ["max", "8B", "serving.concurrency", "--on", "a 4090", "--task", "serve"],
        ),
        *(
            (asking, ["max", "70B", "serving.concurrency", "--on", "8xH100", "--task", "serve", "--context", "32k"])
            for asking in (
                "how many users can 8xH100 serve with 70B at 32k context",
                "how many users with 32k tokens each can 8xH100 handle running 70B?",
                "how many people can run 70B on 8xH100 with 32k of context each",
                "how many concurrent users for 70B on 8xH100 at 32k",
                "70B on 8xH100 with 32k context, how many users?",
            )
        ),
        ("llama 4 scout on 4x h100 vllm 128k context", ["llama 4 scout", "--on", "4x h100", "--context", "128k"]),
        ("will a 32b model fit in 24gb at q4", ["32b q4", "--on", "24gb"]),
        ("how much vram for deepseek v3.2 4bit", ["which", "deepseek v3.2", "--task", "serve-4bit"]),
        ("qwen3 32b 4bit on a 4090", ["qwen3 32b", "--on", "a 4090", "--task", "serve-4bit"]),
        ("llama 3 70b int8 on a100 80gb", ["llama 3 70b", "--on", "a100 80gb", "--task", "serve-8bit"]),
        ("llama 3 8b bnb 4bit on 24gb", ["llama 3 8b bnb 4bit", "--on", "24gb"]),
        (
            "can i run mixtral 8x7b on two 3090s with llama.cpp",
            ["mixtral 8x7b", "--on", "two 3090s", "--engine", "llama.cpp"],
        ),
        (
            "fine tune llama 3.1 8b with lora on a 24gb card at 8k context",
            ["llama 3.1 8b", "--on", "a 24gb card", "--sequence", "8k", "--task", "lora"],
        ),
        ("qlora 70b on 48gb with batch size 4", ["70b", "--on", "48gb", "--task", "qlora", "--batch", "4"]),
        ("8b on 24gb, batch 8, 2k tokens", ["8b", "--on", "24gb", "--context", "2k", "--concurrency", "8"]),
        ("will 8b run on a 3060 12gb w/ 32k", ["8b", "--on", "a 3060 12gb", "--context", "32k"]),
        ("8b on 24gb batch 4", ["8b", "--on", "24gb", "--concurrency", "4"]),
        (
            "is 8xH200 enough for deepseek v3 fp8 with 100 concurrent users",
            ["deepseek v3 fp8", "--on", "8xH200", "--concurrency", "100"],
        ),
        ("i have 2x3090 what can i run", ["models", "--fits", "--on", "2x3090"]),
        (
            "I've got a macbook pro m3 max with 64gb, can it run qwen3-30b-a3b",
            ["qwen3-30b-a3b", "--on", "a macbook pro m3 max with 64gb"],
        ),
        ("max context for llama 3.1 8b on a 4090", ["llama 3.1 8b", "--on", "a 4090"]),
        (
            "max batch size for qlora mistral 7b on a 3090",
            ["max", "mistral 7b", "training.micro_batch_size", "--on", "a 3090", "--task", "qlora"],
        ),
        (
            "how long does it take to train a 7B model on 1T tokens with 256 H100s",
            ["7B", "--on", "256 H100s", "--tokens", "1T"],
        ),
        ("whats the cheapest way to serve llama 3.3 70b to 50 users", ["which", "llama 3.3 70b", "--concurrency", "50"]),
        ("gemma 3 27b vram requirements", ["which", "gemma 3 27b"]),
        ("train gpt2 from scratch on 8xA100", ["gpt2", "--on", "8xA100", "--task", "full-mixed"]),
        (
            "how much does it cost to pretrain a 1b model on 20b tokens",
            ["which", "1b", "--tokens", "20b", "--task", "full-mixed"],
        ),
        (
            "i want to run deepseek-r1-distill-qwen-32b on my rtx 4090 at 32k context",
            ["deepseek-r1-distill-qwen-32b", "--on", "my rtx 4090", "--context", "32k"],
        ),
        (
            "what gpu to fine-tune llama 3 8b at 8k context",
            ["which", "llama 3 8b", "--task", "qlora", "--sequence", "8k"],
        ),
        ("fine-tune 8b on 24gb at 8k", ["8b", "--on", "24gb", "--sequence", "8k", "--context", "8k"]),
        ("llama 3.3 70b on 2x4090 with sglang", ["llama 3.3 70b", "--on", "2x4090", "--engine", "sglang"]),
        ("lora 8b on 24gb in 4 bit", ["8b", "--on", "24gb", "--task", "qlora"]),
        ("8b on a 4090 in bf16", ["8b bf16", "--on", "a 4090"]),
        ("what gpu for 70b in ollama", ["which", "70b", "--task", "serve-gguf"]),
        ("what gpu for 70b with sglang", None),
        ("serve 70b on 8xA100 for 32 users", ["70b", "--on", "8xA100", "--concurrency", "32"]),
        (
            "with 2xH100, how many users fit on qwen3 32b at 8k context each",
            ["max", "qwen3 32b", "serving.concurrency", "--on", "2xH100", "--task", "serve", "--context", "8k"],
        ),
        ("which of them is better, a 4090 or a 5090", None),
        ("can two 3090s with nvlink run 70b at 8 bit", ["70b", "--on", "two 3090s with nvlink", "--task", "serve-8bit"]),
        ("how big a model can i train on 8xA100", ["models", "--fits", "--on", "8xA100", "--task", "qlora"]),
        (
            "what batch size can i use for full finetuning of llama 3.2 1b on a 4090",
            ["max", "llama 3.2 1b", "training.micro_batch_size", "--on", "a 4090", "--task", "full"],
        ),
        (
            "max batch size for qlora 8b on a 4090 at 4k context",
            ["max", "8b", "training.micro_batch_size", "--on", "a 4090", "--task", "qlora", "--sequence", "4k"],
        ),
        ("how much does it cost to run llama 3.3 70b 24/7", ["which", "llama 3.3 70b"]),
        ("llama 3 8b", None),
        ("which 70B", None),
        ("on " * 200, None),
        ("1 " * 200, None),
    ],
)
def test_a_question_is_read_with_its_numbers(question: str, arguments: list[str] | None) -> None:
    found = read(question)
    assert (None if found is None else written(found)) == arguments


@pytest.mark.parametrize(
    ("question", "strange"),
    [
        ("dpo on qwen2.5 7b with 2 A100s", "'dpo'"),
        ("can i train a 70b on 8x h100 with fsdp", "'fsdp'"),
        ("full fine-tune of 8b on 80gb at 4 bit", "'4', 'bit'"),
        ("train 8b on 24gb without lora", "'without'"),
    ],
)
def test_words_that_may_matter_are_not_passed_over(question: str, strange: str) -> None:
    with pytest.raises(InvalidJob, match=f"not understood beside .*: {strange}"):
        read(question)
