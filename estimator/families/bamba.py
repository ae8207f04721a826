"""Bamba: layers of Mamba-2 and a few of attention, half of each head rotated, each before a gated feed-forward layer.

After transformers' modeling_bamba.py (5.23), without the packages mamba-ssm and causal-conv1d: its Mamba layers are Mamba-2's, on
the path in plain torch.
"""

from __future__ import annotations

from typing import Annotated, Any, Self, cast

from pydantic import Field, model_validator

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder as Body
from estimator.families.decoder import Rotary
from estimator.families.decoder_layers import Alone, PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import language_model
from estimator.families.hybrid import ATTENTION, MAMBA, Kind, Mamba2HybridSpec
from estimator.families.mamba2 import Mixer
from estimator.families.modules import rotate_part
from estimator.families.rotary import PartialRotarySpec
from estimator.families.spec import Size
from estimator.families.windows import FULL, LayerType
from estimator.tape.tensor import Tensor

NORMS = "input_layernorm", "pre_ff_layernorm"


class BambaSpec(Mamba2HybridSpec, PartialRotarySpec):
    """The layers of `attn_layer_indices` attend, the others are Mamba's. A second loss, of the logits' size, is not modelled."""

    can = Abilities(gguf=True, graph="granite")
    modelled = {"z_loss_coefficient": (0, 0.0)}
    in_sglang = "none"
    last_vllm = "0.23"

    intermediate_size: Size = 14336
    max_position_embeddings: Size | None = 262144
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    attn_layer_indices: tuple[int, ...] | None = None
    mlp_bias: bool = False

    @property
    def kinds(self) -> tuple[Kind, ...]:
        attending = self.attn_layer_indices or ()
        return tuple([ATTENTION if i in attending else MAMBA for i in range(self.num_hidden_layers)])

    @model_validator(mode="after")
    def _hard_coded(self) -> Self:
        if self.partial_rotary_factor != 0.5:
            raise ValueError(f"partial_rotary_factor {self.partial_rotary_factor} is 0.5 in every Bamba; leave it out")
        return self

    def config(self) -> dict[str, Any]:
        indices = self.attn_layer_indices
        return super().config() | {"attn_layer_indices": None if indices is None else [*indices]}


SPECS = {"bamba": BambaSpec}


class Layer(PreNorm):
    """A layer that also gives the weights of its attention, if it has any."""

    def __call__(self, hidden: Tensor, *shared: Tensor | None) -> Any:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, weights = self.self_attn(out, *shared[:-1])
        out = self.attention_join(out, residual)
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.mlp(out)
        return self.output_join(out, residual), weights


class Decoder(Body):
    """A decoder that holds the weights of a layer's attention until the next layer is done."""

    def forward(self, ids: Tensor, given: Tensor | None = None, prepared: dict[LayerType, Tensor | None] | None = None) -> Tensor:
        return self.decode(ids, given, prepared, after=_hidden)


def _hidden(_: int, out: Any) -> Tensor:
    """What a layer gives the next one."""
    return cast(Tensor, out[0])


def bamba(spec: BambaSpec, build: Builder) -> Decoder:
    """The body of the model."""
    bias = spec.attention_bias

    def layer(kind: Kind) -> Layer:
        mlp = GatedMLP(spec, build, "feed_forward", bias=spec.mlp_bias)
        norms = {name: build.rms_norm(name, spec.hidden_size) for name in NORMS}  # before what mixes tokens
        mixes: Any
        if kind == MAMBA:
            mixes = Alone(Mixer(spec.mixer, build, "mamba"))
        else:
            mixes = GroupedQueryAttention(spec, build, bias, bias, rotate=rotate_part)
        return Layer(spec, build, mixes, mlp, norm=lambda name, _: norms[name], names=NORMS)

    def sees(kind: Kind) -> LayerType | None:
        return None if kind == MAMBA else FULL

    rotary = Rotary(spec.rotary_size)
    return Decoder(spec, build, layer, spec.kinds, rotary=rotary, last="final_layernorm", sees=sees, holding=True)


HEADS = language_model(bamba)
