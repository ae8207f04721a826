"""ELECTRA: BERT whose embeddings may be narrower than its layers, and which has heads of its own.

After transformers' modeling_electra.py (5.23).
"""

from __future__ import annotations

from estimator.families.bert import BertSpec, Embeddings, Layer, RobertaClassifier
from estimator.families.build import Builder
from estimator.families.encoders import Classification, MaskedLM, refuse_quantization
from estimator.families.heads import Head
from estimator.families.modules import Linear
from estimator.families.spec import Size
from estimator.tape.pointwise import gelu
from estimator.tape.tensor import Tensor


class ElectraSpec(BertSpec):
    pooled_in_sglang = False

    embedding_size: Size = 128


SPECS = {"electra": ElectraSpec}


class Electra:
    """The body of the model."""

    def __init__(self, spec: ElectraSpec, build: Builder):
        refuse_quantization(build, spec.model_type)
        self.embeddings = Embeddings(spec, build, spec.embedding_size)
        wider = spec.embedding_size != spec.hidden_size
        self.project = build.linear("embeddings_project", spec.embedding_size, spec.hidden_size, bias=True) if wider else None
        self.layers = build.layers(spec.num_hidden_layers, lambda _: Layer(spec, build), "layer", last=1)

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embeddings(ids)
        if self.project is not None:
            embedded = self.project(embedded)
        hidden = embedded
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Predictions:
    """The generator's head: a layer back to the embeddings' width, and an output layer tied to them but for its bias."""

    def __init__(self, spec: ElectraSpec, build: Builder):
        words = build.parameters[0].tensor
        self.norm = build.layer_norm("generator_predictions.LayerNorm", spec.embedding_size)
        self.dense = build.linear("generator_predictions.dense", spec.hidden_size, spec.embedding_size, bias=True)
        self.lm_head = Linear(words, build.parameter("generator_lm_head.bias", (spec.vocab_size,)))

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self._transformed(hidden)
        return self.lm_head(out)

    def _transformed(self, hidden: Tensor) -> Tensor:
        out = self.dense(hidden)
        out = gelu(out)
        return self.norm(out)


HEADS: dict[str, Head] = {
    "masked-lm": lambda spec, build: MaskedLM(Electra(spec, build), Predictions(spec, build)),
    "sequence-classification": lambda spec, build: Classification(Electra(spec, build), RobertaClassifier(spec, build, gelu)),
}
