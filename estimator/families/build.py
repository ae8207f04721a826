"""Building a model on a tape: its parameters, and what the job makes of its layers.

A family asks for modules by name and size; the builder gives what the job calls for: a plain linear layer, one with
quantized weights, one with an adapter, parameters that are sharded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeVar

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job.audio import Audio
from estimator.contract.job.images import Images
from estimator.families.kernels import EAGER, Gated, Kernels, LinearKind
from estimator.families.layers import Checkpointing, Edges, Layer, Layers, Part
from estimator.families.modules import (
    AdaptedEmbedding,
    AdaptedLinear,
    Conv1D,
    Convolution,
    Embedding,
    Join,
    LayerNorm,
    Linear,
    Module,
    Residual,
    SavedEmbedding,
)
from estimator.families.parameter import Parameter, Weight
from estimator.families.parameter_store import ParameterStore
from estimator.families.protocols import Cache, QuantizesExperts
from estimator.families.recomputed import recomputing
from estimator.families.sharding import Forward, Sharding
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.tensor import Tensor

Kind = TypeVar("Kind")

WHOLE = (
    "experts stay as they are: what is stored in few bits are linear layers, and transformers 5 holds a layer's experts as one "
    "tensor, which is none"
)

PEFT_HEADS = ("classifier", "score")
"""What PEFT never adapts of a classification; it trains a copy of all whose name ends so (utils/other.py, `_set_trainable`)."""


def within(name: str, paths: tuple[str, ...]) -> bool:
    """Whether one of the paths is a part of a layer's own: q_proj and self_attn are of self_attn.q_proj."""
    return any(f".{path}." in f".{name}." for path in paths)


