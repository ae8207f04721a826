"""LoRA as PEFT applies it: two small trainable matrices beside a frozen layer (peft 0.21, tuners/lora/layer.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from estimator.families.build import Builder
from estimator.families.modules import Conv1D, Embedding, Linear, Module
from estimator.families.parameter import Weight
from estimator.tape import loss
from estimator.tape.dtypes import DType
from estimator.tape.matmul import times_transposed
from estimator.tape.pointwise import add, dropout, mul, mul_scalar, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import clone, transpose
from estimator.training.fused_lora import HAVE_KERNELS, TOGETHER, Adapted, Group
from estimator.training.methods import Method
from estimator.training.parameter_adapters import LoraExperts, LoraMatrix
from estimator.training.quantization import IN_FLOAT16, Packed


@dataclass(frozen=True, slots=True)
class Lora(Method):
    """`parameters`: the ends of the names of parameters that are adapted themselves, with how many layers each was made from."""

    rank: int
    dropout: float
    fused: bool = False
    parameters: Mapping[str, int] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    """Fused layers that share an input, by the path of the module that they are in."""

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        down = build.trained_linear(name + ".lora_A", (self.rank, inputs), self.dtype)
        up = build.trained_linear(name + ".lora_B", (outputs, self.rank), self.dtype)
        if self.fused and name.rpartition(".")[2] in HAVE_KERNELS and isinstance(module, Packed):
            return self._group(build, name).layer(Adapted((outputs, inputs), module.unpack, down.weight, up.weight))
        return LoraLinear(module, down, up, self)

    def _group(self, build: Builder, name: str) -> Group:
        path, _, layer = name.rpartition(".")
        if layer not in TOGETHER or not all(self.targets(f"{path}.{other}") for other in TOGETHER):
            return Group(self.dropout)
        if layer == TOGETHER[0]:
            self.groups[path] = Group(self.dropout)
        return self.groups[path]

    def embed(self, build: Builder, name: str, module: Embedding, rows: int, size: int) -> Module:
        down = build.parameter(name + ".lora_embedding_A", (self.rank, rows), self.dtype, trainable=True)
        up = build.parameter(name + ".lora_embedding_B", (size, self.rank), self.dtype, trainable=True)
        return _LoraEmbedding(module, down, up)

    def weight(self, build: Builder, name: str, tensor: Tensor, used: int) -> Weight:
        layers = next((count for end, count in self.parameters.items() if name.endswith("." + end)), 0)
        if not layers:
            return Weight(tensor)
        *experts, outputs, inputs = tensor.shape
        rank = self.rank * layers * (experts[0] if experts else 1)
        active = self.rank * layers * used
        shapes = {".lora_A.weight": ((rank, inputs), active * inputs), ".lora_B.weight": ((outputs, rank), active * outputs)}
        down, up = (build.parameter(name + end, s, self.dtype, trainable=True, active=a) for end, (s, a) in shapes.items())
        build.adapted.append(name)
        return LoraExperts(tensor, down, up) if experts else LoraMatrix(tensor, down, up)


class LoraLinear:
    """base(x) + scale * B(A(dropout(x))).

    PEFT casts x to the adapter's type first, but over bitsandbytes' layers only without autocast; over 4-bit layers it
    copies the base result (peft/tuners/lora: layer.py, bnb.py, gptq.py, hqq.py, torchao.py, awq.py, eetq.py).
    """

    def __init__(self, base: Module, lora_a: Linear, lora_b: Linear, config: Lora):
        self.base, self.lora_a, self.lora_b, self.config = base, lora_a, lora_b, config
        self.quantization = None if isinstance(base, (Linear, Conv1D)) else config.quantization

    def __call__(self, x: Tensor) -> Tensor:
        result = self.base(x)
        if not x.tape.adapted:
            return result
        dtype, quantization = result.dtype, self.quantization
        if quantization is None or quantization.startswith(("gptq", "hqq", "torchao", "fp8")):
            adapted = to(x, self.lora_a.weight.dtype)
            result = add(result, mul_scalar(self.lora_b(self.lora_a(dropout(adapted, self.config.dropout)))))
            return to(result, dtype)
        if quantization in IN_FLOAT16:
            return add(result, mul_scalar(self._update(x, dtype)))
        if quantization != "int8":
            result = clone(result)
        if x.tape.autocast:
            return add(result, mul_scalar(self.lora_b(self.lora_a(dropout(x, self.config.dropout)))))
        adapted = to(x, self.lora_a.weight.dtype)
        update = to(mul_scalar(self.lora_b(self.lora_a(dropout(adapted, self.config.dropout)))), dtype)
        return add(result, update)

    def _update(self, x: Tensor, dtype: DType) -> Tensor:
        """B(A(dropout(x))) in the base layer's type, as PEFT has it over AWQ's and EETQ's layers (awq.py, eetq.py)."""
        if x.tape.autocast:
            return self.lora_b(self.lora_a(dropout(x, self.config.dropout)))
        adapted = to(x, self.lora_a.weight.dtype)
        return to(self.lora_b(self.lora_a(dropout(adapted, self.config.dropout))), dtype)


class _LoraEmbedding:
    """base(ids) + scale * B A[ids], where A is a table [rank, rows] that is read by columns, and never dropped out."""

    def __init__(self, base: Embedding, lora_a: Tensor, lora_b: Tensor):
        self.base, self.lora_a, self.lora_b = base, lora_a, lora_b

    def __call__(self, ids: Tensor) -> Tensor:
        result = self.base(ids)
        rows = loss.embedding(transpose(self.lora_a, 0, 1), ids)
        update = mul_scalar(times_transposed(rows, self.lora_b))
        if self.base.scale is not None:
            update = mul(update, to(self.base.scale, update.dtype))
        return to(add(result, update), result.dtype)
