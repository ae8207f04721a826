"""A model's architecture: what a family needs to build it, under transformers' names and with its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from estimator.contract.job.audio import Audio
from estimator.contract.job.images import Images
from estimator.families.abilities import Abilities
from estimator.families.cache_layers import CacheLayer, Picture, attention
from estimator.tape.checkpoint import FIRST

Size = Annotated[int, Field(ge=1, le=2**31)]
Depth = Annotated[int, Field(ge=1, le=2**12)]
"""Layers: four times as many as any model that was trained; more would hold a core for seconds."""
Probability = Annotated[float, Field(ge=0, lt=1)]
Activation = Literal["silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "quick_gelu", "relu", "relu2"]


def called(name: str, default: Any = ...) -> Any:
    """A field that config.json calls `name`; either name is read."""
    return Field(default, alias=name)


class ModelSpec(BaseModel):
    """What every architecture says. Each family extends it; sizes count elements, dropout applies in training only."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    modelled: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Settings of a config.json that change what is computed, and the values that this family has a model of."""
    made: ClassVar[frozenset[str]] = frozenset()
    """Fields that a validator makes of others where they are left out."""
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Heads of its family that transformers has no class of."""
    implementations: ClassVar[tuple[str, ...]] = ("transformers",)
    """Whose kernels it can run with (`training.implementation`)."""
    joined_loss: ClassVar[bool] = True
    """Whether the fast kernels have one for its output layer and loss together."""
    has_attention: ClassVar[bool] = True
    """Whether any layer attends; else a job's choice of its implementation says nothing."""
    learned_positions: ClassVar[bool] = False
    """Whether there are no positions beyond `longest_sequence`."""
    attentions: ClassVar[tuple[str, ...]] = ("sdpa", "eager", "flash_attention_2")
    """How transformers runs its attention, the way that it takes unasked first."""
    recomputed: ClassVar[bool] = True
    """Whether transformers can recompute its layers (`supports_gradient_checkpointing`)."""
    runs: ClassVar[bool] = True
    """Whether its forward pass is modelled; else only its parameters are."""
    sees: ClassVar[bool] = False
    """Whether it is a language model that gets images through a tower."""
    hears: ClassVar[bool] = False
    """Whether it is one that gets sound through a tower."""
    listens: ClassVar[bool] = False
    """Whether it is given samples of sound, and no text."""
    can: ClassVar[Abilities] = Abilities()
    """What else is modelled of it. It is said of each family, and not inherited."""

    flash_3: ClassVar[bool] = True
    """Whether FlashAttention's third release is known to run where the second does."""
    by_position: ClassVar[frozenset[int]] = FIRST
    """Which tensors layers get by position, not in a tuple: an offloaded checkpoint takes these to the host, and one with
    re-entrance saves them."""
    unasked_embeddings: ClassVar[bool] = False
    """Whether a stack begins with embeddings that transformers does not make require gradients where all else is frozen."""
    differentiated_once: ClassVar[bool] = False
    """Whether layers share a tensor that wants a gradient, which checkpoints with re-entrance would differentiate for each."""
    adds_in_place: ClassVar[bool] = False
    """Whether it writes into what a linear module returned."""
    own_products: ClassVar[bool] = False
    """Whether linear layers are no torch.nn.Linear (Conv1D), or it multiplies their weights itself."""
    scales_activations: ClassVar[bool] = False
    """Whether AWQ scales its activations (transformers, integrations/awq.py, `AWQ_SCALES_MAPPINGS`)."""
    input_first: ClassVar[tuple[str, ...]] = ()
    """Weights that transformers has as [.., in, out]: parts of their names."""
    last_vllm: ClassVar[str | None] = None
    """The last release of vLLM that runs it, "none" where none does; None where all of those do that are modelled."""
    staged: ClassVar[bool] = True
    """Whether vLLM runs it in a pipeline (`SupportsPP` of its model)."""
    float32_router: ClassVar[bool] = False
    """Whether vLLM holds what chooses experts in float32 (`params_dtype` of its model's gate)."""
    held_in_float32: ClassVar[tuple[str, ...]] = ()
    """Parts of the names of parameters that servers hold in float32."""
    ears: ClassVar[tuple[str, ...]] = ()
    """The paths of what hears, in the whole model."""
    whole_ears: ClassVar[bool] = False
    """Whether vLLM has the layers of what hears on every rank, as transformers' modules."""
    seen_whole_in_vllm: ClassVar[tuple[str, ...]] = ()
    """Of what sees, parts of the names of what vLLM has on every rank (`torch.nn.Linear`, `ReplicatedLinear`); ("",) where that
    is all of it, as transformers' modules."""
    ears_in_float32: ClassVar[tuple[str, ...]] = ()
    """Of what hears, parts of the names of parameters that vLLM holds in float32."""
    indexers_turn_alike: ClassVar[bool] = False
    """Whether an indexer turns its keys in the order that attention does, so that servers have one table for both."""
    heads_normed_together: ClassVar[Literal["reduced", "gathered"] | None] = None
    """How tensor-parallel ranks of a server normalise queries and keys over all heads, of which each has a part: they sum squares
    (vllm/model_executor/layers/mamba/linear_attn.py, `MiniMaxText01RMSNormTP`), or gather both (models/olmo2.py, olmoe.py)."""
    embeds: ClassVar[bool] = False
    """Whether it gives vectors and writes no text, and vLLM's pooling runner serves it (its models/registry.py)."""
    why_not_vllm: ClassVar[str] = ""
    """Why vLLM does not run it, where it is not that no release has an implementation."""
    whole_ears_in_sglang: ClassVar[bool] = False
    """Whether SGLang 0.5.23 has those layers on every rank."""
    in_sglang: ClassVar[Literal["own", "transformers", "none", "not read"]] = "own"
    """Whether SGLang 0.5.23 has an implementation of its own of it (sglang/srt/models), runs transformers' modules with its own
    attention (models/transformers.py), or neither; "not read": it has none of its own, and whether it runs those is not known."""
    why_not_sglang: ClassVar[str] = "transformers' implementation takes no attention of a server's"
    """Why it runs none, where it has none (`_supports_attention_backend` of transformers)."""
    pooled_in_sglang: ClassVar[bool] = False
    """Whether SGLang has an encoder of its own of it that gives vectors, with a pool as for a decoder (sglang/srt/models/bert.py,
    roberta.py)."""
    unplanned: ClassVar[tuple[str, ...]] = ()
    """Parts of names of linear layers that transformers' plan of tensor parallelism leaves whole."""
    images_in_sglang: ClassVar[Literal["read", "unread", "left out"]] = "read"
    """What SGLang does with images unasked: it reads them, or it does not (configs/model_config.py, `mm_disabled_models`), with
    the tower in memory or left out."""
    captured_in_sglang: ClassVar[bool] = False
    """Whether SGLang 0.5.23 captures passes over prompts though it sees
    (`multimodal_breakable_cuda_graph_supported_model_archs`)."""
    window_pool: ClassVar[str | None] = None
    """The release of SGLang since which its layers with a window have a pool of their own; None where they keep all tokens
    (sglang/srt/configs/model_config.py, `is_hybrid_swa_model`)."""
    stretched: ClassVar[int] = 1
    """By how much rotary positions are stretched in layers that see everything, where others are not."""
    parts_in_sglang: ClassVar[bool] = False
    """Whether SGLang 0.5.23 can divide its attention among a part of the ranks (models/*.py: `parallel_group="attn_tp"`)."""
    unrotated: ClassVar[bool] = False
    """Whether nothing is rotated, so that servers hold no tables of rotations."""
    module_dropouts: ClassVar[tuple[str, ...]] = ()
    """The architecture's dropouts that are modules, other than those that are modules in every model."""
    without_lora: ClassVar[tuple[str, ...]] = ()
    """Names of linear layers on which PEFT puts no LoRA, though it takes all (tuners/tuners_utils.py,
    `_check_lora_target_modules_mamba`), or on which none works."""
    lora_by_name: ClassVar[tuple[str, ...]] = ()
    """Names of linear layers to adapt where PEFT refuses to take all, or fails with one; empty where it takes them."""
    held_in: ClassVar[Mapping[str, str]] = {}
    """The parameter that holds what a linear layer of a name held before transformers 5."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "can" not in cls.__dict__:
            cls.can = Abilities()

    model_type: str
    hidden_size: Size
    num_hidden_layers: Depth
    max_position_embeddings: Size | None = None
    """Its positions; None where nothing limits them."""

    @classmethod
    def misfit(cls, given: Mapping[str, Any]) -> str:
        """Which setting of a config has a value that the family has no model of, as a sentence; empty where none has."""
        kind = given["model_type"]
        for name, values in cls.modelled.items():
            if name in given and given[name] not in values:
                return f"{name} {given[name]!r} is not modelled for {kind} yet; {' and '.join(map(repr, values))} is"
        return ""

    @classmethod
    def beyond(cls, given: Mapping[str, Any]) -> str:
        """What a config of the family's type has that it has no model of, so that torch counts the whole model; empty where
        nothing is, and where layers are left out at random, of which one count says nothing."""
        return "" if given.get("layerdrop") else cls.misfit(given)

    @property
    def depth(self) -> int:
        """Layers of all stacks."""
        return self.num_hidden_layers

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return any("expert" in field for field in type(self.language_model).model_fields)

    @property
    def forward_modelled(self) -> bool:
        """Whether the forward pass of this architecture is modelled, of the parts that it has."""
        return self.runs

    def image_tokens(self, images: Images) -> int | None:
        """Tokens of an image of so many pixels, as its processor makes them; None where it reads none, or that is not known."""
        return None

    def audio_tokens(self, audio: Audio) -> int | None:
        """Tokens of a clip of so many seconds, likewise."""
        return None

    @property
    def refusal(self) -> str:
        """What to say to a job that would run it, where it does not."""
        return f"the forward pass of {self.model_type} models is not modelled yet, only their parameters are"

    @property
    def instead(self) -> str:
        """Which model or task to write in the job instead; nothing where there is nothing near."""
        return ""

    @property
    def longest_sequence(self) -> int | None:
        """Tokens of a sequence that the model was made for; None where nothing limits them."""
        return self.max_position_embeddings

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        """What may be left out because it follows from the width and the number of heads."""
        return {}

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        found = {name: given.get(name, given.get(field.alias or name)) for name, field in cls.model_fields.items()}
        hidden, heads = found.get("hidden_size"), found.get("num_attention_heads", 1)
        if not (isinstance(hidden, int) and isinstance(heads, int) and heads > 0):
            return given
        missing = {name: value for name, value in cls.follows(hidden, heads).items() if found[name] is None}
        aliases = {cls.model_fields[name].alias for name in missing}
        return {name: value for name, value in given.items() if name not in aliases} | missing

    @model_validator(mode="before")
    @classmethod
    def _one_name(cls, given: Any) -> Any:
        """Drop one of two names for one setting, which must agree: some config.json have both (`attribute_map`)."""
        if not isinstance(given, Mapping):
            return given
        aliases = {name: field.alias for name, field in cls.model_fields.items() if field.alias not in (None, name)}
        twice = [(name, alias) for name, alias in aliases.items() if alias and name in given and alias in given]
        for name, alias in twice:
            if None not in (given[name], given[alias]) and given[name] != given[alias]:
                raise ValueError(f"{name} {given[name]!r} and {alias} {given[alias]!r} are one setting, and differ")
        spare = {alias if given[alias] is None else name for name, alias in twice}
        return {name: value for name, value in given.items() if name not in spare}

    @property
    def cached_per_token(self) -> int | None:
        """Numbers that one token adds to the cache of keys and values; None where there is no such cache."""
        return None

    @property
    def language_model(self) -> ModelSpec:
        """The part of it that reads and writes texts: here all of it."""
        return self

    @property
    def idle_experts(self) -> int:
        """Experts that compute nothing, of which transformers holds the gates all the same and servers do not."""
        return 0

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        """What each layer keeps of a sequence that an engine serves; nothing for a model that generates none."""
        return ()

    @property
    def cache_places(self) -> tuple[int, ...]:
        """The layer that each of `cache_layers` is in."""
        return tuple(range(len(self.cache_layers)))

    @property
    def idle_in_sglang(self) -> int:
        """Layers for which SGLang has room in its pool though they keep nothing."""
        return 0

    @property
    def served_tables(self) -> tuple[int, ...] | None:
        """Bytes of the tables that servers hold beside its parameters; None: what follows from its rotary positions."""
        return None

    @property
    def encodes(self) -> bool:
        """Whether its tokens see each other in both directions: an engine gets vectors of it, and keeps no cache."""
        return self.embeds

    @property
    def picture(self) -> Picture | None:
        """The largest image that it reads; None for a model of texts, and where it is not known."""
        return None

    def clip(self, context: int) -> Picture | None:
        """The longest clip that it reads, whose language model is served with so long a `context`; None for one that sees, too,
        of which an image is more, for a model of texts, and where it is not known."""
        return None

    @property
    def float32_tables(self) -> int:
        """Numbers that what hears keeps in float32 beside its parameters."""
        return 0

    @property
    def kept_inputs(self) -> int:
        """Numbers of each token of a pass for which vLLM keeps room beside parameters: the layers' own inputs of a model that
        sees (its models/gemma4_mm.py, `per_layer_embeddings`)."""
        return 0

    @property
    def most_targets(self) -> int | None:
        """Tokens that an encoder-decoder can write at most; None where nothing limits them."""
        return None

    @classmethod
    def keys(cls) -> set[str]:
        """Every key that a spec of this family may have."""
        return set(cls.model_fields) | {field.alias for field in cls.model_fields.values() if field.alias}

    def config(self) -> dict[str, Any]:
        """The spec under the names of transformers' config."""
        return self.model_dump(mode="json", by_alias=True)


