"""What an answer says beside its numbers: what it takes for granted, warns of, and leaves out."""

from __future__ import annotations

from estimator.contract.answer import Memory, Time
from estimator.contract.job import Job, Training
from estimator.contract.job.adapter import Bottleneck, PromptLearning
from estimator.contract.job.objective import Objective
from estimator.contract.units import gib
from estimator.families.spec import ModelSpec
from estimator.hardware.capability import gpu
from estimator.hardware.capacity import Capacity
from estimator.parallel.strategies import ZERO1, strategy_of
from estimator.parallel.topology import Topology
from estimator.pipeline.step_time import WRITING
from estimator.serving.engine import compute_type
from estimator.serving.engines import engine_of
from estimator.serving.transformers.engine import TRANSFORMERS
from estimator.tape.dtypes import DType
from estimator.tape.tape import ACTIVATION, LOSS, Tape
from estimator.timing.links import between_gpus
from estimator.training import badam
from estimator.training.fused_lora import ignores_adapters
from estimator.training.objectives.dropout import LEFT_ON
from estimator.training.overrides import precision_of


def assumptions(job: Job, place: Topology, card: Capacity) -> list[str]:
    """What is taken for granted about the run; of its time only where the card has a name, and so a time."""
    said = [*(_of_training(job, place) if job.task == "train" else _of_serving(job)), *_of_sdpa(job, card)]
    if place.gpus > 1 and (card.accelerator is None or card.accelerator.vendor != "nvidia"):
        said.append("a node's GPUs are taken to be connected as A100s are, by NVLink; what NCCL allocates depends on it")
    if card.accelerator is not None and (place.gpus > 1 if job.task == "train" else place.tensor > 1):
        said += between_gpus(job.hardware, card.accelerator)
    return said


def _of_training(job: Job, place: Topology) -> list[str]:
    if job.training.implementation == "megatron":
        return _of_megatron(job, place)
    said = [
        f"{_SEQUENCES[job.training.attention_mask]}; labels {_labels(job.training)}",
        f"torch 2.13 and {_release(job.training)} on CUDA; recomputation {_reentrance(job)} re-entrance",
    ]
    if job.training.quantization:
        said.append(_quantized(job.training.quantization) + "; embeddings, norms and the output layer are as they were")
    if job.training.float8:
        said.append(
            "linear modules of the layers in fp8 as torchao 0.18 runs them without torch.compile, which makes fewer temporaries"
        )
    if job.training.optimizer_implementation in _LIBRARIES:
        said.append(f"{job.training.optimizer} as {_LIBRARIES[job.training.optimizer_implementation]} has it")
    if isinstance(job.training.adapter, PromptLearning):
        virtual = job.training.adapter.virtual_tokens
        said.append(f"{job.training.adapter.type} as peft 0.21 does it: {virtual} virtual tokens beside those of sequence_length")
    elif isinstance(job.training.adapter, Bottleneck):
        said.append("bottleneck adapters as adapters 1.3 applies them; what of the head is no output layer is trained, too")
    elif job.training.adapter:
        said.append(f"{_METHODS[job.training.adapter.type]} as peft 0.21 applies it")
    if job.training.trainable != "all":
        said.append(FROZEN)
    if badam.asks(job):
        said.append("BAdam as badam 1.4 has it, in the middle of a turn")
    if job.training.objective:
        off = "" if job.training.objective.type in LEFT_ON else " and without dropout"
        release = "1.0.0" if job.training.objective.type == "ppo" else "1.16"
        said.append(f"{job.training.objective.type} as TRL {release} trains it, by its defaults{off}")
        if job.training.objective.type in ("grpo", "distillation"):
            said.append(_writer(job.training.objective))
    if place.tensor > 1:
        said.append(
            f"modules spread over {place.tensor} GPUs by torch's parallelize_module, and tokens between them; what they exchange "
            "is waited for at once, and positions come with the batch"
        )
    if job.training.evaluation:
        said.append("evaluation as transformers' Trainer gathers it")
    recipe = precision_of(job, place)
    if recipe.scaled:
        said.append("torch.amp.GradScaler scales the loss; a step that it skips allocates no more")
    if recipe.summed:
        return [
            *said,
            "gradients and float32 copies of weights as Megatron-Core 0.16 keeps them, modules as transformers runs them",
        ]
    beside = _beside_flat(job.training) if place.strategy.flattens else []
    return [*said, *place.strategy.says(job, place.data), *beside]


