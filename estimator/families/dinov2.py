"""DINOv2: ViT with a factor for what each block adds, and its feed-forward layers gated in the largest.

After transformers' modeling_dinov2.py and modeling_dinov2_with_registers.py (5.23). Images are of the size that the model has
positions for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.families import vit
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.feed_forward import TwoLayerMLP
from estimator.families.heads import Batch
from estimator.families.model_output import Held
from estimator.families.modules import ACTIVATIONS, Module
from estimator.families.spec import Depth, Probability, Size
from estimator.families.towers import Side, SquareTowerSpec
from estimator.tape import dtypes
from estimator.tape.dtypes import DType
from estimator.tape.loss import cross_entropy
from estimator.tape.pointwise import add, mul
from estimator.tape.reduction import mean
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import cat, narrow, select


class Dinov2Spec(SquareTowerSpec):
    """`mlp_ratio`: how much wider the feed-forward layers are; gated ones are two thirds of that, rounded up to 8."""

    last_vllm = "none"
    why_not_vllm = "its registry has no model that reads images alone"

    runs = True
    modelled = {"drop_path_rate": (0,)}

    hidden_size: Size = 768
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 12
    mlp_ratio: Size = 4
    patch_size: Side = 14
    qkv_bias: bool = True
    use_swiglu_ffn: bool = False
    use_mask_token: bool = True
    hidden_dropout_prob: Probability = 0.0
    attention_probs_dropout_prob: Probability = 0.0

    @property
    def registers(self) -> int:
        """Tokens that have no place in the image."""
        return 0

    @property
    def longest_sequence(self) -> int:
        """An image's patches, its registers, and one token for its class."""
        return self.patches + self.registers + 1

    @property
    def intermediate_size(self) -> int:
        """Width of the feed-forward layers."""
        width = self.hidden_size * self.mlp_ratio
        return -(-(2 * width // 3) // 8) * 8 if self.use_swiglu_ffn else width

    @property
    def vit(self) -> vit.ViTSpec:
        """The ViT of its sizes."""
        common = {name: getattr(self, name) for name in vit.ViTSpec.model_fields if hasattr(self, name)}
        return vit.ViTSpec.model_validate(common)


class Dinov2WithRegistersSpec(Dinov2Spec):
    modelled = {"drop_path_rate": (0,), "use_mask_token": (True,)}

    patch_size: Side = 16
    num_register_tokens: Size = 4

    @property
    def registers(self) -> int:
        return self.num_register_tokens

    def config(self) -> dict[str, Any]:
        return {key: value for key, value in super().config().items() if key != "use_mask_token"}


SPECS: dict[str, type[Dinov2Spec]] = {"dinov2": Dinov2Spec, "dinov2_with_registers": Dinov2WithRegistersSpec}


class SelfAttention(vit.SelfAttention):
    """ViT's attention, but its softmax is given no type, where ViT's is given float32."""

    def __init__(self, spec: vit.ViTSpec, build: Builder):
        super().__init__(spec, build)
        self.attend = Attention(build.attention, False, spec.attention_probs_dropout_prob, cast_back=False, causal=False)


class GatedMLP:
    def __init__(self, spec: Dinov2Spec, build: Builder):
        self.activation = ACTIVATIONS["silu"]
        self.gate_proj = build.linear("mlp.gate_proj", spec.hidden_size, spec.intermediate_size, True)
        self.up_proj = build.linear("mlp.up_proj", spec.hidden_size, spec.intermediate_size, True)
        self.down_proj = build.linear("mlp.down_proj", spec.intermediate_size, spec.hidden_size, True)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(mul(self.activation(self.gate_proj(x)), self.up_proj(x)))


class Layer:
    """Attention and a feed-forward layer, each after a norm and scaled. `attention` and `mlp` make them, in turn."""

    def __init__(self, size: int, attention: Callable[[], Any], mlp: Callable[[], Module], build: Builder):
        self.norm1 = build.layer_norm("norm1", size)
        self.attention = attention()
        self.layer_scale1 = build.parameter("layer_scale1.lambda1", (size,))
        self.norm2 = build.layer_norm("norm2", size)
        self.mlp = mlp()
        self.layer_scale2 = build.parameter("layer_scale2.lambda1", (size,))

    def __call__(self, hidden: Tensor, *turns: Tensor) -> Tensor:
        """`turns`: what rotates queries and keys, where anything does."""
        residual = hidden
        out = self.norm1(hidden)
        out, _ = self.attention(out, *turns)
        out = mul(out, self.layer_scale1)
        out = add(out, residual)
        residual = out
        out = self.norm2(out)
        out = self.mlp(out)
        out = mul(out, self.layer_scale2)
        return add(out, residual)


def _layer(spec: Dinov2Spec, build: Builder) -> Layer:
    def mlp() -> Module:
        return GatedMLP(spec, build) if spec.use_swiglu_ffn else TwoLayerMLP(spec.vit, build, ("fc1", "fc2"), bias=True)

    return Layer(spec.hidden_size, lambda: SelfAttention(spec.vit, build), mlp, build)


class Dinov2:
    """The body of the model."""

    def __init__(self, spec: Dinov2Spec, build: Builder):
        self.embeddings = vit.Embeddings(spec.vit, build, spec.use_mask_token, spec.registers)
        self.layers = build.layers(spec.num_hidden_layers, lambda _: _layer(spec, build))
        self.layernorm = build.layer_norm("layernorm", spec.hidden_size)

    def forward(self, pixels: Tensor) -> Tensor:
        embedded = self.embeddings(pixels)
        hidden = embedded
        for layer in self.layers:
            hidden = layer(hidden)
        return self.layernorm(hidden)


class ImageClassification:
    """A linear layer on the class token joined with the mean of the patches (`Dinov2ForImageClassification`,
    `Dinov2WithRegistersForImageClassification`)."""

    def __init__(self, spec: Dinov2Spec, build: Builder):
        self.spec = spec
        self.dinov2 = Dinov2(spec, build)
        self.classifier = build.linear("classifier", 2 * spec.hidden_size, build.labels, True, quantized=False)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        size = self.spec.image_size
        pixels = empty(tape, (batch.sequences, self.spec.num_channels, size, size), dtype, "pixel_values")
        return pixels, empty(tape, (batch.sequences,), dtypes.int64, "labels")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        pixels, labels = inputs
        sequence = self.dinov2.forward(pixels)
        with pixels.tape.losing():
            cls_token = select(sequence, 1)
            patches = narrow(sequence, 1, self.spec.patches)
            joined = cat((cls_token, mean(patches, 1)), 1)
            logits = self.classifier(joined)
            loss = cross_entropy(logits, labels)
        return loss, logits


HEADS = {"image-classification": ImageClassification}
