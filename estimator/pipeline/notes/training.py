"""What is taken for granted of a training step: whose code runs, and how."""

from __future__ import annotations

from collections.abc import Iterator

from estimator.contract.job import Job, Training
from estimator.contract.job.adapter import Bottleneck, PromptLearning
from estimator.contract.job.objective import Objective
from estimator.contract.notes import Said, all_said
from estimator.parallel.topology import Topology
from estimator.pipeline.notes.megatron import of_megatron
from estimator.training import badam
from estimator.training.fused_lora import ignores_adapters
from estimator.training.objectives.dropout import LEFT_ON
from estimator.training.overrides import precision_of


def of_training(job: Job, place: Topology) -> Iterator[Said]:
    """By field, then of the strategy."""
    training = job.training
    if training.implementation == "megatron":
        yield from of_megatron(job, place)
        return
    yield Said("sequences", f"{_SEQUENCES[training.attention_mask]}; labels {_labels(training)}", "training.attention_mask")
    software = f"torch 2.13 and {_release(training)} on CUDA; recomputation {_reentrance(job)} re-entrance"
    yield Said("software", software, "training.transformers_release")
    yield from _of_weights(training)
    if training.optimizer_implementation in _LIBRARIES:
        whose = f"{training.optimizer} as {_LIBRARIES[training.optimizer_implementation]} has it"
        yield Said("optimizer-library", whose, "training.optimizer_implementation")
    yield from _of_adapter(training)
    if training.trainable != "all":
        yield Said("frozen", FROZEN, "training.trainable")
    if badam.asks(job):
        yield Said("badam", "BAdam as badam 1.4 has it, in the middle of a turn", "training.optimizer")
    yield from _of_objective(training)
    if place.tensor > 1:
        yield Said(
            "tensor-parallel",
            f"modules spread over {place.tensor} GPUs by torch's parallelize_module, and tokens between them; what they exchange "
            "is waited for at once, and positions come with the batch",
            "parallelism.tensor",
        )
    if training.evaluation:
        yield Said("evaluation", "evaluation as transformers' Trainer gathers it", "training.evaluation")
    yield from _of_precision(job, place)


def _of_weights(training: Training) -> Iterator[Said]:
    if training.quantization:
        whose = _quantized(training.quantization) + "; embeddings, norms and the output layer are as they were"
        yield Said("quantized-layers", whose, "training.quantization")
    if training.float8:
        text = (
            "linear modules of the layers in fp8 as torchao 0.18 runs them without torch.compile, which makes fewer temporaries"
        )
        yield Said("float8-layers", text, "training.float8")


def _of_adapter(training: Training) -> Iterator[Said]:
    adapter = training.adapter
    if isinstance(adapter, PromptLearning):
        text = f"{adapter.type} as peft 0.21 does it: {adapter.virtual_tokens} virtual tokens beside those of sequence_length"
    elif isinstance(adapter, Bottleneck):
        text = "bottleneck adapters as adapters 1.3 applies them; what of the head is no output layer is trained, too"
    elif adapter:
        text = f"{_METHODS[adapter.type]} as peft 0.21 applies it"
    else:
        return
    yield Said("adapter-library", text, "training.adapter")


def _of_objective(training: Training) -> Iterator[Said]:
    asked = training.objective
    if not asked:
        return
    off = "" if asked.type in LEFT_ON else " and without dropout"
    release = "1.0.0" if asked.type == "ppo" else "1.16"
    yield Said("objective-library", f"{asked.type} as TRL {release} trains it, by its defaults{off}", "training.objective")
    if asked.type in ("grpo", "distillation"):
        yield Said("generation", _writer(asked), "training.objective.generation")


def _of_precision(job: Job, place: Topology) -> Iterator[Said]:
    recipe = precision_of(job, place)
    if recipe.scaled:
        yield Said(
            "loss-scaling", "torch.amp.GradScaler scales the loss; a step that it skips allocates no more", "training.precision"
        )
    if recipe.summed:
        text = "gradients and float32 copies of weights as Megatron-Core 0.16 keeps them, modules as transformers runs them"
        yield Said("summed-gradients", text, "training.precision")
        return
    yield from all_said(f"strategy-{place.strategy.name}", place.strategy.says(job, place.data), "parallelism.strategy")
    if place.strategy.flattens:
        yield from _beside_flat(job.training)


def _beside_flat(training: Training) -> Iterator[Said]:
    """What fsdp1 does with adapters and packed weights."""
    if training.adapter:
        whole = ignores_adapters(training)
        own = "each linear layer of the adapter is a flat parameter of its own, as PEFT's fsdp_auto_wrap_policy has it"
        text = "adapters are whole on every GPU: fused kernels cannot have them sharded" if whole else own
        yield Said("sharded-adapters", text, "training.adapter")
    if training.quantization:
        text = "packed weights are stored in the type of the others (bnb_4bit_quant_storage); their scales lie on every GPU"
        yield Said("sharded-quantization", text, "training.quantization")


def _writer(asked: Objective) -> str:
    """Who writes the answers that a model is trained on."""
    if asked.generation is None:
        return "answers are generated by vLLM on other GPUs"
    if asked.generation.engine == "transformers":
        return "answers are generated by the model itself, all of a step at once, each as long as it may be, in transformers 5.23"
    share = f"{asked.generation.gpu_memory_utilization:.0%} of the GPU, all of which it takes"
    asleep = ", and gives back while the model is trained" if asked.generation.sleep else ""
    over = f", divided over {asked.generation.tensor} GPUs," if asked.generation.tensor > 1 else ""
    return f"answers are generated by vLLM on the same GPU: its weights in bf16 and its cache{over} are in {share}{asleep}"


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
