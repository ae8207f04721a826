"""The language models of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: Qwen2 and Qwen3 with rotary positions in three dimensions.

After transformers' modeling_qwen2_vl.py, modeling_qwen2_5_vl.py, modeling_qwen3_vl.py and modeling_qwen3_vl_moe.py (5.23).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.decoder import Decoder, Rotary, Table
from estimator.families.decoder_layers import PreNorm
from estimator.families.experts import MoeSpec
from estimator.families.heads import CausalLM
from estimator.families.llama import LlamaSpec, Qwen2Spec, Qwen3Spec, decoder_layer
from estimator.families.mixtral import Qwen3Moe, Qwen3MoeSpec
from estimator.families.spec import Size, called
from estimator.families.windows import FULL, SLIDING, LayerType
from estimator.tape.dtypes import DType
from estimator.tape.tensor import Tensor, empty


class Qwen2VLTextSpec(Qwen2Spec):
    can = Abilities(gguf=True, graph="qwen-vl")
    runs = False


class Qwen3VLTextSpec(Qwen3Spec):
    can = Abilities(gguf=True, graph="qwen-3-vl")
    runs = False


class Qwen3VLMoeTextSpec(Qwen3MoeSpec):
    """Its router always normalises the weights of the chosen experts."""

    can = Abilities(gguf=True, graph="qwen-3-vl")
    runs = False

    num_experts: Size = called("num_local_experts", 60)
    num_experts_per_tok: Size = 4
    norm_topk_prob: Literal[True] = True


class Qwen3OmniTextSpec(Qwen3VLMoeTextSpec):
    can = Abilities(gguf=True, graph="qwen-3-vl")

    num_experts: Size = 128
    num_experts_per_tok: Size = 8


SPECS = {
    "qwen2_vl_text": Qwen2VLTextSpec,
    "qwen2_5_vl_text": Qwen2VLTextSpec,
    "qwen2_5_omni_text": Qwen2VLTextSpec,
    "qwen3_vl_text": Qwen3VLTextSpec,
    "qwen3_vl_moe_text": Qwen3VLMoeTextSpec,
    "qwen3_omni_moe_text": Qwen3OmniTextSpec,
}
HEADS = {"causal-lm": counted(lambda spec, build: CausalLM(decoder(spec, build), spec, build))}


class Kind(NamedTuple):
    """What a layer is. `place`: its number, if one of the tower's outputs is added after it, or was added before it, whose sum
    it gets beside the output of the layer before; `sparse`: whether it has experts."""

    place: int | None
    sparse: bool


class InThree(Rotary):
    """Rotary positions in time, height and width, of each sequence its own: a table for every one, of texts alone, too."""

    def tables(self, ids: Tensor, dtype: DType) -> dict[LayerType, Table]:
        shape = (*ids.shape, self.size)
        return dict.fromkeys((FULL, SLIDING), (empty(ids.tape, shape, dtype, "cos"), empty(ids.tape, shape, dtype, "sin")))


def decoder(spec: LlamaSpec | Qwen2Spec | Qwen3Spec, build: Builder, deep: int = 0, counts: bool = False) -> Decoder:
    """The body of the language model. Qwen2-VL and Qwen2.5-VL hand their layers positions of packed documents only, and Qwen3-VL
    those of texts without images, too.

    `deep`: first layers after each of which something is added; `counts`: whether it counts positions itself whatever it sees.
    """
    rotary, handed = InThree(spec.head_dim), isinstance(spec, Qwen3Spec) and (counts or build.images is None)
    sparse = spec.sparse() if isinstance(spec, MoeSpec) else [False] * spec.num_hidden_layers
    kinds = [Kind(i if deep and i <= deep else None, has_experts) for i, has_experts in enumerate(sparse)]

    def layer(kind: Kind) -> PreNorm:
        return decoder_layer(spec, build, Qwen3Moe if kind.sparse else None)

    return Decoder(spec, build, layer, kinds, rotary=rotary, positioned=handed)
