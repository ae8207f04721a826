"""Decoders of the Llama kind: Llama, Mistral, Qwen2, Qwen3.

They differ in where linear layers have biases, whether queries and keys are normalised, and in the sliding window.
After transformers' modeling_llama.py, modeling_mistral.py, modeling_qwen2.py and modeling_qwen3.py (5.23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from estimator.families.abilities import BATCHES, Abilities
from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.decoder_layers import PreNorm
from estimator.families.feed_forward import GatedMLP
from estimator.families.grouped_query import GroupedQueryAttention, Rotate
from estimator.families.heads import decoder_heads
from estimator.families.modules import Join, Module
from estimator.families.rotary import frequencies
from estimator.families.spec import RotaryDecoderSpec, Size
from estimator.tape.tensor import Tensor


class _Spec(RotaryDecoderSpec):
    """What the kinds have in common."""

    cached = tensor_parallel = True
    implementations: ClassVar[tuple[str, ...]] = ("transformers", "liger")
    qk_norm: ClassVar[bool] = False
    """Whether queries and keys are normalised, head by head."""

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        """Whether there are biases for queries, keys and values; in attention's output layer; in the feed-forward layers."""
        return False, False, False


class LlamaSpec(_Spec):
    can = Abilities(
        batches=BATCHES,
        prompts=True,
        returns_cache=True,
        ppo=True,
        bottleneck="pre-norm",
        tensor=True,
        megatron="dense",
        gguf=True,
        graph="plain",
    )
    implementations: ClassVar[tuple[str, ...]] = ("transformers", "fast-kernels", "liger", "torchtitan")

    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        return self.attention_bias, self.attention_bias, self.mlp_bias


class MistralSpec(_Spec):
    can = Abilities(
        batches=BATCHES,
        prompts=True,
        bottleneck="pre-norm",
        tensor=True,
        megatron="dense",
        gguf=True,
        graph="plain",
    )
    implementations = ("transformers", "fast-kernels", "liger")
    repeats_heads = True

    sliding_window: Size | None = 4096

    @property
    def window(self) -> int | None:
        return self.sliding_window


class Qwen2Spec(_Spec):
    can = Abilities(batches=BATCHES, prompts=True, ppo=True, tensor=True, megatron="dense", gguf=True, graph="biased")
    repeats_heads = True
    modelled = {"use_sliding_window": (False,)}

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        return True, False, False


class Qwen3Spec(_Spec):
    can = Abilities(batches=BATCHES, prompts=True, tensor=True, megatron="dense", gguf=True, graph="plain")
    modelled = {"use_sliding_window": (False,)}
    qk_norm = True

    attention_bias: bool = False

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        return self.attention_bias, self.attention_bias, False


SPECS = {"llama": LlamaSpec, "mistral": MistralSpec, "qwen2": Qwen2Spec, "qwen3": Qwen3Spec}


class LlamaRotary(Rotary):
    """Before transformers 5 it had one table of frequencies."""

    def buffers(self, build: Builder) -> list[Tensor]:
        return super().buffers(build) if build.kernels.release == "5" else frequencies(build, self.size, ("inv_freq",))


def self_attention(spec: _Spec, build: Builder, rotate: Rotate | None = None) -> GroupedQueryAttention:
    """Grouped heads, with the biases and the norms that the spec says."""
    bias, output_bias, _ = spec.biases
    norm = (lambda which, _: build.rms_norm(f"self_attn.{which}_norm", spec.head_dim)) if spec.qk_norm else None
    return GroupedQueryAttention(spec, build, bias, output_bias, norm=norm, rotate=rotate)


def decoder_layer(
    spec: _Spec,
    build: Builder,
    mlp: Callable[[Any, Builder], Module] | None = None,
    rotate: Rotate | None = None,
    join: Join | None = None,
) -> PreNorm:
    """A layer; `mlp` makes what it has in the place of its feed-forward layer."""
    attention = self_attention(spec, build, rotate)
    return PreNorm(spec, build, attention, mlp(spec, build) if mlp else GatedMLP(spec, build, bias=spec.biases[2]), join=join)


def llama(spec: _Spec, build: Builder) -> Decoder:
    """The body of the model."""
    return Decoder(spec, build, lambda _: decoder_layer(spec, build), rotary=LlamaRotary(spec.head_dim))


HEADS = decoder_heads(llama)
