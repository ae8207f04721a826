"""Megatron-LM's classic GPT: LayerNorm, learned positions, biases, a GELU fused with its bias, dropout fused with bias and sum.

After core/fusions/fused_bias_gelu.py and fused_bias_dropout.py, core/transformer/dot_product_attention.py and
core/models/common/embeddings/language_model_embedding.py of Megatron-Core 0.15; the same as Megatron-LM had them in 2021. Hidden
states are [tokens, sequences, width]. What is saved is Korthikanti et al.'s (arXiv 2205.05198): 34 bytes per token and width, and
5 for each score.
"""

from __future__ import annotations

from functools import partial

from estimator.families.build import Builder
from estimator.megatron.attention import Context, attend
from estimator.megatron.config import Classic, Config
from estimator.megatron.linear import Norm, NormLinear, RowLinear, Split
from estimator.tape import dtypes
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.checkpoint import reentrant_checkpoint
from estimator.tape.matmul import bmm
from estimator.tape.pointwise import add, dropout, softmax
from estimator.tape.tensor import Tensor, empty, output, unary
from estimator.tape.views import contiguous, permute, reshape, split


def layer_norm(build: Builder, name: str, width: int) -> Norm:
    """LayerNorm, with a bias."""
    return Norm(build.parameter(f"{name}.weight", (width,)), build.parameter(f"{name}.bias", (width,)))


class Layer:
    """A layer of its own, since biases are added where sums with the residual are."""

    def __init__(self, classic: Classic, config: Config, build: Builder, ranks: Split, context: Context):
        self.classic, self.context = classic, context
        hidden, parts = config.hidden, ranks.group.size
        self.heads, self.size = config.heads // parts, config.head_dim
        inputs, width = self.heads * self.size, config.width // parts
        gain = layer_norm(build, "input_layernorm", hidden)
        qkv = build.parameter("self_attention.linear_qkv.weight", (3 * inputs, hidden))
        self.linear_qkv = NormLinear(gain, qkv, build.parameter("self_attention.linear_qkv.bias", (3 * inputs,)), ranks)
        self.linear_proj = RowLinear(build.parameter("self_attention.linear_proj.weight", (hidden, inputs)), None, ranks)
        self.proj_bias = build.parameter("self_attention.linear_proj.bias", (hidden,))
        second = layer_norm(build, "pre_mlp_layernorm", hidden)
        self.linear_fc1 = NormLinear(second, build.parameter("mlp.linear_fc1.weight", (width, hidden)), None, ranks)
        self.fc1_bias = build.parameter("mlp.linear_fc1.bias", (width,))
        self.linear_fc2 = RowLinear(build.parameter("mlp.linear_fc2.weight", (hidden, width)), None, ranks)
        self.fc2_bias = build.parameter("mlp.linear_fc2.bias", (hidden,))

    def __call__(self, hidden: Tensor, _: Tensor) -> Tensor:
        out = self.attention(hidden)
        hidden = bias_dropout_add(out, self.proj_bias, hidden, self.classic.hidden_dropout)
        del out
        inner = self.linear_fc1(hidden)
        inner = bias_gelu(inner, self.fc1_bias)
        out = self.linear_fc2(inner)
        del inner
        return bias_dropout_add(out, self.fc2_bias, hidden, self.classic.hidden_dropout)

    def attention(self, hidden: Tensor) -> Tensor:
        """The attention block's output [tokens, sequences, width], without the bias of its last product."""
        mixed = self.linear_qkv(hidden)
        tokens, sequences, _ = mixed.shape
        grouped = reshape(mixed, (tokens, sequences, self.heads, 3 * self.size))
        q, k, v = split(grouped, (self.size,) * 3, 3)
        del mixed, grouped
        run = (
            partial(core, dropped=self.classic.attention_dropout) if self.classic.eager else partial(attend, context=self.context)
        )
        out: Tensor = reentrant_checkpoint(run, q, k, v) if self.classic.selective else run(q, k, v)
        del q, k, v
        return self.linear_proj(reshape(out, (tokens, sequences, -1)))


def core(q: Tensor, k: Tensor, v: Tensor, dropped: float) -> Tensor:
    """Attention as two products with a causal softmax between them, scaled and masked in one kernel (`FusedScaleMaskSoftmax`)."""
    tokens, sequences, heads, size = q.shape
    q, k, v = (reshape(permute(t, (1, 2, 0, 3)), (sequences * heads, tokens, size)) for t in (q, k, v))
    weights = softmax(bmm(q, permute(k, (0, 2, 1))), q.dtype)
    out = bmm(dropout(weights, dropped), v)
    return contiguous(permute(reshape(out, (sequences, heads, tokens, size)), (2, 0, 1, 3)))


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """GELU of the sum (`GeLUFunction`): one kernel each way, and one that sums the bias's gradient. Saves x."""

    def backward(g: Tensor, x: Tensor) -> list[Gradient]:
        gradient = output("bias_gelu_back", (g, x), x.shape, x.dtype)
        return [gradient, output("sum", (gradient,), bias.shape, bias.dtype)]

    node = record("BiasGelu", (x, bias), (x,), backward)
    return attach(node, output("bias_gelu", (x,), x.shape, x.dtype))


def bias_dropout_add(x: Tensor, bias: Tensor, residual: Tensor, dropped: float) -> Tensor:
    """The residual and what is left of x and its bias, in one kernel. Saves a mask of a byte for each, where some are dropped."""

    def backward(g: Tensor, *mask: Tensor) -> list[Gradient]:
        gradient = output("bias_dropout_add_back", (g, *mask), g.shape, g.dtype) if mask else g
        return [gradient, output("sum", (gradient,), bias.shape, bias.dtype), g]

    node = record("BiasDropoutAdd", (x, bias, residual), (), backward)
    out = output("bias_dropout_add", (x, residual), x.shape, x.dtype)
    if dropped:
        mask = unary("native_dropout", x, dtypes.bool_)
        if node is not None:
            node.save((mask,))
    return attach(node, out)


class Positions:
    """Learned positions, added to words of all tokens; then each rank takes its part of the tokens."""

    def __init__(self, classic: Classic, hidden: int, build: Builder, ranks: Split):
        self.ranks, self.dropped = ranks, classic.embedding_dropout
        self.weight = build.parameter("embedding.position_embeddings.weight", (classic.positions, hidden))

    def __call__(self, words: Tensor) -> Tensor:
        """Embedded words [tokens, sequences, width] with their positions added; under sequence parallelism this rank's tokens."""
        summed = _placed(words, self.weight)
        if self.ranks.sequence:
            summed = self._part(summed)
        return dropout(summed, self.dropped)

    def _part(self, x: Tensor) -> Tensor:
        """This rank's tokens, copied (`scatter_to_sequence_parallel_region`)."""
        group = self.ranks.group
        shape = x.shape[0] // group.size, *x.shape[1:]
        whole = x.shape

        def backward(g: Tensor) -> Gradient:
            g.tape.communicate("all_gather", group.name, group.size, g.nbytes * group.size)
            return empty(g.tape, whole, g.dtype, "all_gather")

        return attach(record("Scatter", (x,), (), backward), output("clone", (x,), shape, x.dtype))


def _placed(words: Tensor, table: Tensor) -> Tensor:
    """Words and the rows of their positions."""

    def backward(g: Tensor) -> Gradient:
        return output("embedding_dense_backward", (g,), table.shape, table.dtype)

    rows = output("embedding", (words,), (words.shape[0], 1, words.shape[2]), words.dtype)
    rows = attach(record("EmbeddingBackward", (table,), (), backward), rows)
    return add(words, rows)
