"""What Megatron-Core does not do, or what is not modelled of it."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import CheckpointForm, Job, Training
from estimator.contract.job.adapter import Lora
from estimator.contract.job.fp8 import Fp8
from estimator.families.spec import ModelSpec
from estimator.megatron.config import Config, config
from estimator.megatron.execution import CORE_ATTENTION, LAYER_NORM, MOE_ACTIVATION, PARTS, UP_PROJECTION, parts
from estimator.megatron.losses import LOSSES
from estimator.parallel.bf16_optimizer import PRECISION as BF16_OPTIMIZER
from estimator.parallel.bf16_optimizer import check_bf16_optimizer
from estimator.parallel.pipeline import TWO, check_pipeline
from estimator.parallel.schedules import SPLIT
from estimator.parallel.strategies import DDP, NONE, ZERO1
from estimator.parallel.topology import Topology
from estimator.tape.gpu import Gpu
from estimator.training.recipes import MEGATRON

FIELD = "training.activation_checkpointing"
BLACKWELL, NEVER = (10, 0), (99, 0)
CAPABILITIES = {
    "delayed": ((8, 9), NEVER),
    "tensorwise": ((8, 9), NEVER),
    "blockwise": ((9, 0), NEVER),
    "mxfp8": (BLACKWELL, (12, 0)),
}
"""From which compute capability on there is a recipe, and where it ends."""


def check(job: Job, spec: ModelSpec, topology: Topology, gpu: Gpu) -> None:
    """Refuse what Megatron-Core does not do, or what is not modelled of it."""
    found, training, tensor = config(spec), job.training, topology.tensor
    check_pipeline(job)
    _check_schedule(job, found)
    for name, size in (("num_attention_heads", found.heads), ("num_key_value_heads", found.groups)):
        if size % tensor:
            raise Contradiction(f"{name} {size} does not divide by tensor {tensor}, as Megatron-Core wants", "parallelism.tensor")
    if found.width % tensor:
        raise Contradiction(f"intermediate_size {found.width} does not divide by tensor {tensor}", "parallelism.tensor")
    if job.parallelism.sequence and tensor == 1:
        raise Contradiction(
            "sequence parallelism splits tokens over tensor-parallel ranks: there are none", "parallelism.sequence"
        )
    ranks = topology.context * (tensor if job.parallelism.sequence else 1) * (2 if topology.context > 1 else 1)
    if training.sequence_length % ranks:
        raise Contradiction(f"{training.sequence_length} tokens do not divide by {ranks} ranks", "training.sequence_length")
    _check_context(found, topology, job.parallelism.context_exchange)
    _check_overlaps(job, topology)
    if topology.expert > 1 and found.mixture is None:
        raise Contradiction("the model has no experts: leave it out", "parallelism.expert")
    if found.mixture is not None and found.mixture.experts % topology.expert:
        raise Contradiction(f"{found.mixture.experts} experts do not divide by {topology.expert}", "parallelism.expert")
    usual = {
        "quantization": None,
        "objective": None,
        "evaluation": None,
        "trainable": "all",
        "attention_mask": "none",
        "gradient_clipping": False,
        "optimizer_in_backward": False,
        "zero_grad_to_none": True,
        "autocast": False,
        "dtypes": None,
        "float8": None,
    }
    if found.classic is None or training.attention != "eager" or topology.context > 1:
        usual["attention"] = "sdpa"
    if found.classic is not None:
        _check_classic(job)
    for name, value in usual.items():
        if getattr(training, name) != value:
            raise NotModelled("not modelled with implementation: megatron; leave it out", f"training.{name}")
    _check_adapter(training, found)
    if training.precision == BF16_OPTIMIZER:
        check_bf16_optimizer(job, topology.strategy is ZERO1)
    elif training.precision not in MEGATRON:
        known = f"Megatron-Core's are {' and '.join(MEGATRON)}, Megatron-DeepSpeed's is {BF16_OPTIMIZER}"
        raise Contradiction(known, "training.precision")
    if training.head != "causal-lm":
        raise NotModelled("Megatron-Core's model is modelled with its language head only: causal-lm", "training.head")
    if training.optimizer not in ("adamw", "adam", "sgd"):
        raise NotModelled("Megatron-Core's optimizers are adamw, adam and sgd", "training.optimizer")
    if training.loss not in LOSSES:
        raise NotModelled(
            "write eager, compiled for Megatron's own fusion, or fused for Transformer Engine's kernel", "training.loss"
        )
    if topology.strategy not in (NONE, DDP, ZERO1):
        raise NotModelled(
            f"Megatron-Core has ddp, and zero1 for its distributed optimizer, not {topology.strategy}", "parallelism.strategy"
        )
    _check_offload(job)
    recomputed = training.activation_checkpointing
    if isinstance(recomputed, CheckpointForm) and not (
        recomputed.layers or recomputed.segments or recomputed.uniform or recomputed.modules
    ):
        raise NotModelled(
            "Megatron-Core's recomputation is modelled for none, full, selective, {layers: m}, {uniform: n}, {segments: n} and "
            "{modules: [...]}",
            FIELD,
        )
    _check_parts(parts(recomputed), found)
    if training.mtp_num_layers:
        _check_ahead(recomputed, topology)
    if training.fp8 is not None:
        _check_fp8(job, training.fp8, topology, gpu)


def _check_adapter(training: Training, found: Config) -> None:
    """ms-swift's LoRA on all linear layers."""
    asked, where = training.adapter, "training.adapter"
    if asked is None:
        return
    unsaid = {"alpha", "rslora", "init"}
    plain = Lora(rank=asked.rank, dropout=asked.dropout).model_dump(exclude=unsaid) if isinstance(asked, Lora) else None
    if asked.model_dump(exclude=unsaid) != plain:
        raise NotModelled("LoRA on all linear layers is modelled with implementation: megatron: write {rank: …} alone", where)
    for other, name in (
        (found.latent is not None, "latent attention"),
        (found.classic is not None, "Megatron-LM's classic GPT"),
        (training.fp8 is not None, "products in fp8"),
        (bool(training.mtp_num_layers), "layers that predict further tokens"),
    ):
        if other:
            raise NotModelled(f"LoRA beside {name} is not modelled with implementation: megatron; leave it out", where)


