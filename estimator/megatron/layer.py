"""A transformer layer as Megatron-Core runs it, and its feed-forward part.

After core/transformer/transformer_layer.py, mlp.py and core/fusions/fused_bias_swiglu.py. Without biases and dropout the sum with
the residual is one addition, fused or not.
"""

from __future__ import annotations

from collections.abc import Callable

from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.megatron.config import Config
from estimator.megatron.execution import SHARED_EXPERTS, Execution
from estimator.megatron.linear import Norm, Split
from estimator.tape.autograd import attach, record
from estimator.tape.pointwise import add
from estimator.tape.tensor import Tensor, output


class Mlp:
    """Gate and value are one product. With `norm` the layer's norm is part of it."""

    def __init__(
        self, config: Config, build: Builder, ranks: Split, how: Execution, name: str = "mlp", width: int = 0, norm: bool = True
    ):
        width = (width or config.width) // ranks.group.size
        fc1 = (2 * width, config.hidden)
        self.linear_fc1: Module
        if norm:
            gain = Norm(build.parameter("pre_mlp_layernorm.weight", (config.hidden,)), None)
            self.linear_fc1 = how.norm_linear(build, gain, how.weight(build, f"{name}.linear_fc1.weight", fc1), None, ranks)
        else:
            alone = SHARED_EXPERTS not in how.recomputed
            self.linear_fc1 = how.column(build, how.weight(build, f"{name}.linear_fc1.weight", fc1), ranks, of_norm=alone)
        self.linear_fc2 = how.row(build, how.weight(build, f"{name}.linear_fc2.weight", (config.hidden, width)), ranks)

    def __call__(self, hidden: Tensor) -> Tensor:
        inner = self.linear_fc1(hidden)
        inner = swiglu(inner)
        return self.linear_fc2(inner)


def swiglu(x: Tensor) -> Tensor:
    """silu(first half) times the second half of the last dimension, in one kernel each way. Saves its input."""
    node = record("SwiGLU", (x,), (x,), _swiglu_back)
    return attach(node, output("swiglu", (x,), (*x.shape[:-1], x.shape[-1] // 2), x.dtype))


def _swiglu_back(g: Tensor, x: Tensor) -> Tensor:
    return output("swiglu_back", (g, x), x.shape, x.dtype)


class TransformerLayer:
    """Attention and a feed-forward part, each on a residual."""

    def __init__(self, attention: Callable[[Tensor, Tensor], Tensor], mlp: Module):
        self.self_attention, self.mlp = attention, mlp

    def __call__(self, hidden: Tensor, frequencies: Tensor) -> Tensor:
        after = self.attended(hidden, frequencies)
        out = self.mlp(after)
        return add(after, out)

    def attended(self, hidden: Tensor, frequencies: Tensor) -> Tensor:
        """Hidden states between the two parts."""
        out = self.self_attention(hidden, frequencies)
        return add(hidden, out)
