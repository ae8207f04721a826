"""What a job stores frozen weights as, and what is refused together with them."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Training
from estimator.contract.job.adapter import ALL_LINEAR
from estimator.families.protocols import Quantization
from estimator.families.spec import ModelSpec
from estimator.parallel.strategies import Strategy
from estimator.tape.gpu import Gpu
from estimator.training.awq import in_float16
from estimator.training.float8 import ADA
from estimator.training.quantization import FIELD, IN_FLOAT16, BitsAndBytes8Bit, Fp8, Hqq, Torchao, storage
from estimator.training.recipes import Recipe


def quantization(training: Training, spec: ModelSpec, strategy: Strategy, gpu: Gpu, precision: Recipe) -> Quantization | None:
    """The layers of a job's quantized weights; None where there are none. Raises `InvalidJob` and `NotModelled`."""
    if training.quantization is None:
        return None
    if training.quantization in IN_FLOAT16:
        return in_float16(training, spec, strategy)
    found = storage(training.quantization, training.quantization_group, "training.quantization_group", training.quantized_experts)
    if isinstance(found, Fp8) and not gpu.at_least(ADA):
        raise Contradiction(
            "fp8 needs compute capability 8.9 or more: name such a hardware.gpu; on others transformers makes bf16 of it", FIELD
        )
    if isinstance(found, Fp8) and spec.has_experts:
        raise NotModelled("experts in fp8 are not modelled in training yet", FIELD)
    if isinstance(found, Torchao | Fp8) and spec.own_products:
        raise Contradiction(
            f"{training.quantization} is for torch.nn.Linear, and {spec.model_type} multiplies otherwise; write nf4", FIELD
        )
    if isinstance(found, Hqq | Torchao | Fp8):
        _in_one_type(training, strategy)
    if isinstance(found, Torchao | Fp8) and training.upcast_unquantized != "none":
        raise NotModelled(
            f"wider norms beside {training.quantization} are not modelled yet; write none", "training.upcast_unquantized"
        )
    if isinstance(found, Hqq) and getattr(training.adapter, "targets", None) == ALL_LINEAR:
        raise Contradiction(
            "PEFT's all-linear finds none of HQQ's layers, which are no torch.nn.Linear: name them, such as [q_proj, v_proj]",
            "training.adapter.targets",
        )
    if training.quantized_experts:
        _with_experts(spec, strategy)
    if strategy.flattens:
        _flattened(found, precision)
    return found


def _with_experts(spec: ModelSpec, strategy: Strategy) -> None:
    """Raise unless the model has experts whose weights every GPU holds whole."""
    if not spec.has_experts:
        raise Contradiction(f"{spec.model_type} has no experts: leave it out", "training.quantized_experts")
    if "quantized_whole" not in strategy.models:
        raise NotModelled(f"experts in 4 bits under {strategy} are not modelled yet; write ddp", "training.quantized_experts")


def _in_one_type(training: Training, strategy: Strategy) -> None:
    """Raise unless weights are bf16 and whole on every GPU: a format may be modelled for these alone."""
    if training.precision != "bf16-true" or training.autocast:
        raise NotModelled(
            f"{training.quantization} beside float32, or autocast, is not modelled yet; write precision bf16-true", FIELD
        )
    if "quantized_whole" not in strategy.models:
        raise NotModelled(f"{training.quantization} under {strategy} is not modelled yet; write nf4, or ddp", FIELD)


def _flattened(found: Quantization, precision: Recipe) -> None:
    """What cannot lie in one tensor with a layer's other parameters."""
    if isinstance(found, BitsAndBytes8Bit):
        raise Contradiction(
            "fsdp1 flattens a layer's parameters into one tensor of one type, but bitsandbytes' 8-bit weights are int8 whatever "
            "the others are: write nf4, which can be stored as any type, or fsdp2",
            FIELD,
        )
    if precision.gathered not in (None, precision.weights):
        raise Contradiction(
            f"fsdp1 would cast packed weights from {precision.weights.name} to {precision.gathered.name} "
            "as if they were numbers: "
            "load the others in that type, too (dtypes: weights), or write bf16-true",
            "training.precision",
        )
