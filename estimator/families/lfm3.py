"""LFM3: LFM2's short convolutions, and attention with a gate for each head, over all tokens or over a window, between norms.

After transformers' modeling_lfm3.py (5.23).
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.families.abilities import Abilities
from estimator.families.attention import causal_mask
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention, convolution_state
from estimator.families.decoder import Decoder, Rotary, Table
from estimator.families.decoder_layers import Alone, PreNorm, Sandwich
from estimator.families.each_layer import check_each_named
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention
from estimator.families.heads import language_model
from estimator.families.lfm2 import PARTS, ShortConvolution
from estimator.families.modules import Module
from estimator.families.olmo import rotate_in_float32
from estimator.families.spec import DecoderSpec, RotaryDecoderSpec, Size, called
from estimator.families.windows import FULL, SLIDING, LayerType
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import mul, sigmoid
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, unsqueeze

Kind = Literal["conv", "full_attention", "sliding_attention"]
CONVOLUTION: Kind = "conv"
NORMS = "operator_norm", "ffn_norm", "post_operator_norm", "post_ffn_norm"


class Lfm3Spec(RotaryDecoderSpec):
    """Of four layers the third sees everything, the first, but for the model's, a window, unless `layer_types` says otherwise."""

    can = Abilities()
    last_vllm = "none"
    in_sglang = "none"
    why_not_sglang = "its backend for transformers' models knows no short convolutions"

    max_position_embeddings: Size | None = 128000
    tie_word_embeddings: bool = True
    head_dim: Size = 128
    conv_bias: bool = False
    conv_kernel: Size = called("conv_L_cache", 7)
    layer_types: tuple[Kind, ...] | None = None
    sliding_window: Size = 256
    use_sandwich_norm: bool = True
    use_attention_gate: bool = True
    attention_bias: bool = False

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": 4}

    @classmethod
    def types(cls, layers: int) -> tuple[Kind, ...]:
        """What layers are whose types nothing says."""
        return tuple([FULL if i % 4 == 2 else SLIDING if i and i % 4 == 0 else CONVOLUTION for i in range(layers)])

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What each layer is."""
        return self.layer_types or self.types(self.num_hidden_layers)

    @property
    def attending(self) -> tuple[LayerType, ...]:
        """What layers of attention see, each kind that there is once."""
        return tuple([kind for kind in (FULL, SLIDING) if kind in self.kinds])

    @property
    def cached_per_token(self) -> int | None:
        """Numbers that one token adds to the cache, in the layers of attention, as long as no window is full."""
        return 2 * sum(kind != CONVOLUTION for kind in self.kinds) * self.num_key_value_heads * self.head_dim

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        heads, size = self.num_key_value_heads, self.head_dim
        keeps = {
            CONVOLUTION: convolution_state(self.hidden_size, self.conv_kernel),
            FULL: attention(heads, size),
            SLIDING: attention(heads, size, self.sliding_window),
        }
        return tuple([keeps[kind] for kind in self.kinds])

    @model_validator(mode="after")
    def _each_layer(self) -> Self:
        check_each_named(self.kinds, self.num_hidden_layers)
        return self

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, given: Any) -> Any:
        """Types that layers have anyway need not be said, and then follow their number."""
        if not isinstance(given, dict) or not isinstance(given.get("layer_types"), list | tuple):
            return given
        types = given["layer_types"]
        usual = list(types) == list(cls.types(len(types))) and len(types) == given.get("num_hidden_layers")
        return {name: value for name, value in given.items() if name != "layer_types"} if usual else given

    def config(self) -> dict[str, Any]:
        return super().config() | {"layer_types": [*self.kinds]}


SPECS = {"lfm3": Lfm3Spec}


class GatedAttention(GroupedQueryAttention):
    """What each head gives is multiplied by a sigmoid of another projection, where the config says so."""

    def __init__(self, spec: Lfm3Spec, build: Builder):
        def norm(which: str, _: int) -> Module:
            return build.rms_norm(f"self_attn.{which}_norm", spec.head_dim)

        bias, heads = spec.attention_bias, spec.num_attention_heads
        super().__init__(spec, build, bias, bias, norm=norm, rotate=rotate_in_float32)
        self.g_proj = build.linear("self_attn.g_proj", spec.hidden_size, heads) if spec.use_attention_gate else None

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        q, k, v, *_ = self.project(self, hidden, (batch, tokens, -1, self.head_dim))
        q, k, *_ = self.rotate(q, k, cos, sin)
        out, weights = self.attend(q, k, v, mask)
        if self.g_proj is not None:
            out = mul(out, unsqueeze(sigmoid(self.g_proj(hidden)), 3))
        out = reshape(out, (batch, tokens, -1))
        return self.o_proj(out), weights


class RotaryOfKinds(Rotary):
    """Tables in float32 for those kinds of attention that there are; convolutions have none."""

    def buffers(self, build: Builder) -> list[Tensor]:
        return super().buffers(build) if self.kinds else []

    def tables(self, ids: Tensor, dtype: DType) -> dict[LayerType, Table]:
        return super().tables(ids, dtype) if self.kinds else {}


def masks(
    spec: DecoderSpec, tape: Tape, batch: int, tokens: int, dtype: DType, implementation: str
) -> dict[LayerType, Tensor | None]:
    """The masks of those kinds of attention that there are."""
    assert isinstance(spec, Lfm3Spec)
    windows = {kind: spec.sliding_window if kind == SLIDING else None for kind in spec.attending}
    return {kind: causal_mask(tape, batch, tokens, dtype, implementation, window) for kind, window in windows.items()}


def lfm3(spec: Lfm3Spec, build: Builder) -> Decoder:
    """The body of the model."""

    def layer(kind: Kind) -> PreNorm | Sandwich:
        mixer = Alone(ShortConvolution(spec, build)) if kind == CONVOLUTION else GatedAttention(spec, build)
        mlp = GatedMLP(spec, build, "feed_forward", parts=PARTS)
        if not spec.use_sandwich_norm:
            return PreNorm(spec, build, mixer, mlp, names=NORMS[:2])
        before, before_mlp, after, after_mlp = [build.rms_norm(name, spec.hidden_size) for name in NORMS]
        return Sandwich(mixer, mlp, (before, after, before_mlp, after_mlp))

    def sees(kind: Kind) -> LayerType | None:
        return None if kind == "conv" else kind

    rotary = RotaryOfKinds(spec.head_dim, dtypes.float32, spec.attending, early=True)
    last = "embedding_norm"
    return Decoder(spec, build, layer, spec.kinds, rotary=rotary, last=last, masks=masks, sees=sees, turns=sees)


HEADS = language_model(lfm3)
