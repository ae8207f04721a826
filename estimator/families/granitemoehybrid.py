"""Granite 4: layers of Mamba-2 and of attention, each before a gated feed-forward layer, beside which there may be experts.

After transformers' modeling_granitemoehybrid.py (5.23); its Mamba layers are Mamba-2's, on the path in plain torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol, Self

from pydantic import Field, model_validator

from estimator.families.abilities import Abilities
from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.each_layer import check_each_named
from estimator.families.experts import AUXILIARY
from estimator.families.granitemoe import GraniteMoe
from estimator.families.heads import Batch
from estimator.families.hybrid import ATTENTION, MAMBA, Kind, Mamba2HybridSpec
from estimator.families.mamba2 import Mixer
from estimator.families.model_output import Held
from estimator.families.modules import ACTIVATIONS, rotary_table, rotate
from estimator.families.spec import Activation, Size, called
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, add_scalar, mul, mul_scalar
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, reshape, split, transpose

OLDER = {"mamba": MAMBA, "attention": ATTENTION}
"""Kinds of layers by the names in published files."""


class GraniteMoeHybridSpec(Mamba2HybridSpec):
    """`intermediate_size` is the experts', of which there may be none; `shared_intermediate_size` is that of every layer."""

    can = Abilities(gguf=True, graph="granite", mlx_routers="8 bits")
    modelled = AUXILIARY

    made = frozenset({"layer_types", "mamba_d_head"})

    num_experts: Annotated[int, Field(ge=0, le=2**16)] = called("num_local_experts", 8)
    num_experts_per_tok: Size = 2
    intermediate_size: Size = 11008
    shared_intermediate_size: Size
    layer_types: tuple[Kind, ...]
    mamba_n_heads: Size
    position_embedding_type: str | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return self.layer_types

    @property
    def expert_size(self) -> int:
        """Width of one expert."""
        return self.intermediate_size

    def sparse(self) -> list[bool]:
        """Whether each layer has experts."""
        return [self.num_experts > 0] * self.num_hidden_layers

    @model_validator(mode="before")
    @classmethod
    def _kinds(cls, given: Any) -> Any:
        """Older names of the kinds of layers."""
        if not isinstance(given, Mapping):
            return given
        made = dict(given)
        kinds = made.pop("layers_block_type", made.get("layer_types"))
        if kinds is None and isinstance(layers := made.get("num_hidden_layers"), int):
            kinds = [MAMBA] * layers
        if isinstance(kinds, Sequence):
            made["layer_types"] = [OLDER.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
        return made

    @model_validator(mode="after")
    def _whole(self) -> Self:
        check_each_named(self.layer_types, self.num_hidden_layers)
        if 0 < self.num_experts < self.num_experts_per_tok:
            raise ValueError(f"num_experts_per_tok {self.num_experts_per_tok} is more than the {self.num_experts} experts")
        return self

    def config(self) -> dict[str, Any]:
        return super().config() | {"layer_types": [*self.layer_types]}


SPECS = {"granitemoehybrid": GraniteMoeHybridSpec}


Attended = tuple[Tensor, Tensor | None]


class SelfAttention:
    def __init__(self, spec: GraniteMoeHybridSpec, build: Builder):
        size, bias = spec.head_dim, spec.attention_bias
        queries, keys = spec.num_attention_heads * size, spec.num_key_value_heads * size
        self.head_dim = size
        self.q_proj = build.linear("self_attn.q_proj", spec.hidden_size, queries, bias)
        self.k_proj = build.linear("self_attn.k_proj", spec.hidden_size, keys, bias)
        self.v_proj = build.linear("self_attn.v_proj", spec.hidden_size, keys, bias)
        self.o_proj = build.linear("self_attn.o_proj", queries, spec.hidden_size, bias)
        self.attend = Attention(build.attention, dropout=spec.attention_dropout)

    def __call__(self, hidden: Tensor, cos: Tensor | None, sin: Tensor | None, mask: Tensor | None) -> Attended:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.head_dim)
        q = transpose(reshape(self.q_proj(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_proj(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        if cos is not None and sin is not None:
            q, k = rotate(q, k, cos, sin)
        out, weights = self.attend(q, k, v, mask)
        out = contiguous(reshape(out, (batch, tokens, -1)))
        out = self.o_proj(out)
        return out, weights


class SharedSizes(Protocol):
    """What a spec says of the feed-forward layer that every token passes."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def shared_intermediate_size(self) -> int: ...
    @property
    def hidden_act(self) -> Activation: ...


class MLP:
    def __init__(self, spec: SharedSizes, build: Builder):
        self.size = spec.shared_intermediate_size
        self.activation = ACTIVATIONS[spec.hidden_act]
        self.input_linear = build.linear("shared_mlp.input_linear", spec.hidden_size, 2 * self.size)
        self.output_linear = build.linear("shared_mlp.output_linear", self.size, spec.hidden_size)

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = split(self.input_linear(x), (self.size, self.size), 2)
        out = mul(self.activation(gate), up)
        return self.output_linear(out)


class DecoderLayer:
    def __init__(self, spec: GraniteMoeHybridSpec, build: Builder, kind: str):
        self.input_layernorm = build.rms_norm("input_layernorm", spec.hidden_size)
        self.post_attention_layernorm = build.rms_norm("post_attention_layernorm", spec.hidden_size)
        self.block_sparse_moe = GraniteMoe(spec, build) if spec.num_experts else None
        self.shared_mlp = MLP(spec, build)
        self.mamba = Mixer(spec.mixer, build, "mamba") if kind == MAMBA else None
        self.self_attn = SelfAttention(spec, build) if kind == ATTENTION else None

    def __call__(self, hidden: Tensor, mask: Tensor | None, cos: Tensor | None, sin: Tensor | None) -> Tensor:
        residual = hidden
        out = self.input_layernorm(hidden)
        if self.mamba is not None:
            out = self.mamba(out)
        elif self.self_attn is not None:
            out, _ = self.self_attn(out, cos, sin, mask)
        out = add(residual, mul_scalar(out))
        residual = out
        out = self.post_attention_layernorm(out)
        out = self._fed_forward(out)
        return add(residual, mul_scalar(out))

    def _fed_forward(self, hidden: Tensor) -> Tensor:
        if self.block_sparse_moe is None:
            return self.shared_mlp(hidden)
        out = self.block_sparse_moe(hidden)
        return add(out, self.shared_mlp(hidden))


class CausalLM:
    """The model with its output layer (`GraniteMoeHybridForCausalLM`), whose scores are divided by a number."""

    def __init__(self, spec: GraniteMoeHybridSpec, build: Builder):
        self.spec, self.attention = spec, build.attention
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        self.layers = build.layers(spec.layer_types, lambda kind: DecoderLayer(spec, build, kind))
        self.norm = build.rms_norm("norm", spec.hidden_size)
        self.rotary = spec.position_embedding_type == "rope"
        names = ("inv_freq", "original_inv_freq") if self.rotary else ()
        self.buffers = [build.buffer(name, (spec.head_dim // 2,), dtypes.float32) for name in names]
        self.loss = build.kernels.loss
        self.lm_head = build.head(spec.hidden_size, spec.vocab_size, spec.tie_word_embeddings)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        return (empty(tape, (batch.sequences, batch.tokens), dtypes.int64, "input_ids"),)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        (ids,) = inputs
        hidden = self._body(ids)
        with ids.tape.losing():
            logits = self.lm_head(hidden)
            logits = mul_scalar(logits)
            loss = self.loss(logits, ids)
        return loss, logits

    def _body(self, ids: Tensor) -> Tensor:
        tape, spec = ids.tape, self.spec
        batch, tokens = ids.shape
        embeds = self.embed_tokens(ids)
        embeds = mul_scalar(embeds)
        positions = add_scalar(empty(tape, (tokens,), dtypes.int64, "arange"))
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None)
        hidden = embeds
        cos, sin = rotary_table(tape, tokens, spec.head_dim, hidden.dtype) if self.rotary else (None, None)
        for kind, layer in self.layers.by_kind():
            hidden = layer(hidden, mask if kind == ATTENTION else None, cos, sin)
        del positions
        return self.norm(hidden)


HEADS = {"causal-lm": CausalLM}
