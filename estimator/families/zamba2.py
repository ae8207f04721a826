"""Zamba 2: layers of Mamba-2, before some of which stands a block of attention and a feed-forward layer whose weights they share.

Such a block reads what the layer gets beside the embeddings. Each layer has small layers of its own beside the shared ones. After
transformers' modeling_zamba2.py (5.23), without the packages mamba-ssm and causal-conv1d: the mixers run on the path in plain
torch. A layer with a block is recomputed in two segments, one within the other, since transformers recomputes its Mamba layer by
itself, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import model_validator

from estimator.contract.errors import Contradiction, NotModelled
from estimator.families.abilities import Abilities
from estimator.families.attention import Attention, causal_mask
from estimator.families.build import Builder
from estimator.families.cache_layers import CacheLayer, attention, mamba_state
from estimator.families.decoder import Rotary
from estimator.families.each_layer import check_each_named
from estimator.families.heads import decoder_heads
from estimator.families.hybrid import HybridSpec
from estimator.families.mamba import refuse_few_bits
from estimator.families.mamba2 import Mixer, MixerSizes
from estimator.families.modules import ACTIVATIONS, Module, rotate, token_positions
from estimator.families.rotary import RotarySpec
from estimator.families.spec import Activation, Size
from estimator.tape.checkpoint import EVERY, checkpoint_within
from estimator.tape.pointwise import add, mul
from estimator.tape.tensor import Tensor
from estimator.tape.views import cat, clone, reshape, split, transpose

MAMBA, HYBRID = "linear_attention", "hybrid"
OLDER = {"mamba": MAMBA}
"""Kinds of layers by the names in published files."""
USUAL = (MAMBA, *((MAMBA,) * 5 + (HYBRID,)) * 7, *(MAMBA,) * 4, HYBRID, *(MAMBA,) * 3, HYBRID, *(MAMBA,) * 2)
"""The layers where a config.json does not name them."""


class Zamba2Spec(HybridSpec, RotarySpec):
    """`num_mem_blocks` blocks take turns. `intermediate_size`: of their feed-forward layers."""

    can = Abilities()
    modelled = {"tie_word_embeddings": (True,), "use_long_context": (False,)}
    by_position = EVERY
    differentiated_once = True
    in_sglang = "none"
    staged = False
    made = frozenset({"layers_block_type"})

    intermediate_size: Size
    hidden_act: Activation = "gelu"
    max_position_embeddings: Size | None = 4096
    tie_word_embeddings: bool = True
    layers_block_type: tuple[Literal["linear_attention", "hybrid"], ...]
    mamba_d_state: Size = 64
    mamba_d_conv: Size = 4
    mamba_expand: Size = 2
    mamba_ngroups: Size = 1
    n_mamba_heads: Size = 8
    chunk_size: Size = 256
    add_bias_linear: bool = False
    num_mem_blocks: Size = 1
    use_shared_attention_adapter: bool = False
    adapter_rank: Size = 128
    use_mem_rope: bool = False

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": heads, "head_dim": 2 * hidden // heads, "intermediate_size": 4 * hidden}

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.layers_block_type

    @property
    def keeps(self) -> dict[str, tuple[CacheLayer, ...]]:
        return {MAMBA: (self.state,), HYBRID: (self.state, attention(self.num_key_value_heads, self.head_dim))}

    @property
    def state(self) -> CacheLayer:
        inner = self.mamba_expand * self.hidden_size
        return mamba_state(inner, inner + 2 * self.mamba_ngroups * self.mamba_d_state, self.mamba_d_state, self.mamba_d_conv)

    @property
    def mixer(self) -> MixerSizes:
        """The sizes of a Mamba-2 mixer; its convolution always has a bias."""
        return MixerSizes(
            self.hidden_size,
            self.n_mamba_heads,
            self.mamba_expand * self.hidden_size // self.n_mamba_heads,
            self.mamba_d_state,
            self.mamba_ngroups,
            self.mamba_d_conv,
            self.chunk_size,
            self.add_bias_linear,
            True,
            "silu",
        )

    @property
    def blocks(self) -> tuple[int, ...]:
        """The block of each layer that has one."""
        return tuple([i % self.num_mem_blocks for i in range(self.layers_block_type.count(HYBRID))])

    @model_validator(mode="before")
    @classmethod
    def _kinds(cls, given: Any) -> Any:
        """Older names of the kinds of layers, and transformers' name of them all."""
        if not isinstance(given, Mapping):
            return given
        made = dict(given)
        kinds = made.pop("layer_types", None) or made.get("layers_block_type") or USUAL
        if isinstance(kinds, Sequence):
            made["layers_block_type"] = [OLDER.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
        return made

    @model_validator(mode="after")
    def _whole(self) -> Self:
        check_each_named(self.layers_block_type, self.num_hidden_layers, "layers_block_type")
        if (inner := self.mamba_expand * self.hidden_size) % self.n_mamba_heads:
            raise ValueError(f"mamba_expand x hidden_size, {inner}, is not a multiple of n_mamba_heads {self.n_mamba_heads}")
        if self.n_mamba_heads % self.mamba_ngroups:
            raise ValueError(f"n_mamba_heads {self.n_mamba_heads} is not a multiple of mamba_ngroups {self.mamba_ngroups}")
        if self.num_attention_heads * self.head_dim != 2 * self.hidden_size:
            raise ValueError(f"head_dim {self.head_dim} x {self.num_attention_heads} heads is not twice hidden_size")
        if self.use_shared_attention_adapter and self.num_key_value_heads != self.num_attention_heads:
            raise ValueError("use_shared_attention_adapter asks for as many key heads as heads")
        return self

    def config(self) -> dict[str, Any]:
        return super().config() | {"layers_block_type": [*self.layers_block_type]}


SPECS = {"zamba2": Zamba2Spec}

SHARED = "shared_transformer"
ATTENDING, FEEDING = f"{SHARED}.self_attn", f"{SHARED}.feed_forward"


class Block:
    """The weights of a block. `users`: how many layers have it; `first`: the path of the first, where they share it."""

    def __init__(self, spec: Zamba2Spec, build: Builder, users: int, first: str = ""):
        wide, width = 2 * spec.hidden_size, spec.intermediate_size
        keys = spec.num_key_value_heads * spec.head_dim
        self.users = users
        shapes = {
            f"{ATTENDING}.q_proj": (wide, wide),
            f"{ATTENDING}.k_proj": (keys, wide),
            f"{ATTENDING}.v_proj": (keys, wide),
            f"{ATTENDING}.o_proj": (spec.hidden_size, wide),
        }
        feeding = {
            f"{FEEDING}.gate_up_proj": (2 * width, spec.hidden_size),
            f"{FEEDING}.down_proj": (spec.hidden_size, width),
        }
        self.weights: dict[str, Tensor] = {}
        self.biases: dict[str, Tensor] = {}
        for name, shape in (shapes | feeding).items():
            self.weights[name] = build.parameter(f"{first}{name}.weight", shape)
            if spec.add_bias_linear and name in feeding:
                self.biases[name] = build.parameter(f"{first}{name}.bias", shape[:1])
        build.linears += [first + name for name in self.weights] if first else []
        self.input_layernorm = build.rms_norm(f"{first}{SHARED}.input_layernorm", wide)
        self.pre_ff_layernorm = build.rms_norm(f"{first}{SHARED}.pre_ff_layernorm", spec.hidden_size)

    def linear(self, build: Builder, name: str) -> Module:
        """A layer's own module of that name, with the block's weight."""
        return build.sharing(name, self.weights[name], self.biases.get(name))


class Adapter:
    """Two narrow layers beside a shared one. A block has those of all its layers; each layer runs one."""

    def __init__(self, spec: Zamba2Spec, build: Builder, block: Block, name: str, inputs: int, outputs: int):
        rank = spec.adapter_rank
        shapes = {f"{name}.0": (rank, inputs), f"{name}.1": (outputs, rank)}
        weights = {part: build.parameter(f"{part}.weight", shape) for part, shape in shapes.items()}
        self.down, self.up = [build.sharing(part, weight) for part, weight in weights.items()]
        with build.unlearning():  # PEFT adapts each layer's modules, also those that only others run
            others = range(block.users - 1 if build.adapter else 0)
            self.others = [build.sharing(part, weight) for _ in others for part, weight in weights.items()]

    def __call__(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


class SelfAttention:
    def __init__(self, spec: Zamba2Spec, build: Builder, block: Block):
        self.spec = spec
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = [
            block.linear(build, f"{ATTENDING}.{name}") for name in ("q_proj", "k_proj", "v_proj", "o_proj")
        ]
        wide = 2 * spec.hidden_size
        names = ("q", "k", "v") if spec.use_shared_attention_adapter else ()
        self.adapters = [Adapter(spec, build, block, f"{ATTENDING}.linear_{name}_adapter_list.0", wide, wide) for name in names]
        self.attend = Attention(build.attention, dropout=spec.attention_dropout if build.training else 0.0)

    def __call__(self, hidden: Tensor, mask: Tensor | None, *table: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, tokens, _ = hidden.shape
        heads = (batch, tokens, -1, self.spec.head_dim)
        q = self.q_proj(hidden)
        k = self.k_proj(hidden)
        v = self.v_proj(hidden)
        if self.adapters:
            of_q, of_k, of_v = self.adapters
            q = add(q, of_q(hidden))
            k = add(k, of_k(hidden))
            v = add(v, of_v(hidden))
        q = transpose(reshape(q, heads), 1, 2)
        k = transpose(reshape(k, heads), 1, 2)
        v = transpose(reshape(v, heads), 1, 2)
        if table:
            q, k = rotate(q, k, *table)
        out, weights = self.attend(q, k, v, mask)
        out = reshape(out, (batch, tokens, -1))
        return self.o_proj(out), weights


class FeedForward:
    def __init__(self, spec: Zamba2Spec, build: Builder, block: Block):
        self.width, self.act = spec.intermediate_size, ACTIVATIONS[spec.hidden_act]
        name = f"{FEEDING}.gate_up_proj"
        self.gate_up_proj, self.down_proj = block.linear(build, name), block.linear(build, f"{FEEDING}.down_proj")
        self.adapter = Adapter(spec, build, block, f"{name}_adapter_list.0", spec.hidden_size, 2 * self.width)

    def __call__(self, x: Tensor) -> Tensor:
        gate_up = self.gate_up_proj(x)
        gate_up = add(gate_up, self.adapter(x))
        gate, up = split(gate_up, (self.width, self.width), 2)
        out = mul(self.act(gate), up)
        return self.down_proj(out)


class MambaLayer:
    """A mixer; in a layer with a block, what that gives is added to what it reads."""

    def __init__(self, spec: Zamba2Spec, build: Builder, within: str = ""):
        self.mamba = Mixer(spec.mixer, build, f"{within}mamba")
        self.input_layernorm = build.rms_norm(f"{within}input_layernorm", spec.hidden_size)

    def __call__(self, hidden: Tensor, *_: Tensor | None) -> Tensor:
        return self.mix(hidden, None)

    def mix(self, hidden: Tensor, added: Tensor | None) -> Tensor:
        """`hidden` and what the mixer makes of it and what is `added`."""
        out = hidden if added is None else add(hidden, added)
        out = self.input_layernorm(out)
        out = self.mamba(out)
        return add(hidden, out)


class HybridLayer:
    def __init__(self, spec: Zamba2Spec, build: Builder, block: Block):
        self.linear = build.linear("linear", spec.hidden_size, spec.hidden_size)
        self.mamba_decoder = MambaLayer(spec, build, "mamba_decoder.")
        self.block = block
        self.self_attn = SelfAttention(spec, build, block)
        self.feed_forward = FeedForward(spec, build, block)

    def __call__(self, hidden: Tensor, original: Tensor, mask: Tensor | None, positions: Tensor, *table: Tensor) -> Tensor:
        out = self._attended(hidden, original, mask, *table)
        out = self.linear(out)
        return checkpoint_within(self.mamba_decoder.mix, hidden, out)

    def _attended(self, hidden: Tensor, original: Tensor, mask: Tensor | None, *table: Tensor) -> Tensor:
        """What the shared block makes of hidden states and embeddings."""
        out = cat((hidden, original), 2)
        out = self.block.input_layernorm(out)
        out, _ = self.self_attn(out, mask, *table)
        out = self.block.pre_ff_layernorm(out)
        return self.feed_forward(out)


class Body:
    """Embeddings, layers, a norm.

    Backward comes first to the last layers of each block: of two gradients of what layers share, the first is a view, and so the
    second makes a tensor of both, to which the others are added.
    """

    def __init__(self, spec: Zamba2Spec, build: Builder):
        refuse_few_bits(build, spec.model_type)
        _check(spec, build)
        self.spec, self.attention = spec, build.attention
        self.embed_tokens = build.embedding("embed_tokens", spec.vocab_size, spec.hidden_size)
        remaining = iter(spec.blocks)
        kinds = [next(remaining) if kind == HYBRID else None for kind in spec.kinds]
        users = {number: kinds.count(number) for number in spec.blocks}
        shared: dict[int | None, Block] = {}
        for number, count in users.items():
            if count > 1:
                shared[number] = Block(spec, build, count, f"layers.{kinds.index(number)}.")

        def layer(number: int | None) -> MambaLayer | HybridLayer:
            if number is None:
                return MambaLayer(spec, build)
            return HybridLayer(spec, build, shared.get(number) or Block(spec, build, users[number]))

        places = [i for i, kind in enumerate(kinds) if kind is not None]
        apart = {*places[-2:]}.union(*([i for i in places if kinds[i] == number][-2:] for number in users))
        self.layers = build.layers(kinds, layer, last=len(kinds) - min(apart, default=len(kinds)))
        self.norm = build.rms_norm("final_layernorm", spec.hidden_size)
        self.rotary = Rotary(spec.head_dim) if spec.use_mem_rope else None
        self.buffers = self.rotary.buffers(build) if self.rotary else []

    def forward(self, ids: Tensor) -> Tensor:
        tape, (batch, tokens) = ids.tape, ids.shape
        embeds = self.embed_tokens(ids)
        hidden = embeds
        original = clone(embeds)
        positions = token_positions(tape, tokens)
        mask = causal_mask(tape, batch, tokens, embeds.dtype, self.attention, None)
        table = self.rotary.table(tape, tokens, hidden.dtype) if self.rotary else ()
        for layer in self.layers:
            hidden = layer(hidden, original, mask, positions, *table)
        return self.norm(hidden)


def _check(spec: Zamba2Spec, build: Builder) -> None:
    """Raise for what torch refuses, or is not modelled yet, of weights that layers share and of a layer within a layer."""
    shares = len(set(spec.blocks)) < len(spec.blocks)
    if shares and build.sharding.untied:
        raise Contradiction(
            f"fully_shard refuses what several layers share, as those of {spec.model_type} share a block of attention: write ddp",
            "parallelism.strategy",
        )
    if shares and build.sharding.flattens:
        raise NotModelled("fsdp1 of layers that share weights is not modelled yet; write ddp", "parallelism.strategy")
    asked = build.checkpointing
    if asked.recomputes and (asked.every != 1 or asked.offloads or asked.skips):
        raise NotModelled(
            f"layers of {spec.model_type} that are recomputed in another way than full are not modelled: the Mamba layer within "
            "one of them is recomputed by itself; write full or none",
            "training.activation_checkpointing",
        )


HEADS = decoder_heads(Body)
