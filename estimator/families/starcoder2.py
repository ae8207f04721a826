"""StarCoder2: layer norms, biases, grouped key heads, a sliding window.

After transformers' modeling_starcoder2.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, dropped
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import decoder_heads
from estimator.families.modules import rotate
from estimator.families.rotary import RotarySpec
from estimator.families.spec import Activation, Probability, Size


class Starcoder2Spec(RotarySpec):
    can = Abilities(gguf=True, graph="starcoder-2")
    scales_activations = True
    cached = True
    max_position_embeddings: Size | None = 4096
    hidden_act: Activation = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    use_bias: bool = True
    sliding_window: Size | None = None
    residual_dropout: Probability = 0.0
    embedding_dropout: Probability = 0.0

    @property
    def window(self) -> int | None:
        return self.sliding_window


SPECS = {"starcoder2": Starcoder2Spec}


def starcoder2(spec: Starcoder2Spec, build: Builder) -> Decoder:
    """The body of the model."""
    bias, drops = spec.use_bias, spec.residual_dropout

    def layer(_: None) -> PreNorm:
        attention = GroupedQueryAttention(spec, build, bias, bias, rotate=rotate, drops=drops)
        mlp = TwoLayerMLP(spec, build, ("c_fc", "c_proj"), bias, drops)
        return PreNorm(spec, build, attention, mlp, build.layer_norm)

    return Decoder(spec, build, layer, norm=build.layer_norm, begin=dropped(build, spec.embedding_dropout))


HEADS = decoder_heads(starcoder2)
