"""Grouped-query attention as most decoders have it, with hooks where their code differs.

After the `...Attention` classes of transformers' modeling files (5.23): queries, keys and values are projected, rotated, attended
to, and put together by an output layer. A hook is called where the real code does its part, so that lifetimes stay the real ones.
What a hook returns behind its results is what the real code has a name for, and forward holds that to its end.
"""

from __future__ import annotations

from collections.abc import Callable

from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.modules import Module
from estimator.families.spec import DecoderSpec
from estimator.tape.layout import Shape
from estimator.tape.math_attention import repeat_heads
from estimator.tape.pointwise import dropout
from estimator.tape.tensor import Tensor
from estimator.tape.views import reshape, transpose

Project = Callable[["GroupedQueryAttention", Tensor, Shape], tuple[Tensor, ...]]
"""(the module, hidden states, the shape of heads) -> queries, keys and values, [batch, heads, tokens, size], and what is held."""
Rotate = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]
"""(queries, keys, cosines, sines) -> rotated queries and keys, and what is held."""
HeadNorm = Callable[[str, int], Module]
"""("q" or "k", how many heads) -> the norm of queries or keys."""


def normed_one_by_one(module: GroupedQueryAttention, hidden: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    """Queries are projected, normalised, where there is a norm, and transposed; then keys; then values (modeling_qwen3.py)."""
    q = reshape(module.q_proj(hidden), heads)
    q = transpose(q if module.q_norm is None else module.q_norm(q), 1, 2)
    k = reshape(module.k_proj(hidden), heads)
    k = transpose(k if module.k_norm is None else module.k_norm(k), 1, 2)
    return q, k, transpose(reshape(module.v_proj(hidden), heads), 1, 2)


def normed_after_all(module: GroupedQueryAttention, hidden: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    """All three are projected and transposed; then queries and keys are normalised (modeling_gemma3.py, modeling_phi.py)."""
    q = transpose(reshape(module.q_proj(hidden), heads), 1, 2)
    k = transpose(reshape(module.k_proj(hidden), heads), 1, 2)
    v = transpose(reshape(module.v_proj(hidden), heads), 1, 2)
    if module.q_norm is not None and module.k_norm is not None:
        q = module.q_norm(q)
        k = module.k_norm(k)
    return q, k, v


def normed_between(module: GroupedQueryAttention, hidden: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    """All three are projected; queries and keys are normalised; all three are transposed (modeling_glm4_moe.py)."""
    q = reshape(module.q_proj(hidden), heads)
    k = reshape(module.k_proj(hidden), heads)
    v = reshape(module.v_proj(hidden), heads)
    if module.q_norm is not None and module.k_norm is not None:
        q = module.q_norm(q)
        k = module.k_norm(k)
    return transpose(q, 1, 2), transpose(k, 1, 2), transpose(v, 1, 2)


def normed_whole(module: GroupedQueryAttention, hidden: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    """Queries and keys are normalised over all heads at once; then all three are transposed (modeling_olmoe.py)."""
    q = module.q_proj(hidden) if module.q_norm is None else module.q_norm(module.q_proj(hidden))
    k = module.k_proj(hidden) if module.k_norm is None else module.k_norm(module.k_proj(hidden))
    v = module.v_proj(hidden)
    q = transpose(reshape(q, heads), 1, 2)
    k = transpose(reshape(k, heads), 1, 2)
    return q, k, transpose(reshape(v, heads), 1, 2)


def normed_when_rotated(module: GroupedQueryAttention, hidden: Tensor, heads: Shape) -> tuple[Tensor, ...]:
    """All three are projected and transposed; the attention normalises queries and keys once they are rotated
    (modeling_hunyuan_v1_dense.py)."""
    q = transpose(reshape(module.q_proj(hidden), heads), 1, 2)
    k = transpose(reshape(module.k_proj(hidden), heads), 1, 2)
    return q, k, transpose(reshape(module.v_proj(hidden), heads), 1, 2)


class GroupedQueryAttention:
    """Attention of a decoder in which several heads of queries may share one of keys and values.

    `bias`: of queries, keys and values; `output_bias`: of the output layer, whose name is `output`. `norm`: makes the norms of
    queries and keys, which `project` applies, or which come after the rotation. `rotate`: the rotary embedding; without it that
    of the job's kernels. `softcap`: scores go through a tanh. `drops`: dropout after the output layer. `causal`: tokens look back
    only, also where no mask says so.
    """

    inner_norm: Module | None = None
    """A norm of what the heads give together."""

    def __init__(
        self,
        spec: DecoderSpec,
        build: Builder,
        bias: bool = False,
        output_bias: bool = False,
        *,
        output: str = "o_proj",
        norm: HeadNorm | None = None,
        project: Project = normed_one_by_one,
        rotate: Rotate | None = None,
        softcap: bool = False,
        drops: float = 0.0,
        causal: bool = True,
    ):
        self.head_dim = spec.head_dim
        self.make_projections(spec, build, bias, output_bias, output)
        self.q_norm = norm("q", spec.num_attention_heads) if norm else None
        self.k_norm = norm("k", spec.num_key_value_heads) if norm else None
        self.project, self.rotate, self.matched = project, rotate or build.kernels.rotate, build.kernels.matched
        self.repeats = build.kernels.release == "4.45" and spec.repeats_heads and build.attention == "flash_attention_2"
        self.cache = build.cache() if build.cache else None
        dropped = spec.attention_dropout if build.training else 0.0
        self.attend = Attention(
            build.attention, dropout=dropped, softcap=softcap, causal=causal, efficient=build.kernels.efficient
        )
        self.drops = drops if build.training else 0.0

    def make_projections(self, spec: DecoderSpec, build: Builder, bias: bool, output_bias: bool, output: str) -> None:
        """The linear layers, in the order in which the real module makes them."""
        queries, keys = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, queries, bias)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, keys, bias)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, keys, bias)
        self.o_proj = build.linear(f"self_attn.{output}", queries, spec.hidden_size, output_bias)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What each token gets, [batch, tokens, hidden], and the weights where the implementation returns them."""
        batch, tokens, _ = hidden.shape
        q, k, v, *_projected = self.project(self, hidden, (batch, tokens, -1, self.head_dim))
        q, k, v = self.matched(q, k, v)
        q, k, *_rotated = self.rotate(q, k, cos, sin)
        if self.project is normed_when_rotated and self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        if self.repeats:
            k, v = repeat_heads(q, k), repeat_heads(q, v)
        if self.cache is not None:
            k, v = self.cache.update(k, v)
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, (batch, tokens, -1))
        if self.inner_norm is not None:
            out = self.inner_norm(out)
        out = self.o_proj(out)
        return dropout(out, self.drops), weights
