"""What is refused of a job before it is simulated: settings that do not go together, or are not modelled together."""

from __future__ import annotations

from collections.abc import Mapping

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import CheckpointForm, Job
from estimator.contract.job.training import SENSING
from estimator.families import FAMILIES
from estimator.families.other import OtherSpec
from estimator.families.spec import ModelSpec
from estimator.hardware.accelerator import accelerator
from estimator.hardware.capacity import capacity
from estimator.serving.engines import served_by
from estimator.simulation.counting import refuse_without_torch
from estimator.specs.resolve import Model
from estimator.training import partial, pruning, seeing
from estimator.training.offload import check_offload
from estimator.training.optimizers.refusals import check_optimizer

LOSS_TAKEN_BY = {
    "chunked": ("transformers",),
    "cut": ("transformers",),
    "flash": ("transformers", "liger"),
    "shifted": ("transformers", "liger"),
}
"""Losses that are not of every implementation, and with whose modules they are modelled, of transformers' release 5."""


def _check_calibration(job: Job) -> None:
    """A calibration is of training, and of the card that it was measured on."""
    own = job.calibration
    if own is None:
        return
    if job.task != "train":
        raise NotModelled("constants of one's own machine are used for training only: leave it out", "calibration")
    card = capacity(job.hardware).accelerator
    if card is None or accelerator(own.card).name != card.name:
        on = card.name if card else "a card without a name"
        raise Contradiction(
            f"was measured on {own.card}, and the job runs on {on}: calibrate there, or leave it out", "calibration"
        )


def _check_ram(job: Job) -> None:
    """A machine without a GPU serves by llama.cpp alone."""
    server = served_by(job)
    if job.hardware.without_gpu and server is None:
        raise NotModelled("training on a CPU is not modelled: name a gpu, or a card's memory, in its place", "hardware.ram")
    if job.hardware.without_gpu and server and not server.reads_gguf:
        raise NotModelled(f"{server.title} on a CPU is not modelled: write serving.engine llama.cpp", "hardware.ram")


def _check_grid(job: Job) -> None:
    """A place whose electricity is not known is refused."""
    if job.hardware.grid is not None:
        from estimator.pricing.energy import grid

        grid(job.hardware.grid)


def refuse_unmodelled(job: Job, spec: ModelSpec) -> None:
    """Raise `NotModelled` or `Contradiction` for settings that the model or the rest of the job does not go with."""
    _check_calibration(job)
    _check_ram(job)
    server = served_by(job)
    if isinstance(spec, OtherSpec):
        refuse_uncounted(job, spec)
    elif server and spec.hears and not server.hears:
        unserved = f"serving {spec.model_type} with {server.name} is not modelled yet"
        raise NotModelled("; ".join(filter(None, (unserved, spec.instead))), "model")
    elif not (spec.forward_modelled and not (server and spec.sees)) and not (server and server.runs(spec)):
        serves = f"serving {spec.model_type} with {server.name} is not modelled yet" if server and spec.forward_modelled else ""
        raise NotModelled("; ".join(filter(None, (serves or spec.refusal, spec.instead))), "model")
    _check_grid(job)
    if job.task == "train":
        training = job.training
        if training.implementation not in (*spec.implementations, "megatron"):
            known = " and ".join(spec.implementations)
            raise NotModelled(
                f"implementation {training.implementation} of {spec.model_type} is not modelled; {known} is",
                "training.implementation",
            )
        if training.fp8 is not None and training.implementation != "megatron":
            raise NotModelled(
                "Transformer Engine's products in fp8 are modelled with implementation: megatron; float8 is torchao's",
                "training.fp8",
            )
        if training.mtp_num_layers and training.implementation != "megatron":
            raise NotModelled(
                "layers that predict further tokens are modelled with implementation: megatron", "training.mtp_num_layers"
            )
        if training.loss == "fused" and training.implementation == "fast-kernels" and not spec.joined_loss:
            raise NotModelled(f"fast-kernels have no fused loss for {spec.model_type}: write eager", "training.loss")
        takes = LOSS_TAKEN_BY.get(training.loss)
        if takes is not None and (training.implementation not in takes or training.transformers_release != "5"):
            raise NotModelled(
                f"loss {training.loss} is modelled with the modules of transformers 5; write eager or fused", "training.loss"
            )
        if training.loss == "compiled" and training.implementation != "megatron":
            raise Contradiction("loss compiled is Megatron-Core's own: write eager, or implementation: megatron", "training.loss")
        fuses = training.loss in ("cut", "fused") and training.head in SENSING and not isinstance(spec, OtherSpec)
        own = fuses or training.loss in ("eager", "compiled")
        if (not own or training.transformers_release != "5") and training.head != "causal-lm":
            raise Contradiction(f"loss and its release are those of a causal-lm, not of {training.head}", "training.loss")
        if training.autocast and training.precision == "32-true":
            raise Contradiction("autocast over float32 weights is a mixed precision: write bf16-mixed", "training.autocast")
        if training.upcast_unquantized != "none" and not training.quantization:
            raise Contradiction("nothing is quantized: leave it out, or name a quantization", "training.upcast_unquantized")
        if ((training.unquantized and not training.float8) or training.quantization_group) and not training.quantization:
            raise Contradiction("nothing is quantized: leave it out, or name a quantization", "training.quantization")
        if training.quantization_compute and training.quantization not in ("nf4", "nf4-double", "fp4"):
            raise Contradiction(
                "only bitsandbytes' 4-bit layers have a type of their own to compute in", "training.quantization_compute"
            )
        if training.quantized_experts and training.quantization not in ("nf4", "nf4-double", "fp4"):
            raise Contradiction(
                "experts are stored in bitsandbytes' 4 bits only: write quantization: nf4 beside it, or leave it out",
                "training.quantized_experts",
            )
        if training.quantization and not training.adapter:
            raise Contradiction("quantized weights are frozen: add an adapter, or nothing is left to train", "training.adapter")
        seeing.refuse(job, spec)
        partial.refuse(job)
        pruning.refuse(job)
        check_optimizer(job)
    check_offload(job)


