"""SmolLM3: Llama, of which some layers, the last of each period of four, rotate neither queries nor keys.

After transformers' modeling_smollm3.py (5.23).
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.heads import decoder_heads
from estimator.families.llama import LlamaRotary, LlamaSpec, decoder_layer
from estimator.families.rotations import unrotated
from estimator.families.spec import Size


class SmolLM3Spec(LlamaSpec):
    """`no_rope_layers` has a 1 for each layer that rotates and a 0 for each that does not, whatever its name says."""

    in_sglang = "transformers"

    can = Abilities(gguf=True, graph="smollm-3")
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


def smollm3(spec: SmolLM3Spec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(rotates: bool) -> PreNorm:
        return decoder_layer(spec, build, rotate=None if rotates else unrotated)

    return Decoder(spec, build, layer, spec.rotating, rotary=LlamaRotary(spec.head_dim))


HEADS = decoder_heads(smollm3)
