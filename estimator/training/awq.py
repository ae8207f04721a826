"""Linear layers with AWQ's or EETQ's weights, with which transformers 5.23 and PEFT 0.21 train adapters, in float16.

AWQ: GPTQModel 7.7's `AwqGEMMLinear`, which backend "auto_trainable" takes where CUDA's compiler is there; what "auto" takes
(Marlin, Machete, ExLlama) refuses to be trained beside (nn_modules/qlinear/__init__.py, `BaseQuantLinear.train`). EETQ:
transformers' `EetqLinear`, on which PEFT puts LoRA where the package eetq is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Training
from estimator.contract.job.adapter import ALL_LINEAR
from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.families.protocols import Quantization
from estimator.families.spec import ModelSpec
from estimator.parallel.strategies import Strategy
from estimator.quantization.formats import FORMATS, check_group, parts
from estimator.tape import dtypes
from estimator.tape.awq import matmul_awq, matmul_eetq
from estimator.tape.layout import Shape
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor
from estimator.training.quantization import FIELD, held

TILE = 64
"""What AWQ's product asks a layer's outputs to be a multiple of (gemm_cuda_gen.cu, `validate_awq_gemm_args`)."""


@dataclass(frozen=True, slots=True)
class Awq:
    """Codes in words of 32 along the outputs, with a float16 scale and a zero point per group of inputs."""

    group: int | None
    routers: bool = False

    def linear(self, build: Builder, name: str, weight: Shape, bias: bool) -> Module:
        outputs, inputs = weight
        group = self.group or FORMATS["awq-int4"].group or inputs
        if inputs % group or outputs % TILE or outputs % group:
            raise Contradiction(
                f"AWQ's kernel takes outputs that are a multiple of {TILE}, and inputs and outputs that are one of the group of "
                f"{group}: {name} has {inputs} and {outputs}; write unquantized: [{name.rpartition('.')[2]}]",
                FIELD,
            )
        stored = held(build, name, weight, parts("awq-int4", weight, self.group))
        return _Linear(matmul_awq, stored, weight, _bias(build, name, weight, bias))


@dataclass(frozen=True, slots=True)
class Eetq:
    """A byte per weight and a float16 scale per output."""

    routers: bool = True

    def linear(self, build: Builder, name: str, weight: Shape, bias: bool) -> Module:
        stored = held(build, name, weight, parts("eetq-int8", weight))
        return _Linear(matmul_eetq, stored, weight, _bias(build, name, weight, bias))


def _bias(build: Builder, name: str, weight: Shape, bias: bool) -> Tensor | None:
    return build.parameter(name + ".bias", weight[:1], dtypes.float16) if bias else None


class _Linear:
    def __init__(
        self,
        multiply: Callable[[Tensor, Shape, Tensor | None], Tensor],
        stored: tuple[Tensor, list[Tensor]],
        weight: Shape,
        bias: Tensor | None,
    ):
        self.multiply, self.stored, self.weight, self.bias = multiply, stored, weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return to(self.multiply(to(x, dtypes.float16), self.weight, self.bias), x.dtype)


def in_float16(training: Training, spec: ModelSpec, strategy: Strategy) -> Quantization:
    """A job's linear layers in AWQ's or EETQ's format. Raises for what cannot be trained with them, or is not modelled."""
    name = training.quantization or ""
    awq = name.startswith("awq")
    check_group(name, training.quantization_group, "training.quantization_group")
    if spec.own_products or (awq and spec.has_experts):
        raise Contradiction(f"{name} is for torch.nn.Linear, and {spec.model_type} multiplies otherwise; write nf4", FIELD)
    if awq and spec.scales_activations:
        raise NotModelled(f"the activations of {spec.model_type}, which AWQ scales, are not modelled yet; write gptq-int4", FIELD)
    if training.precision != "16-true":
        said = "transformers loads AWQ's model in float16" if awq else "EETQ's kernel takes whatever it gets for float16"
        raise Contradiction(f"{said}: write precision 16-true", "training.precision")
    if training.autocast and not awq:
        raise NotModelled(f"{name} under autocast is not modelled yet: leave it out", "training.autocast")
    for given, where in (
        (training.upcast_unquantized != "none", "upcast_unquantized"),
        (training.implementation not in ("transformers", "liger"), "implementation"),
        (training.head != "causal-lm", "head"),
    ):
        if given:
            raise NotModelled(f"{where}: {getattr(training, where)} beside {name} is not modelled yet", f"training.{where}")
    if not strategy.alone:
        raise NotModelled(f"{name} under {strategy} is not modelled yet; write nf4, or train on one GPU", FIELD)
    if getattr(training.adapter, "targets", None) == ALL_LINEAR:
        raise Contradiction(
            f"PEFT's all-linear finds no layer of {name}, which are no torch.nn.Linear: name them, such as [q_proj, v_proj]",
            "training.adapter.targets",
        )
    return Awq(training.quantization_group) if awq else Eetq()
