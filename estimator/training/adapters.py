"""LoRA as PEFT applies it: two small trainable matrices beside a frozen linear layer (peft 0.21, tuners/lora).

Experts are no linear layers, but one parameter for all of them. For some models PEFT adapts that, too, since each expert had
linear layers once: where the targets name those, or all (utils/transformers_weight_conversion.py, `_convert_peft_config_moe`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from estimator.dtypes import BY_NAME, DType
from estimator.errors import InvalidJob
from estimator.families.build import Builder, Weight
from estimator.families.modules import Linear, Module
from estimator.job import Adapter
from estimator.tape.pointwise import add, dropout, mul_scalar, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import clone
from estimator.training.fused_lora import HAVE_KERNELS, TOGETHER, Adapted, Group
from estimator.training.parameter_adapters import LoraExperts, LoraMatrix
from estimator.training.quantization import Packed

ALL_LINEAR = "all-linear"

QWEN = {"gate": "gate.weight", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"}
MIXTRAL = {"gate": "gate.weight", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"}
FUSED = {"mixtral": MIXTRAL, "qwen3_moe": QWEN, "olmoe": QWEN, "deepseek_v2": QWEN, "deepseek_v3": QWEN}
"""By model type: the parameter that holds what a linear layer of that name held. (`_MOE_TARGET_MODULE_MAPPING`; which model is
like which: transformers' `_MODEL_TO_CONVERSION_PATTERN`, in which qwen2_moe is like none.)"""


@dataclass(frozen=True, slots=True)
class Lora:
    """`names`: the ends of the adapted layers' names, or None for all linear layers but the output layer; never the `excluded`.

    `parameters`: the ends of the names of parameters that are adapted themselves, with how many layers each was made from.
    """

    rank: int
    names: tuple[str, ...] | None
    dtype: DType
    dropout: float
    quantization: str | None = None
    fused: bool = False
    excluded: frozenset[str] = frozenset()
    parameters: Mapping[str, int] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    """Fused layers that share an input, by the path of the module that they are in."""

    def targets(self, name: str) -> bool:
        """PEFT's rule: a target names a module, or the end of its path from a dot on."""
        if name.rpartition(".")[2] in self.excluded:
            return False
        return self.names is None or any(name == end or name.endswith("." + end) for end in self.names)

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        down = build.parameter(name + ".lora_A.weight", (self.rank, inputs), self.dtype, trainable=True)
        up = build.parameter(name + ".lora_B.weight", (outputs, self.rank), self.dtype, trainable=True)
        if self.fused and name.rpartition(".")[2] in HAVE_KERNELS and isinstance(module, Packed):
            return self._group(build, name).layer(Adapted((outputs, inputs), module.unpack, down, up))
        return _LoraLinear(module, Linear(down, None), Linear(up, None), self)

    def _group(self, build: Builder, name: str) -> Group:
        path, _, layer = name.rpartition(".")
        if layer not in TOGETHER or not all(self.targets(f"{path}.{other}") for other in TOGETHER):
            return Group(self.dropout)
        if layer == TOGETHER[0]:
            self.groups[path] = Group(self.dropout)
        return self.groups[path]

    def weight(self, build: Builder, name: str, tensor: Tensor, used: int) -> Weight:
        layers = next((count for end, count in self.parameters.items() if name.endswith("." + end)), 0)
        if not layers:
            return Weight(tensor)
        *experts, outputs, inputs = tensor.shape
        rank = self.rank * layers * (experts[0] if experts else 1)
        active = self.rank * layers * used
        shapes = {".lora_A.weight": ((rank, inputs), active * inputs), ".lora_B.weight": ((outputs, rank), active * outputs)}
        down, up = (build.parameter(name + end, s, self.dtype, trainable=True, active=a) for end, (s, a) in shapes.items())
        return LoraExperts(tensor, down, up) if experts else LoraMatrix(tensor, down, up)


class _LoraLinear:
    """base(x) + scale * B(A(dropout(x))).

    PEFT casts x to the adapter's type first, but over bitsandbytes' layers only without autocast; over 4-bit layers it
    copies the base result (peft/tuners/lora: layer.py, bnb.py, gptq.py).
    """

    def __init__(self, base: Module, lora_a: Linear, lora_b: Linear, config: Lora):
        self.base, self.lora_a, self.lora_b, self.config = base, lora_a, lora_b, config

    def __call__(self, x: Tensor) -> Tensor:
        result = self.base(x)
        if not x.tape.adapted:
            return result
        dtype, quantization = result.dtype, self.config.quantization
        if quantization is None or quantization.startswith("gptq"):
            adapted = to(x, self.lora_a.weight.dtype)
            result = add(result, mul_scalar(self.lora_b(self.lora_a(dropout(adapted, self.config.dropout)))))
            return to(result, dtype)
        if quantization != "int8":
            result = clone(result)
        if x.tape.autocast:
            return add(result, mul_scalar(self.lora_b(self.lora_a(dropout(x, self.config.dropout)))))
        adapted = to(x, self.lora_a.weight.dtype)
        update = to(mul_scalar(self.lora_b(self.lora_a(dropout(adapted, self.config.dropout)))), dtype)
        return add(result, update)


def lora(asked: Adapter, joined: Mapping[str, str], quantization: str | None, fused: bool) -> Lora:
    """The adapter that a job asks for; `joined`: the parameters that hold what were linear layers, by their names.

    Raises `InvalidJob` for what PEFT refuses.
    """
    names = None if asked.targets == ALL_LINEAR else tuple(asked.targets)
    named = [old for old in joined if names is None or any(name == old or name.endswith("." + old) for name in names)]
    layers: dict[str, int] = {}
    for old in named:
        layers[joined[old]] = layers.get(joined[old], 0) + 1
    for old in joined:
        if old not in named and joined[old] in layers:
            where = "training.adapter.targets"
            raise InvalidJob(f"{old} lies in one parameter with another target: name both, or neither", where)
    if layers and asked.dropout:
        raise InvalidJob(
            f"LoRA on the parameters that hold {', '.join(named)} has no dropout: write 0, or other targets",
            "training.adapter.dropout",
        )
    return Lora(asked.rank, names, BY_NAME[asked.dtype], asked.dropout, quantization, fused, frozenset(named), layers)
