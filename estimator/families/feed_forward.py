"""Feed-forward layers as most decoders have them.

After the `...MLP` classes of transformers' modeling files (5.23).
"""

from __future__ import annotations

from typing import Protocol

from estimator.families.build import Builder
from estimator.families.modules import ACTIVATIONS
from estimator.families.spec import Activation, DecoderSpec
from estimator.tape.pointwise import dropout, mul
from estimator.tape.tensor import Tensor
from estimator.tape.views import split


class GatedMLP:
    """down(activation(gate(x)) * up(x)) (`LlamaMLP`), and then dropout (`SeedOssMLP`).

    `width`: of its middle, where it is another than the model's. `parts`: what its layers are called.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        build: Builder,
        name: str = "mlp",
        width: int | None = None,
        bias: bool = False,
        drops: float = 0.0,
        parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ):
        width = width or spec.intermediate_size
        gate, up, down = [f"{name}.{part}" for part in parts]
        self.gate_proj = build.linear(gate, spec.hidden_size, width, bias)
        self.up_proj = build.linear(up, spec.hidden_size, width, bias)
        self.down_proj = build.linear(down, width, spec.hidden_size, bias)
        self.gated = build.gated(spec.hidden_act)
        self.drops = drops if build.training else 0.0

    def __call__(self, x: Tensor) -> Tensor:
        return dropout(self.down_proj(self.gated(x, self.gate_proj, self.up_proj)), self.drops)


class FusedGatedMLP:
    """down(activation(gate(x)) * up(x)), with gate and up in one linear layer (`Phi3MLP`, `Glm4MLP`)."""

    def __init__(self, spec: DecoderSpec, build: Builder):
        self.gate_up_proj = build.linear("mlp.gate_up_proj", spec.hidden_size, 2 * spec.intermediate_size)
        self.down_proj = build.linear("mlp.down_proj", spec.intermediate_size, spec.hidden_size)
        self.act = ACTIVATIONS[spec.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        up = self.gate_up_proj(x)
        half = up.shape[-1] // 2
        gate, up = split(up, (half, half), 2)
        up = mul(up, self.act(gate))
        return self.down_proj(up)


class Sizes(Protocol):
    """What a spec says of a feed-forward layer."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def hidden_act(self) -> Activation: ...


class TwoLayerMLP:
    """last(activation(first(x))), and then dropout (`PhiMLP`, `NemotronMLP`, `CLIPMLP`).

    `names`: of the two layers, in what is called `name`. `width`: of its middle, where it is another than the model's.
    """

    def __init__(
        self,
        spec: Sizes,
        build: Builder,
        names: tuple[str, str],
        bias: bool,
        drops: float = 0.0,
        name: str = "mlp",
        width: int | None = None,
    ):
        first, last = names
        width = width or spec.intermediate_size
        self.first = build.linear(f"{name}.{first}", spec.hidden_size, width, bias)
        self.last = build.linear(f"{name}.{last}", width, spec.hidden_size, bias)
        self.act = ACTIVATIONS[spec.hidden_act]
        self.drops = drops if build.training else 0.0

    def __call__(self, x: Tensor) -> Tensor:
        out = self.first(x)
        out = self.act(out)
        out = self.last(out)
        return dropout(out, self.drops)