@dataclass
class Builder(ParameterStore):
    """Makes a model's modules on `tape`, with weights of type `dtype`. `labels`: classes of a classification."""

    compute: DType | None = None
    """What quantized layers compute in, where it is another type."""
    attention: str = "sdpa"
    kernels: Kernels = EAGER
    labels: int = 2
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    whole: tuple[str, ...] = ()
    """Parts of the names of linear layers that stay as they are beside quantized ones."""
    pruning: Callable[[Builder, str, Module], Module] = lambda build, name, module: module
    cache: Callable[[], Cache] | None = None
    shows_states: bool = False
    """Whether the model's output may hold the hidden states of its layers, of which the last are normalised."""
    images: Images | None = None
    audio: Audio | None = None
    """What each sequence has of images, or of sound, of a model that sees or hears; without them, text alone."""
    sequences: int = 1
    tokens: int | None = None
    """Tokens of a sequence that is trained on; None where that is not known. Too few leave some parameters without gradients."""
    unrolled: bool = False
    linears: list[str] = field(default_factory=list)
    """Names of the linear layers that an adapter can be put on."""
    convolutions: list[str] = field(default_factory=list)
    bypassed: list[str] = field(default_factory=list)
    """Names of the linear layers of which the model takes the weight and multiplies by it itself."""
    adapted: list[str] = field(default_factory=list)
    """Names of what an adapter was put on."""
    embeddings: list[str] = field(default_factory=list)
    """Names of the tables that are looked up."""
    stacks: list[int] = field(default_factory=list)
    """How many layers each stack has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.words: Embedding | None = None
        """The input embedding, once it is made."""
        self.alike = True
        """Whether the model's layers are one stack and all do the same."""
        self.carries = False
        """Whether a pass leaves tensors in the model that live until the next one."""

    @property
    def unit_per_module(self) -> bool:
        """Whether what is alike within a layer has slots of its own: ranks share a layer's parameters as one unit."""
        return self.unrolled or type(self.sharding) is not Sharding

    @property
    def recomputes(self) -> bool:
        """Whether some layers are recomputed in backward."""
        return self.checkpointing.recomputes

    def trained_linear(self, name: str, shape: Shape, dtype: DType) -> Linear:
        """A linear layer [out, in] without bias, trained in addition to a frozen one."""
        module = Linear(self.parameter(name + ".weight", shape, dtype, trainable=True), None)
        return self.sharding.leaf(module, self._unit, learns=self.learns)

    def weight(self, name: str, shape: Shape, used: int | None = None, dtype: DType | None = None) -> Weight:
        """A weight outside a linear layer, [out, in], or one per expert, [experts, .., ..], of which a token uses `used`.

        `dtype`: where it has a type of its own.
        """
        experts = 1 if used is None else shape[0]
        if used is not None and isinstance(self.quantization, QuantizesExperts):
            return self.quantization.experts(self, name, shape, used)
        if used is not None and self.quantization is not None:
            self.tape.remarks[WHOLE] = None
        tensor = self.parameter(name, shape, dtype, active=prod(shape) // experts * (used or 1))
        return (
            Weight(tensor) if self.adapter is None or not self._adapting else self.adapter.weight(self, name, tensor, used or 1)
        )

    def linear(
        self,
        name: str,
        inputs: int,
        outputs: int,
        bias: bool = False,
        kind: LinearKind = Linear,
        quantized: bool = True,
        dtype: DType | None = None,
    ) -> Module:
        """`torch.nn.Linear` or a subclass of it, or what the job puts in its place, in few bits if `quantized`. `dtype`: where
        its weight has a type of its own."""
        if self.quantization is not None and quantized and not within(self._whole_name(name), self.whole):
            module = self.quantization.linear(self, name, (outputs, inputs), bias)
        else:
            kind = kind if within(self._whole_name(name), self.whole) else self.kernels.linear(kind, inputs, outputs)
            module = kind(*self._weights(name, (outputs, inputs), outputs, bias, self.adapts(name), dtype))
        return self._adapted(name, module, inputs, outputs)

    def sharing(self, name: str, weight: Tensor, bias: Tensor | None = None) -> Module:
        """A linear layer with the weight [out, in] of others, of which an adapter is its own."""
        if self.saves(name):
            raise NotModelled(
                f"a trained copy of {name}, whose weight several layers share, is not modelled yet: leave it out",
                "training.adapter.modules_to_save",
            )
        outputs, inputs = weight.shape
        return self._adapted(name, self.kernels.linear(Linear, inputs, outputs)(weight, bias), inputs, outputs)

    def router(self, name: str, inputs: int, outputs: int) -> Module:
        """A mixture's router where it is a linear layer: what quantizes the experts may leave it as it is."""
        return self.linear(name, inputs, outputs, quantized=self.quantization is not None and self.quantization.routers)

    def conv1d(self, name: str, inputs: int, outputs: int) -> Module:
        """transformers' `Conv1D`, or what the job puts in its place."""
        if self.quantization is not None and not within(self._whole_name(name), self.whole):
            module = self.quantization.linear(self, name, (outputs, inputs), bias=True)
        else:
            module = Conv1D(*self._weights(name, (inputs, outputs), outputs, True, self.adapts(name)))
        return self._adapted(name, module, inputs, outputs)

    def convolution(
        self,
        name: str,
        inputs: int,
        outputs: int,
        kernel: Shape,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        first: bool = False,
    ) -> Convolution:
        """`torch.nn.Conv1d` or `Conv2d`; never quantized or adapted. `inputs`: channels of one group.

        `first`: it is the model's input embedding, of which the same holds as of `embedding`.
        """
        if self.adapter is not None and self.adapter.outside(self._whole_name(name)):
            raise NotModelled(f"adapters on the convolution {name} are not modelled yet", "training.adapter.targets")
        self.convolutions.append(self._whole_name(name))
        weights = self._weights(name, (outputs, inputs, *kernel), outputs, bias)
        return Convolution(*weights, stride, padding, first and self.recomputes)

    def head(
        self,
        inputs: int,
        outputs: int,
        tied: bool,
        bias: bool = False,
        name: str = "lm_head",
        within: str = "",
        dtype: DType | None = None,
    ) -> Linear:
        """The output layer, never quantized or adapted; its weight may be `tied` to the input embedding. It stands outside the
        language model's body that a model of several parts has, in the module `within`. `dtype`: where its weight has a type of
        its own."""
        with self.part(within):
            return self._head(inputs, outputs, tied, bias, name, dtype)

    def _head(self, inputs: int, outputs: int, tied: bool, bias: bool, name: str, dtype: DType | None) -> Linear:
        assert self.words is not None or not tied
        weight = self.words.weight if tied and self.words else self.parameter(name + ".weight", (outputs, inputs), dtype)
        adapts = self.adapter is not None and self.adapter.outside(self._whole_name(name))
        head = Linear(weight, self._bias(name, outputs, adapts) if bias else None)
        if self.saves(name):
            return Linear(*self._copied(name, (outputs, inputs), outputs, bias, dtype))
        if self.adapter is None or not adapts:
            return head
        if self.kernels.loss.fused is not None:
            raise Contradiction(f"a fused loss uses the weight of {name} without its adapter: write eager", "training.loss")
        self.adapted.append(name)
        return AdaptedLinear(head, self.adapter.adapt(self, name, head, inputs, outputs))

    def score(self, inputs: int, bias: bool = False, name: str = "score", outputs: int | None = None) -> Module:
        """A layer of a classification's head, to its labels unless `outputs` says otherwise.

        Where an adapter is trained, PEFT trains a copy of it (`modules_to_save`).
        """
        outputs = self.labels if outputs is None else outputs
        if self.adapter is not None and self.adapter.of_peft:
            self.saved.append(name)
            if name.partition(".")[0] not in PEFT_HEADS and self.adapter.layers is None and self.adapter.targets(name):
                self.adapted.append(name)  # of which the training's checks say that it cannot be both
            self.parameter(name + ".original.weight", (outputs, inputs), trainable=False)
            if bias:
                self.parameter(name + ".original.bias", (outputs,), trainable=False)
            return self.sharding.leaf(Linear(*self._copied(name, (outputs, inputs), outputs, bias)), self._unit, adapts=False)
        weight = self.parameter(name + ".weight", (outputs, inputs))
        return Linear(weight, self.parameter(name + ".bias", (outputs,)) if bias else None)

    def embedding(self, name: str, rows: int, size: int, scale: Tensor | None = None, first: bool | None = None) -> Embedding:
        """`torch.nn.Embedding`, times `scale`; the `first`, or first made, is the input embedding.

        transformers makes the input embedding's output require gradients under checkpointing.
        """
        self.embeddings.append(name)
        first = self.words is None if first is None else first
        asks = first and self.recomputes
        embedding = Embedding(self.parameter(name + ".weight", (rows, size), tokens=first), asks, scale)
        self.words = embedding if first else self.words
        if self.saves(name):
            copied = None if scale is None else self.buffer(name + ".embed_scale", scale.shape, scale.dtype)
            return SavedEmbedding(embedding, self._copied(name, (rows, size), size, False)[0], copied)
        if self.adapter is None or not self.adapter.outside(self._whole_name(name)):
            return embedding
        self.adapted.append(name)
        return AdaptedEmbedding(embedding, self.adapter.embed(self, name, Embedding(embedding.weight, False, scale), rows, size))

    def gated(self, activation: str) -> Gated:
        """The middle of a gated feed-forward layer."""
        return self.kernels.gated(activation)

    def rms_norm(self, name: str, size: int) -> Module:
        return self.kernels.rms_norm(self._weights(name, (size,), size, False)[0])

    def layer_norm(self, name: str, size: int, bias: bool = True, weight: bool = True) -> Module:
        return LayerNorm(*(self._weights(name, (size,), size, bias) if weight else (None, None)))

    def join(self, place: str, size: int, norm: Module | None = None) -> Join:
        """What adds a block's input to its output, and norms the sum where the model does so.

        `place`: what AdapterHub calls it: mh_adapter after attention, output_adapter after the feed-forward block.
        """
        return self.adapter.join(self, place, size, norm) if self.adapter and self._adapting else Residual(norm)

    def layers(
        self,
        kinds: int | Sequence[Kind],
        make: Callable[[Kind], Layer],
        label: str = "layers",
        path: str = "",
        holding: bool = False,
        first: int = 1,
        last: int = 0,
        places: str = "",
    ) -> Layers:
        """A stack of layers, each checkpointed and sharded as the job says: so many, or one per kind in the sequence.

        `path`: the module that has the stack, where names of parameters outside the layers begin with it, too: `encoder.`.
        `holding` if the model holds what a layer returns beside hidden states until the next layer is done; without, the next
        layer takes it. `first` and `last`: layers at the ends that do what the others do not. Where layers read a tensor that
        wants a gradient, the first in backward, which is the last layer, makes that, and the others add to it. `label`: the
        stack's path in the model, or in the part of it; `places`: that in a part where it is another.
        """

        inside = f"{self._part}.{places or label}.*" if self._part else ""

        def build(part: Part, way: str | None) -> Layer:
            unit: list[Parameter] = []
            outside, self._adapting = self._adapting, part.adapted
            self._unit, self._chosen, self._path = unit, part.chosen, path
            with self.part(inside) if inside else nullcontext():
                layer = self.sharding.split(make(part.kind))
            if self.checkpointing.modules:
                layer = recomputing(layer, self.checkpointing.modules, [parameter.name for parameter in unit])
            self._unit, self._chosen, self._path, self._adapting = self._outside, None, "", outside
            if self.checkpointing.inside or self.sharding.encloses:
                return self.sharding.unit(unit, self.checkpointing.apply(layer, way))
            return self.checkpointing.apply(self.sharding.unit(unit, layer), way)

        each: Sequence[Any] = [None] * kinds if isinstance(kinds, int) else kinds
        self.stacks.append(len(each))
        chosen = self.adapter.layers if self.adapter else None
        edges = Edges(len(each)) if self.unrolled else self.sharding.edges
        edges = replace(edges, first=max(edges.first, first), last=max(edges.last, last, self.shows_states))
        if (self.adapter or self.quantization) and not self.recomputes:
            frozen = 1 if chosen is None else min(chosen) + 1
            edges = replace(edges, frozen=frozen, first=max(edges.first, frozen))
        before = sum(self.stacks[:-1])
        if before and self.checkpointing.segment:
            raise NotModelled(
                "segments of layers in a model of several stacks are not modelled; use full or {every: k}",
                "training.activation_checkpointing",
            )
        if before and self.trained is not None and self.trained.layers is not None:
            raise NotModelled(
                "which layers of a model of several stacks are trained is not modelled; use all, bias or names",
                "training.trainable",
            )
        parts = self._parts(each)
        self.alike = not before and len(set(parts)) == 1
        label = f"{self.beside} {label}" if self.beside else label
        return Layers(self.tape, parts, self.checkpointing, edges, build, label, self.sharding.input_dtype, holding, before)

    def _parts(self, kinds: Sequence[Any]) -> list[Part]:
        """The layers of a stack, and what of each is trained."""
        adapted = self.adapter.layers if self.adapter else None
        chosen = [self.trained is None or self.trained.chosen(i) for i in range(len(kinds))]
        segments = bool(self.checkpointing.segment)
        return [
            Part(kind, adapted is None or i in adapted, chosen[i], self.trained is None or segments or any(chosen[:i]))
            for i, kind in enumerate(kinds)
        ]

    @property
    def layers_matrices(self) -> frozenset[str]:
        """Names of the weights of linear layers in the stack of layers: not those of an output layer, a pooler or a head."""
        inside = {p.name for p in self.parameters if p.slot is not None}
        return frozenset(f"{name}.weight" for name in self.linears + self.bypassed) & inside

    def root(self, model: Forward) -> Forward:
        """The finished model's forward pass as the job runs it."""
        return self.sharding.root(self._outside, model if self.adapter is None else self.adapter.root(self, model))

    def adapts(self, name: str) -> bool:
        """Whether an adapter is put on the module of that name."""
        return self.adapter is not None and self._adapting and self.adapter.targets(self._whole_name(name))

    def _adapted(self, name: str, module: Module, inputs: int, outputs: int) -> Module:
        self.linears.append(name)
        if self.adapter is None or not self.adapts(name):
            return module if name in self.bypassed else self.pruning(self, name, module)
        self.adapted.append(name)
        return self.adapter.adapt(self, name, module, inputs, outputs)
