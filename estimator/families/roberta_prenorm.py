"""RoBERTa with norms before its blocks: RoBERTa-PreLayerNorm, and XLM-RoBERTa XL, which has none behind its embeddings.

After transformers' modeling_roberta_prelayernorm.py and modeling_xlm_roberta_xl.py (5.23).
"""

from __future__ import annotations

from typing import ClassVar

from estimator.families.bert import Embeddings, RobertaClassifier, RobertaSpec, SelfAttention
from estimator.families.build import Builder
from estimator.families.encoders import Classification, Intermediate, MaskedLM, Predictions, refuse_quantization
from estimator.families.heads import Head
from estimator.families.modules import ACTIVATIONS
from estimator.families.spec import Size
from estimator.tape.pointwise import add, dropout
from estimator.tape.tensor import Tensor


class PreNormSpec(RobertaSpec):
    embeds = False
    last_vllm = "none"
    in_sglang = "none"
    norms: ClassVar[tuple[str, str]] = "attention.LayerNorm", "LayerNorm"
    """What the norm before attention and the last one are called."""
    within: ClassVar[bool] = True
    """Whether the norm before the feed-forward block is in its first half; dropout follows its second half then."""
    normed: ClassVar[bool] = True
    """Whether embeddings are."""


class XLSpec(PreNormSpec):
    norms = "attention.self_attn_layer_norm", "encoder.LayerNorm"
    within = normed = False

    max_position_embeddings: Size = 514
    type_vocab_size: Size = 1


SPECS = {"roberta-prelayernorm": PreNormSpec, "xlm-roberta-xl": XLSpec}


class Output:
    """A linear layer, dropout, and its sum with the block's input."""

    def __init__(self, name: str, inputs: int, p: float, spec: PreNormSpec, build: Builder):
        self.dense = build.linear(name + ".dense", inputs, spec.hidden_size, bias=True)
        self.dropout = p

    def __call__(self, hidden: Tensor, residual: Tensor) -> Tensor:
        out = self.dense(hidden)
        out = dropout(out, self.dropout)
        return add(out, residual)


class NormedIntermediate:
    """A norm and the first half of the feed-forward block (`RobertaPreLayerNormIntermediate`)."""

    def __init__(self, spec: PreNormSpec, build: Builder):
        self.norm = build.layer_norm("intermediate.LayerNorm", spec.hidden_size)
        self.dense = build.linear("intermediate.dense", spec.hidden_size, spec.intermediate_size, bias=True)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self.norm(hidden)
        out = self.dense(out)
        return self.act(out)


class Layer:
    def __init__(self, spec: PreNormSpec, build: Builder):
        size, p = spec.hidden_size, spec.hidden_dropout_prob
        self.attention = SelfAttention(spec, build)
        self.attention_output = Output("attention.output", size, p, spec, build)
        self.attention_norm = build.layer_norm(spec.norms[0], size)
        self.intermediate = (NormedIntermediate if spec.within else Intermediate)(spec, build)
        self.output = Output("output", spec.intermediate_size, p if spec.within else 0.0, spec, build)
        self.norm = None if spec.within else build.layer_norm("LayerNorm", size)

    def __call__(self, hidden: Tensor) -> Tensor:
        attended, _ = self._attend(hidden)
        return self._feed(attended)

    def _attend(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        normed = self.attention_norm(hidden)
        out, weights = self.attention(normed)
        out = self.attention_output(out, hidden)
        return out, weights

    def _feed(self, attended: Tensor) -> Tensor:
        between = attended if self.norm is None else self.norm(attended)
        between = self.intermediate(between)
        return self.output(between, attended)


class PreNormRoberta:
    """The body of the model."""

    def __init__(self, spec: PreNormSpec, build: Builder):
        refuse_quantization(build, spec.model_type)
        self.embeddings = Embeddings(spec, build, spec.hidden_size, normed=spec.normed)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build), "layer", last=1)
        self.norm = build.layer_norm(spec.norms[1], spec.hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embeddings(ids)
        hidden = embedded
        for layer in self.layers:
            hidden = layer(hidden)
        return self.norm(hidden)


HEADS: dict[str, Head] = {
    "masked-lm": lambda spec, build: MaskedLM(
        PreNormRoberta(spec, build), Predictions(("lm_head.dense", "lm_head.layer_norm"), "gelu", spec, build)
    ),
    "sequence-classification": lambda spec, build: Classification(PreNormRoberta(spec, build), RobertaClassifier(spec, build)),
}
