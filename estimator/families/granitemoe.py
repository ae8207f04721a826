"""Granite with experts: as Llama, with numbers that scale embeddings, residuals, attention and logits.

After transformers' modeling_granitemoe.py (5.23).
"""

from __future__ import annotations

from estimator import dtypes
from estimator.families.build import Builder
from estimator.families.experts import AUXILIARY, Experts, MoeSpec, entered
from estimator.families.heads import CausalLM, Head
from estimator.families.layers import Layers
from estimator.families.llama import Llama, LlamaSpec, SelfAttention
from estimator.families.modules import rotary_table
from estimator.specs.spec import Size, called
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, add_scalar, mul_scalar, softmax, to
from estimator.tape.selection import topk
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape


class GraniteMoeSpec(LlamaSpec, MoeSpec):
    modelled = AUXILIARY
    tensor_parallel = cached = False

    num_experts: Size = called("num_local_experts", 8)
    num_experts_per_tok: Size = 2


SPECS = {"granitemoe": GraniteMoeSpec}


class GraniteMoeRouter:
    """The best experts by their scores, and a softmax over those only."""

    def __init__(self, spec: GraniteMoeSpec, build: Builder):
        self.top_k = spec.num_experts_per_tok
        self.weight = build.weight("block_sparse_moe.router.weight", (spec.num_experts, spec.hidden_size))

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            logits = to(linear(hidden, self.weight()), dtypes.float32)
            best, chosen = topk(logits, self.top_k)
            return logits, to(softmax(best), hidden.dtype), chosen


class GraniteMoe:
    def __init__(self, spec: GraniteMoeSpec, build: Builder):
        self.router = GraniteMoeRouter(spec, build)
        self.experts = Experts(spec, build, "block_sparse_moe.experts")

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits, weights, chosen = self.router(flat)
        out = self.experts(flat, chosen, weights)
        del logits
        return reshape(out, hidden.shape)


class GraniteMoeLayer:
    def __init__(self, spec: GraniteMoeSpec, build: Builder):
        self.self_attn = SelfAttention(spec, build)
        self.input_layernorm = build.rms_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.rms_norm("post_attention_layernorm", spec.hidden_size)
        self.block_sparse_moe = GraniteMoe(spec, build)

    def __call__(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        out, _ = self.self_attn(out, cos, sin, mask)
        out = add(residual, mul_scalar(out))
        residual = out
        out = self.post_attention_layernorm(out)
        out = self.block_sparse_moe(out)
        return add(residual, mul_scalar(out))


class GraniteMoeModel(Llama):
    """The body of the model."""

    def stack(self, spec: GraniteMoeSpec, build: Builder) -> Layers:
        return build.layers(spec.num_hidden_layers, lambda _: GraniteMoeLayer(spec, build))

    def forward(self, ids: Tensor) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = self.embed_tokens(ids)
        positions = add_scalar(empty(tape, (1, tokens), dtypes.int64, "arange"))
        (mask,) = self.masks(tape, batch, tokens, embeds.dtype)
        embeds = mul_scalar(embeds)
        hidden = embeds
        cos, sin = rotary_table(tape, tokens, self.spec.head_dim, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, mask, positions)
        return self.norm(hidden)


class GraniteMoeLM(CausalLM):
    """With scaled logits."""

    def logits(self, hidden: Tensor) -> Tensor:
        return mul_scalar(super().logits(hidden))


HEADS: dict[str, Head] = {"causal-lm": lambda spec, build: GraniteMoeLM(GraniteMoeModel(spec, build), spec, build)}