def _check_offload(job: Job) -> None:
    """Adam may be on the host (`--optimizer-cpu-offload`), all of it."""
    asked = {name: place for name, place in job.offload.model_dump().items() if place != "none"}
    if asked not in ({}, {"optimizer": "cpu"}):
        raise NotModelled("with implementation: megatron only optimizer: cpu is modelled (--optimizer-cpu-offload)", "offload")
    if asked and job.training.optimizer not in ("adamw", "adam"):
        raise NotModelled("Megatron's offloaded optimizer is modelled for adamw and adam", "training.optimizer")


def _check_schedule(job: Job, found: Config) -> None:
    """What does not go with several chunks on a rank, or with weights' gradients that are put off."""
    schedule, training = job.parallelism.pipeline_schedule, job.training
    if job.parallelism.pipeline == 1:
        return
    if found.tied and schedule in TWO:
        raise NotModelled(
            "a tied embedding where the first stage and the last are on one rank is not modelled", "parallelism.pipeline_schedule"
        )
    if training.fp8 is not None and schedule in SPLIT:
        raise NotModelled(
            f"fp8 under {schedule}, which puts weights' gradients off, is not modelled: leave it out", "training.fp8"
        )
    if training.mtp_num_layers and ((job.parallelism.model_chunks or 1) > 1 or schedule in SPLIT):
        raise NotModelled(
            f"not modelled under {schedule}, only with one chunk on each rank whose gradients come at once: leave it out",
            "training.mtp_num_layers",
        )


def _check_context(found: Config, topology: Topology, exchange: str | None) -> None:
    """What Transformer Engine wants of the ways in which ranks share a sequence (`attn_forward_func_with_cp`)."""
    field = "parallelism.context_exchange"
    if topology.context == 1:
        if exchange is not None:
            raise Contradiction("no ranks share a sequence: leave it out, or write context: 2 or more", field)
        return
    if exchange not in ("p2p", "a2a"):
        raise NotModelled(f"{exchange} is not modelled; write p2p or a2a", field)
    heads, groups = found.heads // topology.tensor, found.groups // topology.tensor
    if exchange == "a2a" and found.latent is not None and found.latent.plain + found.latent.rotary != found.latent.value:
        raise Contradiction("keys and values of different sizes are not exchanged by a2a; write p2p", field)
    if exchange == "a2a" and (heads % topology.context or groups % topology.context):
        raise Contradiction(
            f"{groups} key heads of a rank do not divide by context {topology.context}; context_exchange: p2p needs no such",
            "parallelism.context",
        )


def _check_overlaps(job: Job, topology: Topology) -> None:
    """What Megatron-LM and Transformer Engine want of exchanges that are hidden (megatron/training/arguments.py)."""
    asked, field = job.parallelism, "parallelism.tp_comm_overlap"
    if asked.tp_comm_overlap and not (asked.sequence and topology.tensor > 1):
        raise Contradiction("Megatron-LM wants tensor: 2 or more and sequence parallelism with it", field)
    if asked.tp_comm_overlap and asked.pipeline_schedule in SPLIT:
        raise NotModelled(f"not modelled under {asked.pipeline_schedule}, which puts weights' gradients off: leave it out", field)
    if asked.tp_comm_overlap and job.training.adapter is not None:
        raise NotModelled("not modelled beside an adapter: leave it out", field)
    if asked.overlap_param_gather and topology.strategy is not ZERO1:
        raise Contradiction("Megatron-LM wants its distributed optimizer, strategy: zero1", "parallelism.overlap_param_gather")
    if asked.overlap_param_gather and not asked.overlap_grad_reduce:
        raise Contradiction("Megatron-LM wants overlap_grad_reduce with it", "parallelism.overlap_param_gather")


