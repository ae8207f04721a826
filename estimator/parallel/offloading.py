"""What a job keeps in the host's memory: which of the libraries' ways its `offload` names, and what each strategy refuses."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Offload

CPU_OFFLOAD_POLICY = Offload(optimizer="cpu", parameters="cpu", gradients="cpu")
"""What FSDP2's policy of that name moves: all of it."""


def offloads(job: Job) -> bool:
    """Whether a part of the model, its gradients or the optimizer lives outside the GPU."""
    asked = job.offload
    return job.task == "train" and (asked.optimizer, asked.parameters, asked.gradients) != ("none", "none", "none")


def refuse_ddp(job: Job) -> None:
    """Raise `InvalidJob`: nothing of DDP's is offloaded."""
    raise Contradiction("ddp keeps everything on the GPU; write zero1, zero2, zero3 or fsdp2", "parallelism.strategy")


def refuse_fsdp1(job: Job) -> None:
    """Raise `NotModelled`: FSDP1's `CPUOffload`."""
    raise NotModelled("offloading under fsdp1 is not modelled yet; write fsdp2", "parallelism.strategy")


def check_beside(job: Job) -> None:
    """Raise `NotModelled` for what is not known together with an offloaded optimizer, whatever the strategy."""
    training = job.training
    if training.optimizer_implementation not in ("foreach", "fused", "forloop"):
        raise NotModelled(
            f"offloading {training.optimizer} ({training.optimizer_implementation}) is not modelled yet; write adamw", _OPTIMIZER
        )
    if training.optimizer_in_backward:
        raise NotModelled("a step within backward with offloading is not modelled yet; leave one out", "offload")
    if training.precision == "16-mixed" or training.precision.startswith("megatron"):
        raise NotModelled(f"{training.precision} with offloading is not modelled yet; write bf16-mixed", "training.precision")
    if training.trainable != "all":
        raise NotModelled("training a part of the model with offloading is not modelled yet; leave one out", "offload")


def check_fsdp2(job: Job) -> None:
    """Raise `InvalidJob` for what `CPUOffloadPolicy` does not do."""
    asked = job.offload
    if (asked.optimizer, asked.parameters, asked.gradients) != ("cpu", "cpu", "cpu"):
        raise Contradiction(
            "fsdp2 offloads parameters, gradients and optimizer together, to the host's memory (CPUOffloadPolicy): "
            "write offload: {parameters: cpu, gradients: cpu, optimizer: cpu}",
            "offload",
        )


def check_one_gpu(job: Job) -> None:
    """Raise `InvalidJob` for what torchao's `CPUOffloadOptimizer` cannot do, and `NotModelled`."""
    asked, training = job.offload, job.training
    if (asked.optimizer, asked.parameters) != ("cpu", "none") or asked.gradients == "nvme":
        raise Contradiction(
            "one GPU offloads its optimizer to the host's memory (torchao's CPUOffloadOptimizer), gradients with it if asked: "
            "write offload: {optimizer: cpu, gradients: cpu}; parameters need zero3 or fsdp2",
            "offload",
        )
    if asked.gradients == "cpu" and training.gradient_accumulation_steps > 1:
        raise Contradiction(
            "CPUOffloadOptimizer frees gradients as they come, and cannot add those of several micro-steps; leave it out",
            "offload.gradients",
        )
    for refused, where in (
        (training.gradient_clipping, "gradient_clipping"),
        (not training.zero_grad_to_none, "zero_grad_to_none"),
    ):
        if refused:
            raise Contradiction("CPUOffloadOptimizer sends gradients to the host as they come; leave it out", f"training.{where}")
    if training.optimizer not in ("adamw", "adam", "sgd", "sgd-momentum"):
        raise NotModelled(f"{training.optimizer} in CPUOffloadOptimizer is not modelled yet; write adamw or sgd", _OPTIMIZER)
    if training.optimizer in ("adamw", "adam") and training.optimizer_implementation != "fused":
        raise NotModelled("an offloaded optimizer that is not fused is not modelled yet; write fused", _IMPLEMENTATION)


_OPTIMIZER = "training.optimizer"
_IMPLEMENTATION = "training.optimizer_implementation"


def check_zero(job: Job) -> None:
    """Raise `InvalidJob` for what DeepSpeed cannot do, and `NotModelled`: the optimizer comes first, its gradients with it, and
    parameters in stage 3 only."""
    asked, stage = job.offload, int((job.parallelism.strategy or "")[-1])
    if asked.optimizer == "none" and asked.gradients != "none":
        raise Contradiction("DeepSpeed offloads gradients with the optimizer; write optimizer: cpu", "offload.optimizer")
    if asked.optimizer == "none":
        raise NotModelled("offloading parameters alone is not modelled yet; write optimizer: cpu, too", "offload.optimizer")
    if asked.gradients not in ("none", asked.optimizer):
        raise Contradiction(
            f"DeepSpeed's gradients go where the optimizer is; write gradients: {asked.optimizer}", "offload.gradients"
        )
    if stage < 3 and asked.parameters != "none":
        raise Contradiction(f"zero{stage} keeps the parameters on the GPU; write none, or zero3", "offload.parameters")
    if stage < 3 and asked.optimizer == "nvme":
        raise Contradiction(f"zero{stage} offloads to the host's memory only; write cpu, or zero3", "offload.optimizer")
    if asked.parameters != "none" and job.hardware.gpus * job.hardware.nodes == 1:
        raise NotModelled("zero3's offloaded parameters on one GPU are not modelled yet; use two or more", "offload.parameters")
    if job.training.optimizer not in ("adamw", "adam"):
        raise Contradiction("DeepSpeed offloads Adam (DeepSpeedCPUAdam) and no other; write adamw", "training.optimizer")
    if job.training.quantization or job.training.adapter:
        raise NotModelled("adapters with ZeRO's offloading are not modelled yet; leave one out", "offload")
    if job.training.precision == "32-true":
        raise NotModelled("32-true with ZeRO's offloading is not modelled yet; write bf16-mixed", "training.precision")
