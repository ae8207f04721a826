"""What the pages ask: fields of a job as inputs, examples to begin with, and the questions that there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from estimator.contract.job import Job, Serving, Training
from estimator.contract.job.optimizer import Implementation
from estimator.planner.by_engine import SERVERS
from estimator.planner.ways import platforms, ways

from ..query import job_fields


@dataclass(frozen=True, slots=True)
class Field:
    """One choice of a form: a select if it has options ("" leaves it to the default), else text. `word`: a key of words.yaml."""

    name: str
    label: str
    options: tuple[str, ...] = ()
    placeholder: str = ""
    word: str = ""

    @property
    def default(self) -> str:
        """The option that a job has by itself."""
        return DEFAULTS.get(self.name, "")


DEFAULTS = job_fields(Job(model="").model_dump(mode="json"))


def _choices(part: Any, name: str) -> tuple[str, ...]:
    return tuple(str(v) for v in part.model_json_schema()["properties"][name].get("enum", ()))


TRAINING_FIELDS = (
    Field("training.precision", "Number format", ("bf16-mixed", "bf16-true", "32-true", "16-true"), word="precision"),
    Field("training.adapter.rank", "LoRA rank", placeholder="none: train all", word="lora"),
    Field("training.quantization", "Frozen weights", ("", "nf4", "nf4-double", "fp4", "int8"), word="quantization"),
    Field("training.sequence_length", "Tokens per sequence", placeholder="2048", word="sequence"),
    Field("training.micro_batch_size", "Sequences per GPU", placeholder="1", word="micro-batch"),
    Field("training.gradient_accumulation_steps", "Accumulation steps", placeholder="1", word="accumulation"),
    Field("training.optimizer", "Optimizer", _choices(Training, "optimizer"), word="optimizer_states"),
    Field("training.activation_checkpointing", "Checkpointing", ("full", "none", "sqrt"), word="checkpointing"),
    Field("training.attention", "Attention", _choices(Training, "attention"), word="attention"),
    Field("training.optimizer_implementation", "Optimizer's code", ("", *get_args(Implementation)), word="optimizer-code"),
    Field("parallelism.strategy", "Spread over GPUs", ("", "ddp", "zero1", "zero2", "zero3", "fsdp2"), word="strategy"),
    Field("training.tokens", "Tokens in all", placeholder="for the cost: 1e9", word="tokens"),
)
SERVING_FIELDS = (
    Field("serving.engine", "Server", _choices(Serving, "engine"), word="engine"),
    Field(
        "serving.weights", "Weights", ("bf16", "fp16", "fp8", "int8", "awq-int4", "nf4", "q8_0", "q4_k_m"), word="quantization"
    ),
    Field("serving.context", "Tokens of context", placeholder="4096", word="context"),
    Field("serving.concurrency", "Users at once", placeholder="1", word="concurrency"),
    Field("serving.prompt_length", "Tokens of a prompt", placeholder="half of the context", word="prompt"),
    Field("parallelism.tensor", "Each layer over GPUs", placeholder="1", word="tensor-parallel"),
    Field("serving.hours", "Hours", placeholder="for the cost: 720"),
)
FIELDS = {"train": TRAINING_FIELDS, "serve": SERVING_FIELDS}
HEADLINE_FIELDS = (
    Field("context", "Tokens of context, served", placeholder="4096", word="context"),
    Field("concurrency", "Users at once", placeholder="1", word="concurrency"),
    Field("engine", "Server", ("", *SERVERS), word="engine"),
    Field("sequence", "Tokens per sequence, trained", placeholder="2048", word="sequence"),
    Field("batch", "Sequences per GPU, trained", placeholder="1", word="micro-batch"),
)
TASKS = {
    "serve": "Serve {} as published",
    "serve-8bit": "Serve {} in 8 bits",
    "serve-4bit": "Serve {} in 4 bits",
    "serve-gguf": "Run {} with llama.cpp, in 4 bits",
    "qlora": "Fine-tune {} with QLoRA",
    "lora": "Fine-tune {} with LoRA",
    "full": "Train all of {}, in 16 bits",
    "full-mixed": "Train all of {}, in mixed precision",
}
"""What a model is used for, by the short names of ways.yaml."""
METHODS: dict[str, dict[str, str]] = {
    way.slug: job_fields({"training": way.settings}) for way in ways(platforms()[0], {}, {}) if way.part == "training"
}
"""The fields of a job that a method of training stands for."""
VIEWS = (
    ("", "Will it fit?"),
    ("which", "Which GPU?"),
    ("models", "Which model?"),
    ("plan", "How to train it?"),
    ("replicas", "How many copies?"),
    ("cost", "What does it cost?"),
    ("file", "Read my file"),
    ("explain", "Out of memory?"),
)
"""Questions that can be asked first."""
TABS = (
    ("", "Answer", ""),
    ("timeline", "Memory over a step", ""),
    ("what-if", "Other values", ""),
    ("limit", "How far can it go?", ""),
    ("compare", "Compare", ""),
    ("plan", "Best ways", "train"),
    ("replicas", "How many copies?", "serve"),
    ("cost", "What does it cost?", ""),
    ("explain", "Measured", ""),
    ("along", "Take it along", ""),
)
"""What can be asked of a job, once there is one, and the task for which it can be, if it is one alone."""
EXAMPLES = (
    ("", "Llama 3 8B on one RTX 4090", {"model": "llama-3-8b", "on": "rtx-4090"}),
    ("", "A 13B model on two 24 GB cards", {"model": "13B", "on": "2x24GB"}),
    (
        "",
        "Fine-tune Qwen3 8B with QLoRA on 24 GB",
        {"task": "train", "model": "qwen3-8b", "on": "24GB", **METHODS["qlora"]},
    ),
    (
        "",
        "Serve Llama 3.1 70B to 32 users on 4 H100",
        {
            "task": "serve",
            "model": "llama-3.1-70b",
            "on": "4xh100",
            "serving.context": "8192",
            "serving.concurrency": "32",
            "parallelism.tensor": "4",
        },
    ),
    ("which", "Which GPU serves Qwen3 32B in 4 bits?", {"model": "qwen3-32b", "task": "serve-4bit"}),
    ("models", "What can I run on 16 GB?", {"on": "16GB", "task": "serve-4bit"}),
    (
        "cost",
        "What does it cost to fine-tune 8B on 100M tokens?",
        {"model": "llama-3-8b", "method": "qlora", "training.tokens": "100M"},
    ),
    (
        "plan",
        "How do I best train Llama 3.2 1B on an RTX 4090?",
        {"model": "llama-3.2-1b", "method": "full", "on": "rtx-4090", "training.tokens": "100M"},
    ),
    (
        "replicas",
        "How many copies of Llama 3.1 8B bear 10 requests a second?",
        {"model": "llama-3.1-8b", "requests": "10", "ttft": "0.5", "tpot": "0.03"},
    ),
)
"""Questions to begin with: the page, how it is put, its fields."""
