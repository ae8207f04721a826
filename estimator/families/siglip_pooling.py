"""SigLIP's pooling head: attention of a learned query to an image's patches, as torch's own module computes it.

After transformers' modeling_siglip.py (5.23), and torch's multi_head_attention_forward.
"""

from __future__ import annotations

from typing import Protocol

from estimator.contract.errors import NotModelled
from estimator.families.build import Builder
from estimator.families.feed_forward import Sizes, TwoLayerMLP
from estimator.families.modules import Linear, Module
from estimator.tape.matmul import bmm, linear
from estimator.tape.pointwise import add, mul_scalar, softmax
from estimator.tape.reduction import mean
from estimator.tape.tensor import Tensor
from estimator.tape.views import contiguous, permute, repeat, reshape, select, split, transpose


class Pooled(Sizes, Protocol):
    """A tower's sizes."""

    @property
    def num_attention_heads(self) -> int: ...


class PoolingHead:
    """A learned query that attends to all patches (`SiglipMultiheadAttentionPoolingHead`)."""

    def __init__(self, spec: Pooled, build: Builder, name: str):
        size = spec.hidden_size
        self.heads = spec.num_attention_heads
        self.probe = build.parameter(name + ".probe", (1, 1, size))
        self.in_proj_weight = build.parameter(name + ".attention.in_proj_weight", (3 * size, size))
        self.in_proj_bias = build.parameter(name + ".attention.in_proj_bias", (3 * size,))
        self.out_proj, self.not_called = bypassed(build, name + ".attention.out_proj", size, size)
        self.layernorm = build.layer_norm(name + ".layernorm", size)
        self.mlp = TwoLayerMLP(spec, build, ("fc1", "fc2"), bias=True, name=name + ".mlp")

    def __call__(self, hidden: Tensor) -> Tensor:
        """One vector of each image, of its patches [images, patches, width]."""
        probe = repeat(self.probe, hidden.shape[0])
        attended = self._attend(probe, hidden)
        out = self.layernorm(attended)
        out = add(attended, self.mlp(out))
        del probe
        return select(out, 1)

    def _attend(self, probe: Tensor, hidden: Tensor) -> Tensor:
        images, patches, size = hidden.shape
        query, key = transpose(probe, 0, 1), transpose(hidden, 0, 1)
        q, k, v = self._projected(query, key)
        q = transpose(reshape(q, (1, images * self.heads, -1)), 0, 1)
        k = transpose(reshape(k, (patches, images * self.heads, -1)), 0, 1)
        v = transpose(reshape(v, (patches, images * self.heads, -1)), 0, 1)
        scaled = mul_scalar(q)
        weights = bmm(scaled, transpose(k, 1, 2))
        weights = softmax(weights)
        out = bmm(weights, v)
        out = reshape(contiguous(transpose(out, 0, 1)), (images, size))
        out = linear(out, self.out_proj.weight, self.out_proj.bias)
        out = reshape(out, (1, images, size))
        averaged = mean(reshape(weights, (images, self.heads, 1, patches)), 1)
        out = transpose(out, 0, 1)
        del averaged, scaled
        return out

    def _projected(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`_in_projection_packed`: queries by themselves, keys and values together."""
        patches, images, size = key.shape
        w_q, w_kv = split(self.in_proj_weight, (size, 2 * size), 0)
        b_q, b_kv = split(self.in_proj_bias, (size, 2 * size), 0)
        q = linear(query, w_q, b_q)
        both = linear(key, w_kv, b_kv)
        both = contiguous(permute(reshape(both, (patches, images, 2, size)), (2, 0, 1, 3)))
        return q, select(both, 0), select(both, 0)


def bypassed(build: Builder, name: str, inputs: int, outputs: int) -> tuple[Linear, Module]:
    """A layer whose weights are taken without calling it, as by `torch.nn.MultiheadAttention`: an adapter on it is trained, and
    gets no gradients. The layer, and the module that the adapter makes of it."""
    found: list[Linear] = []

    def taken(weight: Tensor, bias: Tensor | None) -> Linear:
        found.append(Linear(weight, bias))
        return found[0]

    build.bypassed.append(name)
    adapter = build.adapter if build.training else None
    adapted = adapter is not None and adapter.targets(name)
    if adapted and adapter is not None and adapter.trains(name + ".bias", True):
        raise NotModelled(
            "the bias of an adapted layer whose adapter is not run is not modelled yet: write none", "training.adapter.bias"
        )
    with build.unlearning(adapted):
        module = build.linear(name, inputs, outputs, True, taken, quantized=False)
    return found[0], module