def _of_megatron(job: Job, place: Topology) -> list[str]:
    said = [
        "Megatron-Core 0.15 on Transformer Engine 2.11: fused norms, rotary embedding and SwiGLU, gradients added to one buffer",
        "weights and gradients begin on the GPU; rows of the vocabulary are padded to 128 per tensor-parallel rank",
    ]
    if place.strategy is ZERO1:
        said.append(f"its distributed optimizer: float32 weights and states in {place.data * place.context} parts")
    if job.training.mtp_num_layers:
        said.append("layers that predict further tokens are on the last stage; parameters are counted without them")
    if job.training.fp8:
        said.append(
            f"linear modules of the layers in fp8, {job.training.fp8.recipe}, as the source of Transformer Engine 2.11 has it; "
            "what they save for backward was held against no run"
        )
    if place.pipeline > 1:
        said.append(_schedule(job))
    if place.context > 1 and job.parallelism.context_exchange == "a2a":
        said.append("context parallelism by all-to-all (--cp-comm-type a2a)")
    elif place.context > 1:
        said.append("context parallelism in a ring (--cp-comm-type p2p); memory is that of its last rank")
    if place.expert > 1:
        said.append("experts by all-to-all, with grouped products and fused permutation; the loss that balances them is counted")
    return said


def _schedule(job: Job) -> str:
    """Of a pipeline."""
    asked = job.parallelism
    if asked.pipeline_schedule == "1f1b":
        return "pipeline 1F1B: a stage holds as many micro-batches as there are stages from it on"
    chunks = f"{asked.model_chunks} parts of the model on each rank" if (asked.model_chunks or 1) > 1 else "a part on each rank"
    if asked.pipeline_schedule == "interleaved":
        return (
            f"pipeline interleaved 1F1B, {chunks}; tensors are received while others are computed (--overlap-p2p-communication)"
        )
    return (
        f"pipeline {asked.pipeline_schedule}, {chunks}: not a schedule of Megatron-LM's, so tensors are passed on as in its 1F1B"
    )


def _beside_flat(training: Training) -> list[str]:
    """What fsdp1 does with adapters and packed weights."""
    said = []
    if training.adapter:
        whole = ignores_adapters(training)
        own = "each linear layer of the adapter is a flat parameter of its own, as PEFT's fsdp_auto_wrap_policy has it"
        said.append("adapters are whole on every GPU: fused kernels cannot have them sharded" if whole else own)
    if training.quantization:
        said.append("packed weights are stored in the type of the others (bnb_4bit_quant_storage); their scales lie on every GPU")
    return said


def _writer(asked: Objective) -> str:
    """Who writes the answers that a model is trained on."""
    if asked.generation is None:
        return "answers are generated by vLLM on other GPUs"
    if asked.generation.engine == "transformers":
        return "answers are generated by the model itself, all of a step at once, each as long as it may be, in transformers 5.23"
    share = f"{asked.generation.gpu_memory_utilization:.0%} of the GPU, all of which it takes"
    asleep = ", and gives back while the model is trained" if asked.generation.sleep else ""
    return f"answers are generated by vLLM on the same GPU: its weights in bf16 and its cache are in {share}{asleep}"


def _quantized(name: str) -> str:
    """Which library's layers quantized weights are in."""
    if name.startswith("gptq"):
        return "GPTQ layers as GPTQModel's Triton kernel runs them"
    if name.startswith("hqq"):
        return "HQQ layers as hqq 0.2.8's own backend runs them"
    if name.startswith("torchao"):
        return "layers in eight bits as torchao 0.18 runs them, by operations of torch"
    if name.startswith("awq"):
        return "AWQ layers as GPTQModel 7.7's AwqGEMMLinear runs them (backend auto_trainable; what auto takes is not trainable)"
    if name.startswith("eetq"):
        return "EETQ layers as transformers 5.23 runs them, and PEFT takes them where the package eetq is installed"
    if name.startswith("fp8"):
        return "fp8 layers as transformers 5.23 runs them with its Triton kernel (DeepGEMM's casts of the input come on top)"
    return "4-bit and 8-bit layers as bitsandbytes 0.50 runs them"


FROZEN = (
    "what is frozen has no gradients and no optimizer states; but backward runs through all that comes after the first trained "
    "parameter, and activations are kept there"
)

_METHODS = {
    "lora": "LoRA",
    "dora": "DoRA",
    "adalora": "AdaLoRA",
    "vera": "VeRA",
    "ia3": "IA³",
    "loha": "LoHa",
    "lokr": "LoKr",
    "oft": "OFT",
    "boft": "BOFT",
}
_SEQUENCES = {
    "none": "sequences are full: no padding, one document each",
    "padding": "sequences are padded: shorter ones are as long as the longest, and a mask says where they end",
    "packed": "documents are packed in one full sequence, and a mask keeps them apart",
}


