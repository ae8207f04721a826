"""What a training's code runs, read off its model and its optimizer, in a job's own words. torch is not imported here.

Names: torch/optim, bitsandbytes/optim/optimizer.py (`Optimizer2State`), transformers/modeling_utils.py (`gradient_checkpointing`,
`_attn_implementation`), peft/config.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

from estimator.contract.job.optimizer import Optimizer
from estimator.exchange.trainer import ATTENTIONS
from estimator.specs.module import count_module

TYPES = {"float32": "32-true", "bfloat16": "bf16-true", "float16": "16-true"}
AUTOCAST = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}
WRAPPED = ("module", "_orig_mod")
"""Where DistributedDataParallel, FSDP1, DataParallel and torch.compile keep the model."""


def unwrapped(model: Any) -> Any:
    """A model without the wrappers of parallelism and compilation."""
    while inner := next((model._modules[name] for name in WRAPPED if name in model._modules and len(model._modules) == 1), None):
        model = inner
    return model


def transformer(model: Any) -> Any:
    """The part of a module that is a transformers model, such as that of a LightningModule; the module itself where none is."""
    found = (part for part in model.modules() if getattr(getattr(part, "config", None), "model_type", None))
    return next(found, model)


def seen(model: Any, optimizer: Any, autocast: str | None) -> dict[str, Any]:
    """By field of a job what the code has; fields of which the code does not tell are left out.

    `autocast`: the type that is autocast to in the forward pass, as torch names it; "" without, None where it is not known.
    """
    found = dict(_of_model(model, autocast))
    if optimizer is not None:
        found |= _of_optimizer(optimizer)
    return found


def _of_model(model: Any, autocast: str | None) -> Iterator[tuple[str, Any]]:
    counted = count_module(model)
    adapters = getattr(model, "peft_config", None) or {}
    config = getattr(model, "config", None)
    trained: Counter[str] = Counter()
    held: Counter[str] = Counter()
    added = 0
    for name, parameter in model.named_parameters():
        kind = str(parameter.dtype).removeprefix("torch.")
        if parameter.requires_grad:
            trained[kind] += parameter.numel()
        if adapters and any(f".{part}" in name for part in ("lora_", "modules_to_save.")):
            added += parameter.numel()
        elif kind in TYPES:
            held[kind] += parameter.numel()
    yield "parameters", counted.total - (added if adapters else 0)
    yield "trainable", counted.trainable
    stored = getattr(config, "quantization_config", None)
    if stored is None or (known := _quantization(stored)):
        yield "training.quantization", known if stored is not None else None
    if held and autocast is not None and stored is None:
        weights = held.most_common(1)[0][0]
        mixed = AUTOCAST.get(autocast) if weights == "float32" else None
        yield "training.precision", mixed or TYPES[weights]
        yield "training.autocast", bool(autocast) and mixed is None
    yield "training.activation_checkpointing", _checkpoints(model)
    attention = getattr(config, "_attn_implementation", None)
    if attention in ATTENTIONS:
        yield "training.attention", ATTENTIONS[attention]
    ranks = [one.r for one in adapters.values() if isinstance(getattr(one, "r", None), int)]
    yield "training.adapter.rank", ranks[0] if ranks else None
    if adapters and trained:
        yield (
            "training.adapter.dtype",
            {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(trained.most_common(1)[0][0]),
        )


def _checkpoints(model: Any) -> bool:
    return any(getattr(part, "gradient_checkpointing", False) is True for part in model.modules())


def _quantization(given: Any) -> str | None:
    """What the weights are stored in, as bitsandbytes' configuration says it; None for another library's."""
    read = given if isinstance(given, dict) else vars(given)
    if read.get("load_in_8bit") or read.get("_load_in_8bit"):
        return "int8"
    if not (read.get("load_in_4bit") or read.get("_load_in_4bit")):
        return None
    return f"{read.get('bnb_4bit_quant_type', 'fp4')}{'-double' if read.get('bnb_4bit_use_double_quant') else ''}"


def _of_optimizer(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Name and implementation; nothing of a class that no job has."""
    kind, defaults = type(optimizer), getattr(optimizer, "defaults", {})
    name, library = kind.__name__.lower(), kind.__module__.partition(".")[0]
    paged = "paged-" if getattr(optimizer, "is_paged", False) else ""
    name = name.removeprefix("paged").removesuffix("32bit")
    bits = getattr(getattr(optimizer, "args", None), "optim_bits", 32)
    name = paged + name.removesuffix("8bit") + ("-8bit" if name.endswith("8bit") or bits == 8 else "")
    if name == "sgd" and defaults.get("momentum"):
        name = "sgd-momentum"
    if name not in get_args(Optimizer):
        return
    yield "training.optimizer", name
    if library == "bitsandbytes":
        yield "training.optimizer_implementation", "bitsandbytes"
    elif library == "torch" and name != "adafactor":
        chosen = _torch_kind(optimizer, defaults)
        if chosen is not None:
            yield "training.optimizer_implementation", chosen


def _torch_kind(optimizer: Any, defaults: Any) -> str | None:
    """fused, foreach or forloop; on a GPU torch takes foreach where nothing is said (`_default_to_fused_or_foreach`)."""
    if defaults.get("fused"):
        return "fused"
    if defaults.get("foreach") is not None:
        return "foreach" if defaults["foreach"] else "forloop"
    on_gpu = any(parameter.is_cuda for group in optimizer.param_groups for parameter in group["params"])
    return "foreach" if on_gpu else None
