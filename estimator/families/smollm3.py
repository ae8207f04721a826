"""SmolLM3: Llama, of which some layers, the last of each period of four, rotate neither queries nor keys.

After transformers' modeling_smollm3.py (5.23).
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from estimator.families.build import Builder
from estimator.families.heads import decoder_heads
from estimator.families.layers import Layers
from estimator.families.llama import DecoderLayer, Llama, LlamaSpec, SelfAttention
from estimator.specs.spec import Size
from estimator.tape.tensor import Tensor


class SmolLM3Spec(LlamaSpec):
    """`no_rope_layers` has a 1 for each layer that rotates and a 0 for each that does not, whatever its name says."""

    implementations = ("transformers",)
    modelled = {"use_sliding_window": (False,)}

    tie_word_embeddings: bool = True
    no_rope_layer_interval: Size = 4
    no_rope_layers: tuple[bool, ...] | None = None

    @property
    def rotating(self) -> tuple[bool, ...]:
        """Whether each layer rotates."""
        period = self.no_rope_layer_interval
        return self.no_rope_layers or tuple([(i + 1) % period != 0 for i in range(self.num_hidden_layers)])

    @model_validator(mode="after")
    def _each_layer(self) -> Self:
        if len(self.rotating) != self.num_hidden_layers:
            raise ValueError(f"no_rope_layers is of {len(self.rotating)} layers, num_hidden_layers is {self.num_hidden_layers}")
        return self

    def config(self) -> dict[str, Any]:
        return super().config() | {"no_rope_layers": [int(rotates) for rotates in self.rotating]}


SPECS = {"smollm3": SmolLM3Spec}


def _as_they_are(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """No rotation."""
    return q, k


class UnrotatedAttention(SelfAttention):
    def __init__(self, spec: SmolLM3Spec, build: Builder):
        super().__init__(spec, build)
        self.rotate = _as_they_are


class UnrotatedLayer(DecoderLayer):
    attention = UnrotatedAttention


class SmolLM3(Llama):
    """The body of the model."""

    def stack(self, spec: SmolLM3Spec, build: Builder) -> Layers:
        return build.layers(spec.rotating, lambda rotates: (DecoderLayer if rotates else UnrotatedLayer)(spec, build))


HEADS = decoder_heads(SmolLM3)
