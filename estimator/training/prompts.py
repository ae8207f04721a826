"""Prompt tuning and p-tuning as PEFT does them: trained vectors before the sequence's own embeddings, all else frozen.

peft 0.21, peft_model.py (`PeftModelForCausalLM.forward`, `get_prompt`), tuners/prompt_tuning and tuners/p_tuning. The sequence
becomes as many tokens longer, for attention and for the loss.
"""

from __future__ import annotations

from collections.abc import Callable

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job.adapter import PrefixTuning, PromptLearning, PTuning
from estimator.contract.job.training import Training
from estimator.families import having
from estimator.families.build import Builder
from estimator.families.heads import Batch, Model
from estimator.families.model_output import Held
from estimator.families.modules import Embedding, Linear, Module
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.parallel.strategies import Strategy
from estimator.tape import dtypes
from estimator.tape.dtypes import BY_NAME, DType
from estimator.tape.loss import embedding
from estimator.tape.pointwise import relu, to
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, narrow, repeat
from estimator.training import prefix
from estimator.training.methods import Method
from estimator.training.targets import Targets

WHERE = "training.adapter"


class Frozen(Method):
    """The method that leaves every layer as it is: what is trained lies outside of the model."""

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        return module


def frozen(asked: PromptLearning) -> Frozen:
    """No layer adapted, nor copied, nor trained."""
    return Frozen(Targets(names=()), BY_NAME[asked.dtype], None, "none")


def refuse(asked: PromptLearning, training: Training, spec: ModelSpec, strategy: Strategy) -> None:
    """Raise for what goes not together with trained prompts, or is not modelled."""
    if "prompts" not in strategy.models:
        raise NotModelled(f"{asked.type} is not modelled under {strategy} yet; fsdp2 and ddp are", WHERE)
    if training.head != "causal-lm":
        raise NotModelled(f"{asked.type} is modelled for the head causal-lm only yet", WHERE)
    if not spec.can.prompts:
        known = ", ".join(having(lambda kind: kind.can.prompts))
        raise NotModelled(f"{asked.type} of {spec.model_type} is not modelled yet; of {known} it is", WHERE)
    if training.implementation != "transformers" or training.transformers_release != "5":
        raise NotModelled(f"{asked.type} is modelled with transformers 5 and its own modules only yet", WHERE)
    if training.loss == "chunked":
        raise Contradiction(
            f"torchtune, whose loss in chunks it is, trains no virtual tokens, and the loss drops them: write eager, or lora "
            f"in place of {asked.type}",
            "training.loss",
        )
    if isinstance(asked, PrefixTuning):
        prefix.refuse(asked, training)
    if isinstance(asked, PTuning) and asked.encoder == "lstm":
        raise NotModelled("p-tuning through an LSTM is not modelled: cuDNN does not say what it keeps; write mlp", WHERE)
    if training.quantization:
        raise NotModelled(f"{asked.type} of quantized models is not modelled yet", "training.quantization")
    longest, tokens = spec.longest_sequence, training.sequence_length + asked.virtual_tokens
    if spec.learned_positions and longest and tokens > longest:
        raise Contradiction(
            f"{training.sequence_length} tokens and {asked.virtual_tokens} virtual ones are more than the model's {longest} "
            "learned positions",
            "training.sequence_length",
        )


class Prompted:
    """A model behind trained vectors."""

    def __init__(self, model: Model, words: Embedding, encoder: Callable[[Tensor], Tensor], tokens: int):
        self.model, self.words, self.encoder, self.tokens = model, words, encoder, tokens

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        return self.model.inputs(tape, batch, dtype)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        """Labels of the virtual tokens are -100; the model gets embeddings, and what is joined here lives until it is done."""
        (ids,) = inputs
        mask = prefix.lengthened_mask(ids, self.tokens)
        embeds = self.words(ids)
        prefix_labels = empty(ids.tape, (ids.shape[0], self.tokens), dtypes.int64, "full")
        labels = cat((prefix_labels, ids), 1)
        prompts = self._prompts(ids.tape, ids.shape[0])
        prompts = to(prompts, embeds.dtype)
        embeds = cat((prompts, embeds), 1)
        self.words.given = embeds
        out = self.model.forward(labels)
        self.words.given = None
        del mask
        return out

    def _prompts(self, tape: Tape, batch: int) -> Tensor:
        """The trained vectors [batch, tokens, width], the same for every sequence. Their indices lie in the host's memory, and
        are copied for all sequences."""
        numbers = empty(tape, (batch, self.tokens), dtypes.int64, "_to_copy")
        prompts = self.encoder(narrow(numbers, 0, 1))
        return repeat(prompts, batch)


class _Encoder:
    """`PromptEncoder`: an embedding, and a network of three layers above it."""

    def __init__(self, weight: Tensor, layers: list[Linear]):
        self.weight, self.layers = weight, layers

    def __call__(self, numbers: Tensor) -> Tensor:
        embeds = embedding(self.weight, numbers)
        out = embeds
        for layer in self.layers[:-1]:
            out = relu(layer(out))
        return self.layers[-1](out)


def prompted(asked: PromptLearning, model: Model, build: Builder, spec: ModelSpec) -> Prompted:
    """`model` as the adapter has it run."""
    assert build.words is not None
    assert isinstance(spec, DecoderSpec)
    hidden = spec.hidden_size
    dtype, tokens, name = BY_NAME[asked.dtype], asked.virtual_tokens, "prompt_encoder.default."
    weight = build.parameter(name + "embedding.weight", (tokens, hidden), dtype, trainable=True)
    if not isinstance(asked, PTuning):
        return Prompted(model, build.words, lambda numbers: embedding(weight, numbers), tokens)
    width, layers = asked.hidden or hidden, []
    for number, (inputs, outputs) in enumerate(((hidden, width), (width, width), (width, hidden))):
        path = f"{name}mlp_head.{2 * number}."
        matrix = build.parameter(path + "weight", (outputs, inputs), dtype, trainable=True)
        layers.append(Linear(matrix, build.parameter(path + "bias", (outputs,), dtype, trainable=True)))
    return Prompted(model, build.words, _Encoder(weight, layers), tokens)
