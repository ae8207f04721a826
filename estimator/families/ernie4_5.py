"""ERNIE 4.5's dense models: Llama whose heads are rotated in neighbouring pairs, in float32.

After transformers' modeling_ernie4_5.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import language_model
from estimator.families.rotations import rotate_half_of_pairs
from estimator.families.spec import RotaryDecoderSpec, Size
from estimator.tape import dtypes
from estimator.tape.pointwise import add, mul, to
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import unsqueeze

UNREAD = {"attention_dropout": (0, 0.0, None)}
"""Its attention drops nothing, whatever the config says."""


class Ernie45Spec(RotaryDecoderSpec):
    can = Abilities(gguf=True, graph="plain")
    cached = tensor_parallel = True
    modelled = UNREAD

    max_position_embeddings: Size | None = 131072
    tie_word_embeddings: bool = True
    use_bias: bool = False

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": 2, "head_dim": 128}


SPECS = {"ernie4_5": Ernie45Spec}


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb`: each number of the table's first half is repeated for both of a pair."""
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    c = empty(c.tape, c.shape, c.dtype, "repeat_interleave")
    s = empty(s.tape, s.shape, s.dtype, "repeat_interleave")
    rotated_q = add(mul(to(q, dtypes.float32), c), mul(to(rotate_half_of_pairs(q), dtypes.float32), s))
    rotated_k = add(mul(to(k, dtypes.float32), c), mul(to(rotate_half_of_pairs(k), dtypes.float32), s))
    return to(rotated_q, q.dtype), to(rotated_k, k.dtype)


def ernie4_5(spec: Ernie45Spec, build: Builder) -> Decoder:
    """The body of the model."""
    bias = spec.use_bias

    def layer(_: None) -> PreNorm:
        attention = GroupedQueryAttention(spec, build, bias, bias, rotate=rotate)
        return PreNorm(spec, build, attention, GatedMLP(spec, build, bias=bias))

    return Decoder(spec, build, layer, rotary=Rotary(spec.head_dim, dtypes.float32))


HEADS = language_model(ernie4_5)
