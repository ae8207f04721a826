"""A PyTorch module as it stands in memory, on whatever device: its counts, and its architecture where that is known.

torch is not imported here: a module brings what is needed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Any

from estimator.contract.errors import InvalidJob


@dataclass(frozen=True, slots=True)
class ModuleCounts:
    """Numbers and bytes of a module, shared parameters once; of its buffers apart. Packed 4-bit weights count as they unpack."""

    total: int
    trainable: int
    bytes: int
    bytes_by_dtype: dict[str, int]
    buffers: int
    buffer_bytes: int


def count_module(module: Any) -> ModuleCounts:
    """Count an `nn.Module`, also one on the meta device. `InvalidJob` if it is none."""
    check_module(module)
    numbers = [(parameter, _numbers(parameter)) for parameter in module.parameters()]
    sizes: Counter[str] = Counter()
    for parameter, _ in numbers:
        sizes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel() * parameter.element_size()
    buffers = list(module.buffers())
    return ModuleCounts(
        total=sum(count for _, count in numbers),
        trainable=sum(count for parameter, count in numbers if parameter.requires_grad),
        bytes=sum(sizes.values()),
        bytes_by_dtype=dict(sizes.most_common()),
        buffers=sum(buffer.numel() for buffer in buffers),
        buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in buffers),
    )


def architecture_of(module: Any) -> dict[str, Any]:
    """The mapping that says a transformers model's architecture, for `model` in a job. `InvalidJob` if the module says none."""
    check_module(module)
    base = module.get_base_model() if hasattr(module, "get_base_model") else module  # peft's wrapper
    config: Any = getattr(base, "config", None)
    if not hasattr(config, "to_dict") or not getattr(config, "model_type", ""):
        raise InvalidJob(
            f"{type(base).__name__} has no transformers config; count_module counts it, and a spec can describe it", "module"
        )
    found: dict[str, Any] = config.to_dict()
    return found


def _numbers(parameter: Any) -> int:
    """How many numbers a parameter stands for: bitsandbytes packs two of 4 bits into a byte, and remembers the shape."""
    packed = getattr(getattr(parameter, "quant_state", None), "shape", None)
    return prod(packed) if packed is not None else int(parameter.numel())


def check_module(module: Any) -> None:
    """`InvalidJob` if it is no `nn.Module`."""
    if isinstance(module, type) or not all(callable(getattr(module, name, None)) for name in ("parameters", "buffers")):
        raise InvalidJob(f"{type(module).__name__} is no torch.nn.Module: give a module, not its class or its weights", "module")
