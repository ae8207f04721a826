"""The language models of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: Qwen2 and Qwen3 with rotary positions in three dimensions.

After transformers' modeling_qwen2_vl.py, modeling_qwen2_5_vl.py and modeling_qwen3_vl.py (5.23).
"""

from __future__ import annotations

from estimator.families.abilities import Abilities
from estimator.families.build import Builder
from estimator.families.counted import counted
from estimator.families.decoder import Decoder, Rotary, Table
from estimator.families.heads import CausalLM
from estimator.families.llama import Qwen2Spec, Qwen3Spec, decoder_layer, llama
from estimator.families.windows import FULL, SLIDING, LayerType
from estimator.tape.dtypes import DType
from estimator.tape.tensor import Tensor, empty


class Qwen2VLTextSpec(Qwen2Spec):
    can = Abilities(gguf=True, graph="qwen-vl")
    runs = False


class Qwen3VLTextSpec(Qwen3Spec):
    can = Abilities(gguf=True, graph="qwen-3-vl")
    runs = False


SPECS = {"qwen2_vl_text": Qwen2VLTextSpec, "qwen2_5_vl_text": Qwen2VLTextSpec, "qwen3_vl_text": Qwen3VLTextSpec}
HEADS = {"causal-lm": counted(lambda spec, build: CausalLM(llama(spec, build), spec, build))}


class InThree(Rotary):
    """Rotary positions in time, height and width, of each sequence its own: a table for every one, of texts alone, too."""

    def tables(self, ids: Tensor, dtype: DType) -> dict[LayerType, Table]:
        shape = (*ids.shape, self.size)
        return dict.fromkeys((FULL, SLIDING), (empty(ids.tape, shape, dtype, "cos"), empty(ids.tape, shape, dtype, "sin")))


def decoder(spec: Qwen2Spec | Qwen3Spec, build: Builder, deep: int = 0) -> Decoder:
    """The body of the language model. Qwen2-VL and Qwen2.5-VL hand their layers positions of packed documents only, and Qwen3-VL
    those of texts without images, too.

    `deep`: first layers after each of which something is added.
    """
    rotary, handed = InThree(spec.head_dim), isinstance(spec, Qwen3Spec) and build.images is None
    kinds = [i if i < deep else FULL for i in range(spec.num_hidden_layers)] if deep else None
    return Decoder(spec, build, lambda _: decoder_layer(spec, build), kinds, rotary=rotary, positioned=handed)
