"""The adapter of a job as its users would put it on a model: PEFT's config of its method, and `get_peft_model`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import peft
import torch
from peft.tuners.boft import layer as boft
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from estimator.contract.job import AdaLora, Boft, Dora, Ia3, LoHa, Lora, Oft, Vera
from estimator.contract.job.adapter import OnWeights
from estimator.contract.job.training import Head

TASKS = {
    "causal-lm": "CAUSAL_LM",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
    "sequence-classification": "SEQ_CLS",
}
"""PEFT's `task_type` for each head that has one."""


def adapted(model: Any, asked: OnWeights, head: Head | None) -> Any:
    """The model with the adapter, whose parameters have torch's default type."""
    settings = _config(asked, TASKS.get(head or ""), model.config.model_type == "gpt2")
    with _on_fake_tensors(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys")  # of parameters, which it looks for no more
        warnings.filterwarnings("ignore", "target_parameters=.* no parameter was matched")  # a mixture may have dense layers only
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`")
        warnings.filterwarnings("ignore", "TorchaoLoraLinear was instantiated without")  # which says that it cannot be merged
        made = peft.get_peft_model(model, settings, autocast_adapter_dtype=False)
    _cast_magnitudes(made, torch.get_default_dtype())
    _move_buffers(made)
    return made


def _config(asked: OnWeights, task: str | None, transposed: bool) -> peft.PeftConfig:
    common: dict[str, Any] = {
        "target_modules": asked.targets,
        "modules_to_save": asked.modules_to_save or None,
        "task_type": task,
        "fan_in_fan_out": transposed,
    }
    if isinstance(asked, Ia3):
        return peft.IA3Config(**common, exclude_modules=asked.exclude, feedforward_modules=asked.feedforward)
    common["layers_to_transform"] = asked.layers
    if isinstance(asked, LoHa):
        del common["fan_in_fan_out"]
        kind = peft.LoHaConfig if asked.type == "loha" else peft.LoKrConfig
        return kind(**common, exclude_modules=asked.exclude, r=asked.rank)
    common["bias"] = asked.bias
    if isinstance(asked, Oft):
        common |= {"r": asked.blocks or 0, "oft_block_size": 0 if asked.blocks else asked.block_size or 32}
        common |= {"block_share": asked.shared, "use_cayley_neumann": asked.neumann}
        return peft.OFTConfig(**common, exclude_modules=asked.exclude)
    if isinstance(asked, Boft):
        return peft.BOFTConfig(**common, exclude_modules=asked.exclude, boft_block_size=asked.block_size)
    if isinstance(asked, Vera):
        return peft.VeraConfig(**common, r=asked.rank, vera_dropout=asked.dropout)
    common |= {"exclude_modules": asked.exclude, "lora_dropout": asked.dropout, "lora_alpha": 2 * asked.rank}
    if isinstance(asked, AdaLora):
        return peft.AdaLoraConfig(**common, init_r=asked.rank, target_r=1, total_step=1000)
    assert isinstance(asked, Lora | Dora)
    return peft.LoraConfig(**common, r=asked.rank, use_rslora=asked.rslora, use_dora=isinstance(asked, Dora))


@contextmanager
def _on_fake_tensors() -> Iterator[None]:
    """PEFT moves new parameters to the base layer's device and type, which would replace fake ones; and copies modules."""
    with (
        mock.patch.object(BaseTunerLayer, "_move_adapter_to_device_of_base_layer"),
        mock.patch.object(nn.Module, "to", lambda self, *args, **kwargs: self),
        mock.patch.object(FakeTensor, "__deepcopy__", _copied),
        mock.patch.object(boft, "get_fbd_cuda", return_value=None),  # an extension that PEFT would compile
        mock.patch.object(boft.BOFTLayer, "perm2mat", lambda layer, order: torch.zeros(len(order), len(order))),
    ):
        yield


def _copied(parameter: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """A copy of a parameter, made as `nn.Parameter` makes it. A fake parameter is no `nn.Parameter`: torch would copy the
    bytes that it does not have."""
    copy = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
    memo[id(parameter)] = copy
    return copy


def _move_buffers(model: nn.Module) -> None:
    """On a GPU each buffer has bytes of its own: OFT's are views of one tensor before. BOFT's have torch's usual type."""
    for name, buffer in model.named_buffers():
        if name.endswith((".rows", ".cols")):
            buffer.data = buffer.data.clone()
        elif name.endswith("boft_P"):
            buffer.data = buffer.data.float()


def _cast_magnitudes(model: nn.Module, dtype: torch.dtype) -> None:
    """DoRA's lengths are made of the wider of two types, and cast with the rest (`cast_adapter_dtype`)."""
    for module in model.modules():
        if isinstance(module, LoraLayer):
            lengths: Any = module.lora_magnitude_vector
            for layer in lengths.values():
                layer.weight = nn.Parameter(layer.weight.detach().to(dtype))
