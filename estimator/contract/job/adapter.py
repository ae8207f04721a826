"""Adapters: small trainable parts added to a frozen model. Each method is a class with the keys that it has; `type` says
which."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from estimator.contract.job.part import Count, Part
from estimator.contract.patterns import understood

Rank = Annotated[int, Field(ge=1, le=65536)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
Type = Literal["bf16", "fp16", "fp32"]
Chosen = Annotated[list[Annotated[int, Field(ge=0, lt=2**20)]], Field(min_length=1)]
Alpha = Annotated[float, Field(gt=0, le=2**20)]
Init = Literal["gaussian", "pissa", "olora", "loftq", "eva", "corda", "orthogonal"]


def _some(targets: str | list[str]) -> str | list[str]:
    if not targets:
        raise ValueError("is empty: name at least one layer, or write all-linear")
    return targets


def _pattern(given: str) -> str:
    try:
        return understood(given)
    except ValueError as error:
        raise ValueError(f"is no regular expression that is understood: {error}") from None


ALL_LINEAR: Final = "all-linear"
Pattern = Annotated[str, AfterValidator(_pattern)]
Targets = Annotated[
    Pattern | list[str],
    Field(description="names of the adapted layers, a pattern that fits their whole names, or all-linear"),
    AfterValidator(_some),
]


class LowRank(Part):
    """A method that adds trainable matrices of a low rank to linear layers."""

    type: str
    rank: Rank = 16
    targets: Targets = ALL_LINEAR
    dtype: Type = "bf16"
    dropout: Dropout = 0.0
    layers: Chosen | None = Field(None, description="numbers of the adapted layers, from 0 on; without it, all")
    modules_to_save: list[Pattern] = Field([], description="names of modules of which a copy is trained as a whole")


class Lora(LowRank):
    """LoRA: small trainable matrices added to frozen linear layers."""

    type: Literal["lora"] = "lora"
    exclude: Pattern | list[str] | None = Field(None, description="names of layers that are not adapted, or a pattern")
    bias: Literal["none", "all", "lora_only"] = Field("none", description="which of the model's own biases are trained, too")
    alpha: Alpha | None = Field(None, description="what the update is multiplied by, times the rank; no byte depends on it")
    rslora: bool = Field(False, description="divide alpha by the rank's root instead; no byte depends on it")
    init: Init | None = Field(None, description="how the matrices begin; no byte of a step depends on it")


class Dora(LowRank):
    """DoRA: LoRA whose sum with the frozen weight is scaled to a trained length for each output."""

    type: Literal["dora"]
    exclude: Pattern | list[str] | None = Field(None, description="names of layers that are not adapted, or a pattern")
    bias: Literal["none", "all", "lora_only"] = Field("none", description="which of the model's own biases are trained, too")
    alpha: Alpha | None = Field(None, description="what the update is multiplied by, times the rank; no byte depends on it")
    rslora: bool = Field(False, description="divide alpha by the rank's root instead; no byte depends on it")


class AdaLora(LowRank):
    """AdaLoRA: matrices whose product has trained singular values; `rank` is the one to begin with (PEFT's `init_r`)."""

    type: Literal["adalora"]
    rank: Rank = 12
    exclude: Pattern | list[str] | None = Field(None, description="names of layers that are not adapted, or a pattern")
    bias: Literal["none", "all", "lora_only"] = Field("none", description="which of the model's own biases are trained, too")


class OnLayers(Part):
    """A method for linear layers that drops nothing out."""

    type: str
    targets: Targets = ALL_LINEAR
    dtype: Type = "bf16"
    exclude: Pattern | list[str] | None = Field(None, description="names of layers that are not adapted, or a pattern")
    layers: Chosen | None = Field(None, description="numbers of the adapted layers, from 0 on; without it, all")
    modules_to_save: list[Pattern] = Field([], description="names of modules of which a copy is trained as a whole")


class LoHa(OnLayers):
    """LoHa: a second weight for each layer, the product, number by number, of two matrices of a low rank."""

    type: Literal["loha"]
    rank: Rank = 8


class LoKr(LoHa):
    """LoKr: a second weight for each layer, the Kronecker product of a small matrix and one of a low rank."""

    type: Literal["lokr"]  # type: ignore[assignment]


class Vera(LowRank):
    """VeRA: two frozen random matrices that all layers share, and two trained vectors for each layer."""

    type: Literal["vera"]
    rank: Rank = 256
    bias: Literal["none", "all", "vera_only"] = Field("none", description="which of the model's own biases are trained, too")


class Ia3(Part):
    """IA³: a trained vector that the output of a layer is multiplied by, or the input of a feed-forward layer."""

    type: Literal["ia3"]
    targets: Targets = ALL_LINEAR
    feedforward: list[str] = Field([], description="those of the targets whose input is multiplied instead")
    dtype: Type = "bf16"
    exclude: Pattern | list[str] | None = Field(None, description="names of layers that are not adapted, or a pattern")
    modules_to_save: list[Pattern] = Field([], description="names of modules of which a copy is trained as a whole")

    @model_validator(mode="after")
    def _among_the_targets(self) -> Self:
        strange = [] if isinstance(self.targets, str) else [name for name in self.feedforward if name not in self.targets]
        if strange:
            raise ValueError(f"feedforward {', '.join(strange)} is not among the targets")
        return self


class Oft(OnLayers):
    """OFT: a matrix of square blocks on the diagonal; where the inputs do not divide, PEFT takes the nearest number that does."""

    type: Literal["oft"]
    block_size: Count | None = Field(None, description="rows of a block; without it and blocks, 32")
    blocks: Count | None = Field(None, description="how many blocks instead (PEFT's r)")
    shared: bool = Field(False, description="all blocks of a layer are the same (block_share)")
    neumann: bool = Field(True, description="blocks by a sum of powers (use_cayley_neumann); false: by solving equations")
    bias: Literal["none", "all", "oft_only"] = Field("none", description="which of the model's own biases are trained, too")

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.block_size is not None and self.blocks is not None:
            raise ValueError("block_size times blocks is a layer's inputs: give one of them")
        return self


class Boft(OnLayers):
    """BOFT: OFT's blocks and a factor for each output, as PEFT runs it without its CUDA extension: one factor of a butterfly."""

    type: Literal["boft"]
    block_size: Count = Field(4, description="rows of a block, which divides the inputs of each adapted layer")
    bias: Literal["none", "all", "boft_only"] = Field("none", description="which of the model's own biases are trained, too")


class PromptLearning(Part):
    """A method that trains vectors which every sequence begins with, in each layer or before the first."""

    type: str
    virtual_tokens: Annotated[int, Field(ge=1, le=2**16)] = Field(20, description="how many vectors, each like a token's")
    dtype: Type = "fp32"


class PromptTuning(PromptLearning):
    """Prompt tuning: vectors before the embeddings of the sequence."""

    type: Literal["prompt-tuning"]


class PTuning(PromptLearning):
    """P-tuning: vectors before the embeddings of the sequence, made by a small network from vectors of its own."""

    type: Literal["p-tuning"]
    encoder: Literal["mlp", "lstm"] = "mlp"
    hidden: Count | None = Field(None, description="width of the network; without it, the model's")


class PrefixTuning(PromptLearning):
    """Prefix tuning: keys and values that the tokens of every layer look back on."""

    type: Literal["prefix-tuning"]
    projection: bool = Field(False, description="they are made by a small network from vectors of its own")
    hidden: Count | None = Field(None, description="width of the network; without it, that of a layer's keys")


BOTTLENECKS: dict[str, dict[str, Any]] = {
    "seq_bn": {},
    "double_seq_bn": {"original_ln_before": False, "mh_adapter": True, "non_linearity": "swish"},
    "par_bn": {"original_ln_before": False, "reduction_factor": 2, "is_parallel": True, "scaling": 4.0},
    "scaled_par_bn": {"original_ln_before": False, "reduction_factor": 2, "is_parallel": True, "scaling": "learned"},
}
"""What AdapterHub's named configurations change of the first, `seq_bn` (adapters 1.3, configuration/adapter_config.py)."""


class Bottleneck(Part):
    """Bottleneck adapters: two small layers after a block of each layer, or parallel to it. The keys are AdapterHub's."""

    type: Literal["bottleneck"]
    config: Literal["seq_bn", "double_seq_bn", "par_bn", "scaled_par_bn"] = Field(
        "seq_bn", description="what the other keys begin with: Pfeiffer's, Houlsby's, parallel, parallel with a learned scale"
    )
    mh_adapter: bool = Field(False, description="one after the attention of each layer")
    output_adapter: bool = Field(True, description="one after the feed-forward block of each layer")
    reduction_factor: Annotated[float, Field(ge=2**-10, le=2**20)] = Field(16, description="hidden size over the width between")
    non_linearity: Literal["relu", "swish", "gelu", "gelu_new", "tanh"] = "relu"
    original_ln_before: bool = Field(True, description="add the block's input, and norm, before the adapter")
    original_ln_after: bool = Field(True, description="add the block's input, and norm, after the adapter")
    ln_before: bool = Field(False, description="a norm of its own before the two layers")
    ln_after: bool = Field(False, description="a norm of its own after the two layers")
    residual_before_ln: Literal[True, False, "post_add"] = Field(
        True,
        description="what is added to the two layers' output: the block's output, that and its input (post_add), or the norm",
    )
    adapter_residual_before_ln: bool = Field(False, description="add that before the adapter's own norm (ln_after)")
    is_parallel: bool = Field(False, description="the adapter reads the block's input instead of its output")
    scaling: Annotated[float, Field(gt=0, le=2**20)] | Literal["learned", "channel"] = Field(
        1.0, description="what the output is multiplied by: a number, a trained one, or a trained one for each channel"
    )
    dropout: Dropout = 0.0
    leave_out: list[Annotated[int, Field(ge=0, lt=2**20)]] = Field([], description="numbers of the layers without adapters")
    dtype: Type | None = Field(None, description="without it, that of the model's weights")

    @model_validator(mode="before")
    @classmethod
    def _begun(cls, given: Any) -> Any:
        named = given.get("config", "seq_bn") if isinstance(given, dict) else None
        return {**BOTTLENECKS[named], **given} if isinstance(named, str) and named in BOTTLENECKS else given

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if not (self.mh_adapter or self.output_adapter):
            raise ValueError("has no place: set mh_adapter or output_adapter")
        return self


def _type(given: Any) -> str:
    """The method that a mapping names, as `branch` writes it; lora, where it names none."""
    name = given.get("type", "lora") if isinstance(given, dict) else getattr(given, "type", "lora")
    return branch(name)


def branch(method: object) -> str:
    """What pydantic calls a method in the place of an error, which `estimator.contract.validation` leaves out of what it says."""
    return f"type[{method}]"


OnWeights = Lora | Dora | AdaLora | Vera | Ia3 | LoHa | LoKr | Oft | Boft
"""A method that changes what layers compute with their weights."""
Adapter = Annotated[
    Annotated[Lora, Tag(branch("lora"))]
    | Annotated[Dora, Tag(branch("dora"))]
    | Annotated[AdaLora, Tag(branch("adalora"))]
    | Annotated[Vera, Tag(branch("vera"))]
    | Annotated[Ia3, Tag(branch("ia3"))]
    | Annotated[LoHa, Tag(branch("loha"))]
    | Annotated[LoKr, Tag(branch("lokr"))]
    | Annotated[Oft, Tag(branch("oft"))]
    | Annotated[Boft, Tag(branch("boft"))]
    | Annotated[Bottleneck, Tag(branch("bottleneck"))]
    | Annotated[PromptTuning, Tag(branch("prompt-tuning"))]
    | Annotated[PTuning, Tag(branch("p-tuning"))]
    | Annotated[PrefixTuning, Tag(branch("prefix-tuning"))],
    Discriminator(_type),
]
"""Any method of parameter-efficient training, told by its `type`."""
