"""A classifier on DINOv3's ViTs, of which transformers has the body alone: ViT's, a linear layer on the class token."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForImageClassification, DINOv3ViTConfig, DINOv3ViTModel
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.models.dinov3_vit import modeling_dinov3_vit

COORDINATES = modeling_dinov3_vit.get_patches_center_coordinates.__wrapped__


class DINOv3ViTForImageClassification(modeling_dinov3_vit.DINOv3ViTPreTrainedModel):
    """The coordinates of patches, which the function that computes them remembers for all models, are remembered by each."""

    coordinates: torch.Tensor | None

    def __init__(self, config: Any):
        super().__init__(config)
        self.dinov3_vit = DINOv3ViTModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.coordinates: torch.Tensor | None
        self.register_buffer("coordinates", None, persistent=False)

        def once(*args: Any, **settings: Any) -> torch.Tensor:
            if self.coordinates is None:
                self.coordinates = COORDINATES(*args, **settings)
            return self.coordinates

        modeling_dinov3_vit.get_patches_center_coordinates = once
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.dinov3_vit.embeddings.patch_embeddings

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None, **settings: Any) -> Any:
        outputs = self.dinov3_vit(pixel_values, **settings)
        logits = self.classifier(outputs.pooler_output)
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **settings)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions)


AutoModelForImageClassification.register(DINOv3ViTConfig, DINOv3ViTForImageClassification, exist_ok=True)