def _check_classic(job: Job) -> None:
    """What is not modelled of the classic GPT."""
    training, schedule = job.training, job.parallelism.pipeline_schedule
    for name, given in (("fp8", training.fp8), ("mtp_num_layers", training.mtp_num_layers)):
        if given:
            raise NotModelled("not modelled with LayerNorm, biases and GELU yet: leave it out", f"training.{name}")
    if parts(training.activation_checkpointing) - {CORE_ATTENTION}:
        raise NotModelled("of a GPT-2 Megatron-Core's selective recomputation is modelled for core_attn", f"{FIELD}.modules")
    if job.parallelism.pipeline > 1 and schedule in SPLIT:
        raise NotModelled(
            f"{schedule} is not modelled with LayerNorm, biases and GELU yet; write 1f1b", "parallelism.pipeline_schedule"
        )


def _check_parts(asked: frozenset[str], found: Config) -> None:
    """What Megatron-Core refuses of selective recomputation."""
    unknown = sorted(asked - set(PARTS))
    if unknown:
        raise Contradiction(f"Megatron-Core recomputes {', '.join(PARTS)}, not {', '.join(unknown)}", f"{FIELD}.modules")
    for part, has, what in ((UP_PROJECTION, found.latent, "latent attention"), (MOE_ACTIVATION, found.mixture, "experts")):
        if part in asked and has is None:
            raise Contradiction(f"{part}: the model has no {what}", f"{FIELD}.modules")
    if asked == {LAYER_NORM} and found.latent is None and found.mixture is None:
        raise Contradiction("layernorm: the norms of this model's layers are parts of products; leave it out", f"{FIELD}.modules")


def _check_ahead(recomputed: str | CheckpointForm, topology: Topology) -> None:
    """What does not go with layers that predict further tokens."""
    where = "training.mtp_num_layers"
    if topology.context > 1:
        raise NotModelled("not modelled with context parallelism, where tokens are passed on between ranks: leave it out", where)
    if isinstance(recomputed, CheckpointForm) and (recomputed.segments or (recomputed.uniform or 1) > 1):
        raise Contradiction("Megatron-Core recomputes such layers with runs of one layer only: write full", FIELD)
    if recomputed == "sqrt":
        raise NotModelled("not modelled with segments: write full", FIELD)


def _check_fp8(job: Job, asked: Fp8, topology: Topology, gpu: Gpu) -> None:
    """What does not go with products in fp8 (pytorch/quantization.py, `check_recipe_support`; training/arguments.py)."""
    least, most = CAPABILITIES[asked.recipe]
    if not gpu.at_least(least) or gpu.at_least(most):
        named = ".".join(map(str, gpu.capability))
        raise Contradiction(
            f"{asked.recipe} needs a compute capability from {least[0]}.{least[1]} on"
            + (f" and below {most[0]}.{most[1]}" if most < NEVER else "")
            + f", not {named}: name such a hardware.gpu",
            "training.fp8.recipe",
        )
    if asked.recipe == "blockwise" and gpu.at_least(BLACKWELL):
        raise NotModelled(
            "blockwise, which mxfp8's products stand in for on Blackwell, is not modelled there: write mxfp8",
            "training.fp8.recipe",
        )
    if asked.amax_history_len > 1 and asked.recipe != "delayed":
        raise Contradiction("only delayed scaling remembers maxima: leave it out", "training.fp8.amax_history_len")
    if asked.param_gather and topology.strategy is not ZERO1:
        raise Contradiction(
            "weights in fp8 alone need the distributed optimizer: write strategy: zero1", "training.fp8.param_gather"
        )
    if asked.param_gather and asked.recipe == "mxfp8":
        raise NotModelled("weights in mxfp8 alone are not modelled: leave it out", "training.fp8.param_gather")
    if job.training.precision != "megatron-bf16":
        raise NotModelled("fp8 is modelled beside megatron-bf16 only", "training.precision")
    taken = sorted(parts(job.training.activation_checkpointing) & {LAYER_NORM, MOE_ACTIVATION})
    if taken and asked.recipe == "delayed":
        raise Contradiction(f"Megatron-Core does not recompute {' and '.join(taken)} with delayed scaling", f"{FIELD}.modules")