class DecoderSpec(ModelSpec):
    """A decoder of attention and feed-forward layers. Without `num_key_value_heads` every head has keys of its own."""

    cached: ClassVar[bool] = False
    """Whether every layer keeps the keys and values of all its heads, and nothing else: what serving has a model of."""
    tensor_parallel: ClassVar[bool] = False
    """Whether heads, feed-forward layers and vocabulary split over ranks: what tensor parallelism has a model of."""
    repeats_heads: ClassVar[bool] = False
    """Whether transformers before 4.48 repeated its key heads for FlashAttention too."""

    intermediate_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    vocab_size: Size
    max_position_embeddings: Size | None = 2048
    hidden_act: Activation = "silu"
    tie_word_embeddings: bool = False
    attention_dropout: Probability = 0.0

    @property
    def window(self) -> int | None:
        """Tokens that attention looks back in every layer; None: all."""
        return None

    @property
    def cached_per_token(self) -> int | None:
        """Keys and values in every layer, as long as no sliding window is full: 2 x layers x key heads x head size."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim

    @property
    def cache_layers(self) -> tuple[CacheLayer, ...]:
        return (attention(self.num_key_value_heads, self.head_dim, self.window),) * self.num_hidden_layers

    @property
    def output_size(self) -> int:
        """Width of the hidden states that the output layer gets."""
        return self.hidden_size

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return {"num_key_value_heads": heads, "head_dim": hidden // heads}

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        return self


class RotaryDecoderSpec(DecoderSpec):
    """A decoder with rotary position embeddings."""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd: rotary embeddings need pairs")
        return self


class FullHeadsSpec(DecoderSpec):
    """A decoder whose heads are together as wide as the model, each with keys of its own unless `key_heads` says otherwise.

    Without `intermediate_size` its feed-forward layers are four times as wide.
    """

    @property
    def key_heads(self) -> int:
        """How many heads have keys of their own."""
        return self.num_attention_heads

    @classmethod
    def follows(cls, hidden: int, heads: int) -> dict[str, int]:
        return super().follows(hidden, heads) | {"intermediate_size": 4 * hidden}

    @model_validator(mode="after")
    def _whole(self) -> FullHeadsSpec:
        if self.head_dim * self.num_attention_heads != self.hidden_size:
            raise ValueError(f"hidden_size {self.hidden_size} is not head_dim {self.head_dim} x {self.num_attention_heads} heads")
        if self.num_key_value_heads != self.key_heads:
            raise ValueError(f"num_key_value_heads {self.num_key_value_heads} should be {self.key_heads}")
        return self
