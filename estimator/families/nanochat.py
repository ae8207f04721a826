"""nanochat: norms without weights, also of the embeddings and of rotated queries and keys, squared ReLUs, and capped logits.

After transformers' modeling_nanochat.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.gemma import Cap, Gemma2CausalLM
from estimator.families.grouped_query import GroupedQueryAttention, normed_when_rotated
from estimator.families.heads import CausalLM, Head
from estimator.families.spec import Activation, RotaryDecoderSpec
from estimator.tape import dtypes
from estimator.tape.pointwise import add, add_scalar, mean_last, mul, neg, pow_scalar, rsqrt, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, narrow, unsqueeze


class NanoChatSpec(RotaryDecoderSpec):
    in_sglang = "transformers"
    can = Abilities()

    hidden_act: Activation = "relu2"
    attention_bias: bool = False
    final_logit_softcapping: Cap | None = 15.0


SPECS = {"nanochat": NanoChatSpec}


def _scaled(wide: Tensor) -> Tensor:
    """The method `_norm`, a call of its own: what it was given dies when it returns."""
    return mul(wide, rsqrt(add_scalar(mean_last(pow_scalar(wide)))))


def _norm(x: Tensor) -> Tensor:
    """Root-mean-square normalisation in float32, without a weight (`NanoChatRMSNorm`)."""
    return to(_scaled(to(x, dtypes.float32)), x.dtype)


def _rotated(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    first, second = narrow(x, -1, half), narrow(x, -1, half)
    return add(mul(x, c), mul(cat((second, neg(first)), -1), s))


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """Llama's in the other direction."""
    c, s = unsqueeze(cos, 1), unsqueeze(sin, 1)
    rotated_q = _rotated(q, c, s)
    return rotated_q, _rotated(k, c, s)


def _begin(embeds: Tensor) -> tuple[Tensor, Tensor]:
    return _norm(embeds), embeds


def nanochat(spec: NanoChatSpec, build: Builder) -> Decoder:
    """The body of the model."""
    bias = spec.attention_bias

    def layer(_: None) -> PreNorm:
        attention = GroupedQueryAttention(
            spec, build, bias, bias, norm=lambda *_: _norm, project=normed_when_rotated, rotate=_rotate
        )
        return PreNorm(spec, build, attention, TwoLayerMLP(spec, build, ("fc1", "fc2"), False), lambda *_: _norm)

    return Decoder(spec, build, layer, norm=lambda *_: _norm, begin=_begin)


def _causal_lm(spec: NanoChatSpec, build: Builder) -> CausalLM:
    return (Gemma2CausalLM if spec.final_logit_softcapping else CausalLM)(nanochat(spec, build), spec, build)


HEADS: dict[str, Head] = {"causal-lm": _causal_lm}
