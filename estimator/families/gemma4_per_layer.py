"""What layers of Gemma 3n's and Gemma 4's small models get of each token beside hidden states, and the norm of both.

After transformers' modeling_gemma4.py (5.23).
"""

from __future__ import annotations

from typing import Protocol

from estimator.families.build import Builder
from estimator.families.modules import ACTIVATIONS
from estimator.families.spec import Activation
from estimator.tape import dtypes
from estimator.tape.pointwise import add, add_scalar, mean_last, mul, mul_scalar, pow_scalar, to
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape


class RMSNorm:
    """Root-mean-square normalisation in float32 by a power of -1/2; its weight, where it has one, is in float32 too."""

    def __init__(self, build: Builder, name: str, size: int, weighted: bool = True):
        self.weight = build.parameter(name + ".weight", (size,)) if weighted else None

    def _norm(self, x: Tensor) -> Tensor:
        mean = add_scalar(mean_last(pow_scalar(x)))
        return mul(x, pow_scalar(mean))

    def __call__(self, x: Tensor) -> Tensor:
        out = self._norm(to(x, dtypes.float32))
        if self.weight is not None:
            out = mul(out, to(self.weight, dtypes.float32))
        return to(out, x.dtype)


class PerLayerSizes(Protocol):
    """What a spec says of what layers get beside hidden states."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def hidden_act(self) -> Activation: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def hidden_size_per_layer_input(self) -> int: ...
    @property
    def vocab_size_per_layer_input(self) -> int: ...


class Beside:
    """What a layer makes of what it gets of each token beside hidden states."""

    def __init__(self, spec: PerLayerSizes, build: Builder):
        size, given = spec.hidden_size, spec.hidden_size_per_layer_input
        self.gate = build.linear("per_layer_input_gate", size, given)
        self.projection = build.linear("per_layer_projection", given, size)
        self.norm = RMSNorm(build, "post_per_layer_input_norm", size)
        self.activation = ACTIVATIONS[spec.hidden_act]

    def __call__(self, hidden: Tensor, own: Tensor) -> Tensor:
        out = self.gate(hidden)
        out = self.activation(out)
        out = mul(out, own)
        out = self.projection(out)
        return self.norm(out)


class PerLayer:
    """What each layer gets of each token beside hidden states: by its id from a table, and of its embedding."""

    def __init__(self, spec: PerLayerSizes, build: Builder):
        self.shape = spec.num_hidden_layers, spec.hidden_size_per_layer_input
        width = self.shape[0] * self.shape[1]
        rows, scale = spec.vocab_size_per_layer_input, build.buffer("embed_tokens_per_layer.embed_scale", (), build.dtype)
        self.table = build.embedding("embed_tokens_per_layer", rows, width, scale)
        self.projection = build.linear("per_layer_model_projection", spec.hidden_size, width)
        self.norm = RMSNorm(build, "per_layer_projection_norm", self.shape[1])

    def by_id(self, ids: Tensor) -> Tensor:
        """[batch, tokens, layers, size] of token ids (`get_per_layer_inputs`)."""
        return reshape(self.table(ids), (*ids.shape, *self.shape))

    def joined(self, embeds: Tensor, by_id: Tensor) -> Tensor:
        """The same, with what embeddings say (`project_per_layer_inputs`)."""
        projected = mul_scalar(self.projection(embeds))
        projected = reshape(projected, (*embeds.shape[:-1], *self.shape))
        projected = self.norm(projected)
        return mul_scalar(add(projected, by_id))