def _labels(training: Training) -> str:
    return "are tensors of their own" if training.implementation == "torchtitan" else "share the token ids' memory"


def _release(training: Training) -> str:
    if training.implementation == "torchtitan":
        return "torchtitan 0.2.2 without torch.compile"
    return "transformers 4.57" if isinstance(training.adapter, Bottleneck) else _RELEASES[training.transformers_release]


_RELEASES = {"5": "transformers 5.23", "4.48": "transformers 4.48", "4.45": "transformers 4.45"}

_LIBRARIES = {
    "transformers": "transformers 5.23",
    "bitsandbytes": "bitsandbytes 0.50",
    "torchao": "torchao 0.18",
    "lion-pytorch": "lion-pytorch 0.2",
    "galore-torch": "galore-torch 1.0",
    "apollo-torch": "apollo-torch 1.0",
    "pytorch-optimizer": "pytorch-optimizer 4.1",
    "llama-cookbook": "llama-cookbook 0.0.5 (AnyPrecisionAdamW)",
    "transformer-engine": "Transformer Engine 2 (FusedAdam)",
}
"""Whose optimizers are not torch's."""


def _reentrance(job: Job) -> str:
    return "with" if job.training.reentrant_checkpointing else "without"


def _of_serving(job: Job) -> list[str]:
    sequences = f"{job.serving.concurrency} sequence(s) of {job.serving.context} tokens, prompt and answer together"
    return [sequences, *engine_of(job).assumptions(job.serving)]


def _of_sdpa(job: Job, card: Capacity) -> list[str]:
    """How torch's attention is taken to choose its kernel, where the GPU's name does not settle it."""
    if job.task == "train" and job.training.implementation == "megatron":
        return []
    if job.training.attention != "sdpa" if job.task == "train" else engine_of(job) is not TRANSFORMERS:
        return []
    if gpu(job, card).prefers_cudnn and job.task == "train" and job.training.implementation == "torchtitan":
        return ["torchtitan asks for cuDNN's attention before flash attention, and for no memory-efficient one"]
    if gpu(job, card).prefers_cudnn:
        return ["sdpa prefers cuDNN's attention, as with the cuDNN 9.20 that torch 2.13 brings"]
    if not card.compute_capability:
        return ["sdpa chooses its kernel as on a GPU of compute capability 8.0"]
    return []


def what_stays(job: Job, memory: Memory) -> list[str]:
    """What an adapter does not make smaller, where that is the larger part of the peak."""
    kept = sum(memory.at_peak.get(part, 0) for part in (ACTIVATION, LOSS))
    if job.task != "train" or not job.training.adapter or 2 * kept <= memory.peak_bytes:
        return []
    share = kept / memory.peak_bytes
    return [f"an adapter leaves activations and logits as they are: {share:.0%} of the peak, {gib(kept)}"]


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
    said += without_cuda(card)
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


def without_cuda(card: Capacity) -> list[str]:
    """What to know of a card that runs other kernels than those that are counted."""
    if card.accelerator is None or card.accelerator.vendor == "nvidia":
        return []
    runs = _RUNS.get(card.accelerator.vendor, "its maker's own")
    return [
        f"{card.accelerator.name} runs {runs}; counted are torch's kernels, its allocator and what lies beside it as on CUDA of "
        "compute capability 8.0: take the bytes for an indication, and the time for less"
    ]


_RUNS = {
    "amd": "torch on ROCm",
    "apple": "torch on Metal, or MLX",
    "aws": "programs that Neuron compiles",
    "google": "programs that XLA compiles",
}


def _whole_at_first(job: Job) -> str:
    """Of quantized weights that transformers 5 loads for FSDP (5.23, quantizers: `update_device_map`)."""
    training = job.training
    if not training.quantization or training.transformers_release != "5" or not strategy_of(job).gathers:
        return ""
    return " (transformers 5 puts all quantized weights on each GPU before they are sharded)"


def not_modelled(job: Job, time: Time | None) -> list[str]:
    """What the bytes and the time leave out."""
    left = ["workspaces inside kernels other than attention's"]
    if job.task == "train":
        left.append(f"what loading and saving take of the GPU{_whole_at_first(job)}")
        writes = job.training.objective and job.training.objective.generation
        if writes and not any(part.name == WRITING for part in (time.parts if time else ())):
            left.append("the time that generating takes")
        if job.training.objective and job.training.objective.several:
            left.append("the host's memory")
            left.append("the time of writing and scoring answers, and of further epochs over them")
        return left if job.training.evaluation else [*left, "evaluation"]
    left += engine_of(job).not_modelled
    known = time is not None or not engine_of(job).continuous
    return left if known else [*left, "the time of a served model of this kind"]
