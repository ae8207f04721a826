"""What an answer says beside its numbers: what it takes for granted, warns of, and leaves out."""

from __future__ import annotations

from estimator.dtypes import DType
from estimator.facts import MeasuredFact
from estimator.hardware.capability import gpu
from estimator.hardware.capacity import Capacity
from estimator.job import Job
from estimator.parallel.topology import Topology
from estimator.serving.plan import CHUNK, compute_type
from estimator.specs.spec import ModelSpec
from estimator.tape.tape import Tape
from estimator.timing.step import efficiencies
from estimator.training.plan import precision_of


def assumptions(job: Job, place: Topology, card: Capacity) -> list[str]:
    """What is taken for granted about the run; of its time only where the card has a name, and so a time."""
    said = [*(_of_training(job, place) if job.task == "train" else _of_serving(job)), *_of_sdpa(job, card)]
    if card.accelerator is None:
        return said
    if job.task == "train":
        return [*said, _share("arithmetic", efficiencies()["training"], "the dense peak")]
    return [*said, _share("one token per sequence", efficiencies()["decode_bandwidth"], "the memory's bandwidth")]


def _of_training(job: Job, place: Topology) -> list[str]:
    said = [
        "sequences are full: no padding, one document each; labels share the token ids' memory",
        f"torch 2.13 and {_RELEASES[job.training.transformers_release]} on CUDA; recomputation {_reentrance(job)} re-entrance",
    ]
    if job.training.quantization:
        said.append(
            "4-bit and 8-bit layers as bitsandbytes 0.50 runs them; embeddings, norms and the output layer are as they were"
        )
    if job.training.adapter:
        said.append("LoRA as peft 0.21 applies it")
    return said + {
        "fsdp2": [f"each layer is a group of fully_shard over {place.data} GPUs; gradients are reduced in every micro-step"],
        "ddp": [f"each of {place.data} GPUs holds the whole model, and gradient buckets as large as its gradients"],
        "none": [],
    }.get(place.strategy, [f"DeepSpeed 0.19 with its defaults over {place.data} GPUs; float32 master weights"])


_RELEASES = {"5": "transformers 5.23", "4.48": "transformers 4.48", "4.45": "transformers 4.45"}


def _reentrance(job: Job) -> str:
    return "with" if job.training.reentrant_checkpointing else "without"


def _of_serving(job: Job) -> list[str]:
    said = [f"{job.serving.concurrency} sequence(s) of {job.serving.context} tokens, prompt and answer together"]
    if job.serving.engine == "vllm":
        said.append(
            f"activations of transformers' eager modules in passes of {CHUNK} prompt tokens: vLLM's fused kernels need less"
        )
    return said


def _of_sdpa(job: Job, card: Capacity) -> list[str]:
    """How torch's attention is taken to choose its kernel, where the GPU's name does not settle it."""
    if (job.training.attention if job.task == "train" else {"transformers": "sdpa"}.get(job.serving.engine)) != "sdpa":
        return []
    if gpu(job, card).prefers_cudnn:
        return ["sdpa prefers cuDNN's attention, as with the cuDNN 9.20 that torch 2.13 brings"]
    if not card.compute_capability:
        return ["sdpa chooses its kernel as on a GPU of compute capability 8.0"]
    return []


def _share(what: str, fact: MeasuredFact, of: str) -> str:
    return f"time: {what} at {fact.value:.0%} of {of} ({fact.low:.0%} to {fact.high:.0%})"


def warnings(job: Job, spec: ModelSpec, place: Topology, card: Capacity, tape: Tape) -> list[str]:
    """What the caller should know before relying on the answer."""
    said = []
    tokens = job.training.sequence_length if job.task == "train" else job.serving.context
    most = spec.longest_sequence
    if most and tokens > most:
        said.append(f"{tokens} tokens are more than the {most} that the model was made for")
    said += tape.remarks
    if _compute(job, place).name == "bfloat16":
        said += without_bf16(card)
    if card.accelerator and not card.accelerator.memory.verified:
        fact = card.accelerator.memory
        said.append(f"what a process can allocate on {card.accelerator.name} has no second source ({fact.note}; {fact.source})")
    return said


def _compute(job: Job, place: Topology) -> DType:
    """What matrix products run in."""
    if job.task == "train":
        return precision_of(job, place).compute
    return compute_type(job.serving)


def without_bf16(card: Capacity) -> list[str]:
    """What to know of a card whose arithmetic has no bf16."""
    if card.accelerator is None or card.accelerator.bf16:
        return []
    return [f"{card.accelerator.name} has no bf16 arithmetic: expect bf16 slow, or refused (as vLLM does), and write fp16"]


def not_modelled(job: Job) -> list[str]:
    """What the bytes leave out."""
    left = [
        "workspaces inside kernels other than attention's",
        "the host's memory",
        "loading the checkpoint",
    ]
    if job.task == "train":
        return [*left, "checkpoint saving" if job.training.evaluation else "evaluation and checkpoint saving"]
    return [*left, "CUDA graphs", "sampling beyond one set of logits"] if job.serving.engine == "vllm" else left
