"""Prefix tuning as PEFT does it: every attention layer looks back on trained keys and values, all else being frozen.

peft 0.21, peft_model.py (`get_prompt`) and tuners/prefix_tuning/model.py; transformers' cache_utils.py (`DynamicCache`,
`DynamicLayer`). The prefix is made for all layers at once, before the first. That is why its gradients come last: each layer's
gradients of keys and values, as long as the whole sequence, wait for that.
"""

from __future__ import annotations

from collections.abc import Callable

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job.adapter import PrefixTuning
from estimator.contract.job.training import Training
from estimator.families.build import Builder
from estimator.families.heads import Batch, Model
from estimator.families.model_output import Held, PerLayer
from estimator.families.modules import Embedding, Linear
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.dtypes import BY_NAME, DType
from estimator.tape.layout import Shape, normalized
from estimator.tape.loss import embedding
from estimator.tape.pointwise import tanh, to
from estimator.tape.slots import Slot
from estimator.tape.tape import Storage, Tape
from estimator.tape.tensor import Tensor, alias, empty
from estimator.tape.views import cat, permute, reshape

WHERE = "training.adapter"


def refuse(asked: PrefixTuning, training: Training) -> None:
    """Raise for what PEFT refuses, or what is not modelled."""
    if training.activation_checkpointing != "none":
        raise Contradiction(
            f"PEFT refuses {asked.type} with checkpointing, which drops the cache: write none",
            "training.activation_checkpointing",
        )
    if training.attention.startswith("flash"):
        raise NotModelled(
            f"{asked.type} with {training.attention} is not modelled yet; write sdpa or eager", "training.attention"
        )


class LayerPrefix:
    """One layer's trained keys and values, and from its attention on those of all tokens (`DynamicLayer`)."""

    def __init__(self, slot: Slot | None):
        self.slot = slot
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        self.keys = cat((self.keys, k), 2)
        self.values = cat((self.values, v), 2)
        return self.keys, self.values


def layer_prefixes(tape: Tape, made: list[LayerPrefix]) -> Callable[[], LayerPrefix]:
    """What makes each attention layer its cache, which is added to `made`."""

    def make() -> LayerPrefix:
        made.append(LayerPrefix(tape.slot))
        return made[-1]

    return make


class Prefixed:
    """A model behind a prefix. `shape`: tokens, layers, heads of keys, and their size. `returned`: the output has the cache."""

    def __init__(
        self,
        model: Model,
        words: Embedding,
        encoder: Callable[[Tensor], Tensor],
        layers: list[LayerPrefix],
        shape: Shape,
        returned: bool,
    ):
        self.model, self.words, self.encoder, self.layers = model, words, encoder, layers
        self.shape, self.returned = shape, returned

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        return self.model.inputs(tape, batch, dtype)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        (ids,) = inputs
        tape = ids.tape
        mask = lengthened_mask(ids, self.shape[0])
        self._fill(tape, ids.shape[0])
        loss, held = self.model.forward(ids)
        del mask
        keys, values = PerLayer(tape), PerLayer(tape)
        for layer in self.layers:
            assert layer.keys is not None
            assert layer.values is not None
            tape.enter(layer.slot)
            keys.append(layer.keys)
            values.append(layer.values)
            layer.keys = layer.values = None
        tape.enter(None)
        if not self.returned:
            return loss, held
        return loss, (held, keys, values) if isinstance(held, Tensor) else (*held, keys, values)

    def _fill(self, tape: Tape, batch: int) -> None:
        """Give each layer its part, copied (`get_prompt`, then `DynamicCache` of what it made)."""
        tokens, layers, heads, size = self.shape
        numbers = empty(tape, (batch, tokens), dtypes.int64, "_to_copy")
        prefix = self.encoder(numbers)
        del numbers
        prefix = to(prefix, self.words.weight.dtype)
        prefix = permute(reshape(prefix, (batch, tokens, 2 * layers, heads, size)), (2, 0, 3, 1, 4))
        waiting = _Waiting(tape)
        parts = _split(prefix, len(self.layers), waiting)
        for layer, part in zip(self.layers, parts, strict=True):
            tape.enter(layer.slot)
            key, value = _unbind(part, waiting)
            layer.keys = cat((key,), 2)
            layer.values = cat((value,), 2)
        tape.enter(None)


