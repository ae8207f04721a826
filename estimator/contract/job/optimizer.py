"""Names of optimizers: who implements each, and what transformers' Trainer calls it."""

from __future__ import annotations

from typing import Literal

Optimizer = Literal[
    "adamw",
    "adam",
    "sgd",
    "sgd-momentum",
    "adagrad",
    "adadelta",
    "adamax",
    "nadam",
    "radam",
    "rmsprop",
    "adafactor",
    "muon",
    "lion",
    "lamb",
    "ademamix",
    "adamw-8bit",
    "adam-8bit",
    "sgd-8bit",
    "adagrad-8bit",
    "rmsprop-8bit",
    "lion-8bit",
    "ademamix-8bit",
    "adamw-4bit",
    "adam-4bit",
    "adamw-fp8",
    "adam-fp8",
    "paged-adamw",
    "paged-adam",
    "paged-lion",
    "paged-ademamix",
    "paged-adamw-8bit",
    "paged-adam-8bit",
    "paged-lion-8bit",
    "paged-ademamix-8bit",
    "galore-adamw",
    "apollo",
    "apollo-mini",
    "shampoo",
    "soap",
]

Implementation = Literal[
    "foreach",
    "fused",
    "forloop",
    "transformers",
    "bitsandbytes",
    "torchao",
    "lion-pytorch",
    "galore-torch",
    "apollo-torch",
    "pytorch-optimizer",
    "llama-cookbook",
    "transformer-engine",
]

_TORCH: tuple[Implementation, ...] = ("foreach", "forloop")
_ADAM: tuple[Implementation, ...] = ("fused", "foreach", "forloop", "bitsandbytes", "transformer-engine")
_BITS: tuple[Implementation, ...] = ("bitsandbytes",)

IMPLEMENTATIONS: dict[str, tuple[Implementation, ...]] = {
    "adamw": (*_ADAM, "llama-cookbook"),
    "adam": _ADAM,
    "sgd": ("foreach", "fused", "forloop"),
    "sgd-momentum": ("foreach", "fused", "forloop", "bitsandbytes"),
    "adagrad": ("foreach", "fused", "forloop", "bitsandbytes"),
    "adadelta": _TORCH,
    "adamax": _TORCH,
    "nadam": _TORCH,
    "radam": _TORCH,
    "rmsprop": ("foreach", "forloop", "bitsandbytes"),
    "adafactor": ("transformers", "forloop", "foreach"),
    "muon": ("fused", "foreach", "forloop"),
    "lion": ("bitsandbytes", "lion-pytorch"),
    "lamb": _BITS,
    "ademamix": _BITS,
    "adamw-8bit": ("bitsandbytes", "torchao"),
    "adam-8bit": ("bitsandbytes", "torchao"),
    "sgd-8bit": _BITS,
    "adagrad-8bit": _BITS,
    "rmsprop-8bit": _BITS,
    "lion-8bit": _BITS,
    "ademamix-8bit": _BITS,
    "adamw-4bit": ("torchao",),
    "adam-4bit": ("torchao",),
    "adamw-fp8": ("torchao",),
    "adam-fp8": ("torchao",),
    "paged-adamw": _BITS,
    "paged-adam": _BITS,
    "paged-lion": _BITS,
    "paged-ademamix": _BITS,
    "paged-adamw-8bit": _BITS,
    "paged-adam-8bit": _BITS,
    "paged-lion-8bit": _BITS,
    "paged-ademamix-8bit": _BITS,
    "galore-adamw": ("galore-torch",),
    "apollo": ("apollo-torch",),
    "apollo-mini": ("apollo-torch",),
    "shampoo": ("pytorch-optimizer",),
    "soap": ("pytorch-optimizer",),
}
"""Who implements an optimizer; the first is the default. Of muon: which of torch's AdamW steps the rest of the parameters."""

STATES: dict[Implementation, Literal["fp32", "bf16", "fp16"]] = {"llama-cookbook": "bf16", "transformer-engine": "fp32"}
"""Implementations that let the type of the moments be chosen, and what it is where none is given."""

RANKS = {"galore-adamw": 128, "apollo": 256, "apollo-mini": 1}
"""Optimizers that project gradients, and the rank that they project to where none is given."""

_WIDE: dict[str, str | bool] = {"optimizer_wide_embeddings": True}

ALIASES: dict[str, dict[str, str | bool]] = {
    "adamw_torch": {"optimizer": "adamw", "optimizer_implementation": "foreach"},
    "adamw_torch_fused": {"optimizer": "adamw", "optimizer_implementation": "fused"},
    "adamw_anyprecision": {
        "optimizer": "adamw",
        "optimizer_implementation": "llama-cookbook",
        "optimizer_states": "fp32",
    },
    "adamw_torch_8bit": {"optimizer": "adamw-8bit", "optimizer_implementation": "torchao"},
    "adamw_torch_4bit": {"optimizer": "adamw-4bit", "optimizer_implementation": "torchao"},
    "adamw_bnb_8bit": {"optimizer": "adamw-8bit", **_WIDE},
    "adamw_8bit": {"optimizer": "adamw-8bit", **_WIDE},
    "ademamix_8bit": {"optimizer": "ademamix-8bit", **_WIDE},
    "lion_32bit": {"optimizer": "lion"},
    "lion_8bit": {"optimizer": "lion-8bit", **_WIDE},
    "paged_adamw_32bit": {"optimizer": "paged-adamw"},
    "paged_adamw_8bit": {"optimizer": "paged-adamw-8bit", **_WIDE},
    "paged_lion_32bit": {"optimizer": "paged-lion"},
    "paged_lion_8bit": {"optimizer": "paged-lion-8bit", **_WIDE},
    "paged_ademamix_32bit": {"optimizer": "paged-ademamix"},
    "paged_ademamix_8bit": {"optimizer": "paged-ademamix-8bit", **_WIDE},
    "rmsprop_bnb": {"optimizer": "rmsprop", "optimizer_implementation": "bitsandbytes"},
    "rmsprop_bnb_32bit": {"optimizer": "rmsprop", "optimizer_implementation": "bitsandbytes"},
    "rmsprop_bnb_8bit": {"optimizer": "rmsprop-8bit", **_WIDE},
    "galore_adamw": {"optimizer": "galore-adamw"},
    "galore_adamw_layerwise": {"optimizer": "galore-adamw", "optimizer_in_backward": True},
    "apollo_adamw": {"optimizer": "apollo"},
    "apollo_adamw_layerwise": {"optimizer": "apollo", "optimizer_in_backward": True},
}
"""What transformers' Trainer calls them (`optim=`), as fields of a job."""