def refuse_uncounted(job: Job, spec: OtherSpec) -> None:
    """Raise `NotModelled` for what torch is not asked to count of a model that no family describes."""
    if job.task == "serve":
        text = spec.config().get("text_config")
        kind = text.get("model_type") if isinstance(text, Mapping) else None
        part = f": of its language model ({kind}) it is, write what its text_config says" if kind in FAMILIES else ""
        raise NotModelled(
            f"{spec.refusal}: what serving it takes is not known. Write task: train, or a model of one{part}",
            "task",
        )
    refuse_without_torch(spec)
    what = f"{spec.model_type} models are of no family here, and torch counts them without this"
    training, form = job.training, job.training.activation_checkpointing
    checkpoints = isinstance(form, CheckpointForm) and (form.budget is not None or form.segments or form.uniform)
    for asked, where, instead in (
        (job.parallelism.strategy not in (None, "none"), "parallelism.strategy", "one GPU, without a strategy"),
        (training.implementation != "transformers", "training.implementation", "transformers"),
        (training.quantization, "training.quantization", "no quantization"),
        (training.images, "training.images", "texts alone, without images"),
        (training.audio, "training.audio", "texts alone, without sound"),
        (training.float8, "training.float8", "no float8"),
        (training.objective, "training.objective", "no objective"),
        (training.trainable != "all", "training.trainable", "all, or an adapter"),
        (training.pruning, "training.pruning", "none"),
        (training.evaluation, "training.evaluation", "none"),
        (training.transformers_release != "5", "training.transformers_release", "5"),
        (form == "sqrt" or checkpoints, "training.activation_checkpointing", "full, none or selective"),
    ):
        if asked:
            raise NotModelled(f"{what}: write {instead}", where)


def check_lengths(job: Job, model: Model) -> None:
    """Raise `Contradiction` for more tokens than learned positions; rotary ones can be stretched, and get a warning."""
    lengths = {
        "training.sequence_length": job.training.sequence_length,
        "training.target_length": job.training.target_length or 0,
    }
    prompt, output = job.serving.lengths
    if job.task == "serve" and prompt + output > max(2, job.serving.context):
        raise Contradiction(
            f"a prompt of {prompt} tokens and an answer of {output} are more than the context of {job.serving.context}",
            "serving.context",
        )
    limit = model.spec.longest_sequence
    for where, asked in lengths.items() if job.task == "train" else (("serving.context", job.serving.context),):
        if model.spec.learned_positions and limit and asked > limit:
            raise Contradiction(f"{asked} tokens are more than the model's {limit} learned positions", where)