class _Waiting:
    """Gradients of the layers' parts, which wait for each other."""

    def __init__(self, tape: Tape):
        self.gradients = PerLayer(tape)


def _split(x: Tensor, slots: int, waiting: _Waiting) -> list[Tensor]:
    """`x.split(2)`, a view for each layer; but one for each of the `slots`, which stand for all layers."""
    tape, before, dtype = x.tape, x.shape, x.dtype

    def backward(*_: Gradient) -> Tensor:
        joined = empty(tape, before, dtype, "cat")
        waiting.gradients = PerLayer(tape)
        return joined

    node = record("SplitBackward", (x,), (), backward, outputs=slots)
    outs = [attach(node, alias(x, (2, *before[1:]), x.strides)) for _ in range(slots)]
    for i, out in enumerate(outs):
        out.output_nr = i
    return outs


def _unbind(x: Tensor, waiting: _Waiting) -> list[Tensor]:
    """`key, value = x`. The gradient waits in its layer's slot; an empty one is passed on in its place."""
    tape, before, dtype = x.tape, x.shape, x.dtype
    part = before[1:]

    def backward(*gradients: Gradient) -> Tensor:
        waiting.gradients.append(empty(tape, before, dtype, "stack"))
        return Tensor(Storage(tape, 0, "stack", filled=False), before, dtype)

    node = record("UnbindBackward", (x,), (), backward, outputs=2)
    outs = [attach(node, alias(x, part, normalized(part, x.element_strides()[1:]))) for _ in range(2)]
    outs[1].output_nr = 1
    return outs


def prefixed(asked: PrefixTuning, model: Model, build: Builder, layers: list[LayerPrefix], spec: ModelSpec) -> Prefixed:
    """`model` as the adapter has it run; `layers`: the caches that its attention layers were built with."""
    assert isinstance(spec, DecoderSpec)
    assert build.words is not None
    dtype, tokens, name = BY_NAME[asked.dtype], asked.virtual_tokens, "prompt_encoder.default."
    width = spec.num_key_value_heads * spec.head_dim
    whole = 2 * spec.num_hidden_layers * width

    def parameter(end: str, shape: Shape) -> Tensor:
        return build.parameter(name + end, shape, dtype, trainable=True)

    shape = tokens, spec.num_hidden_layers, spec.num_key_value_heads, spec.head_dim
    returned = spec.can.returns_cache
    if not asked.projection:
        weight = parameter("embedding.weight", (tokens, whole))
        return Prefixed(model, build.words, lambda numbers: embedding(weight, numbers), layers, shape, returned)
    weight, hidden = parameter("embedding.weight", (tokens, width)), asked.hidden or width
    first = Linear(parameter("transform.0.weight", (hidden, width)), parameter("transform.0.bias", (hidden,)))
    last = Linear(parameter("transform.2.weight", (whole, hidden)), parameter("transform.2.bias", (whole,)))

    def encode(numbers: Tensor) -> Tensor:
        embeds = embedding(weight, numbers)
        return last(tanh(first(embeds)))

    return Prefixed(model, build.words, encode, layers, shape, returned)


def lengthened_mask(ids: Tensor, virtual: int) -> list[Tensor]:
    """For a padded batch of `ids` [sequences, tokens]: ones for the virtual tokens, and the mask with these before it; else
    nothing.

    Both are in float32, torch's usual type, and there until the model is done (`PeftModelForCausalLM.forward`).
    """
    tape, (batch, tokens) = ids.tape, ids.shape
    if tape.batch_mask != "padding":
        return []
    ones = empty(tape, (batch, virtual), dtypes.float32, "ones")
    return [ones, empty(tape, (batch, virtual + tokens), dtypes.float32, "cat")]
