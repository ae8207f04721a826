"""What a configuration of wav2vec 2.0 or HuBERT says, and the frames that follows from it.

After transformers' configuration_wav2vec2.py and configuration_hubert.py (5.23).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from estimator.contract.job.audio import Audio
from estimator.families.spec import Activation, Depth, ModelSpec, Probability, Size


class Wav2Vec2Spec(ModelSpec):
    """What a configuration leaves out has transformers' defaults. `conv_*`: the convolutions over samples, one after another."""

    modelled = {
        "add_adapter": (False,),
        "use_weighted_layer_sum": (False,),
        "mask_feature_prob": (0, 0.0),
        "conv_pos_batch_norm": (False,),
    }
    listens = True
    last_vllm = "none"
    why_not_vllm = "its registry has no model that writes down what it hears frame by frame"
    in_sglang = "none"
    why_not_sglang = "it has no model that writes down what it hears frame by frame"
    returns_features: ClassVar[bool] = True
    """Whether the model returns the norm of its convolutions' output; else it holds that output until it returns."""

    hidden_size: Size = 768
    num_hidden_layers: Depth = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    vocab_size: Size = 32
    hidden_act: Activation = "gelu"
    hidden_dropout: Probability = 0.1
    activation_dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    feat_proj_dropout: Probability = 0.0
    final_dropout: Probability = 0.1
    layerdrop: Probability = 0.1
    feat_extract_norm: Literal["group", "layer"] = "group"
    feat_extract_activation: Activation = "gelu"
    conv_dim: tuple[Size, ...] = (512,) * 7
    conv_stride: tuple[Size, ...] = (5, 2, 2, 2, 2, 2, 2)
    conv_kernel: tuple[Size, ...] = (10, 3, 3, 3, 3, 2, 2)
    conv_bias: bool = False
    num_conv_pos_embeddings: Size = 128
    num_conv_pos_embedding_groups: Size = 16
    do_stable_layer_norm: bool = False
    apply_spec_augment: bool = True
    mask_time_prob: Probability = 0.05
    mask_time_length: Size = 10
    mask_time_min_masks: int = 2
    ctc_loss_reduction: Literal["sum", "mean"] = "sum"
    ctc_zero_infinity: bool = False
    classifier_proj_size: Size = 256
    adapter_attn_dim: Size | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} heads")
        if not 1 <= len(self.conv_dim) == len(self.conv_stride) == len(self.conv_kernel) <= 64:
            raise ValueError("conv_dim, conv_stride and conv_kernel say one number of each convolution, of 64 at most")
        if self.hidden_size % self.num_conv_pos_embedding_groups:
            raise ValueError(f"hidden_size {self.hidden_size} has no {self.num_conv_pos_embedding_groups} groups of one size")
        return self

    @property
    def depth(self) -> int:
        return len(self.conv_dim) + self.num_hidden_layers

    def config(self) -> dict[str, Any]:
        """With no layer left out."""
        return {**self.model_dump(mode="json", exclude={"max_position_embeddings"}), "layerdrop": 0.0}

    def frames(self, samples: int) -> int:
        """What the convolutions make of so many samples (`_get_feat_extract_output_lengths`)."""
        for kernel, stride in zip(self.conv_kernel, self.conv_stride, strict=True):
            samples = (samples - kernel) // stride + 1 if samples >= kernel else 0
        return samples

    def audio_tokens(self, audio: Audio) -> int:
        return self.frames(audio.samples)

    def masked(self, frames: int) -> int:
        """Frames of a clip that are masked at most: spans of one length, where none overlap (`_compute_mask_indices`)."""
        spans = max(math.ceil(self.mask_time_prob * frames / self.mask_time_length), self.mask_time_min_masks)
        return min(spans, frames // self.mask_time_length) * self.mask_time_length


class HubertSpec(Wav2Vec2Spec):
    modelled = Wav2Vec2Spec.modelled | {"adapter_attn_dim": (None,)}
    returns_features = False

    feat_proj_layer_norm: bool = True
