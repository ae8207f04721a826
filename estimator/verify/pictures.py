"""What models ask about the numbers of their images, which fake tensors do not have: how many patches of each are real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from transformers import masking_utils

from estimator.contract.job import Job
from estimator.families.spec import ModelSpec
from estimator.verify.live import Live
from estimator.verify.routing import one_hot


@contextmanager
def pictures(job: Job, spec: ModelSpec, live: Live) -> Iterator[None]:
    """Answers for images that are all of the size that the job says, and filled up to the patches that all have."""
    images, audio = job.training.images, job.training.audio
    if spec.listens and audio is not None:
        live.picked = spec.masked(spec.audio_tokens(audio) or 0)  # type: ignore[attr-defined]
    elif (written := getattr(spec, "written_over", None)) is not None:
        live.picked = written
    elif audio is not None:
        live.picked, live.pictures = spec.audio_tokens(audio) or 0, audio.count
    if images is None or not getattr(spec, "patches_images", False):
        yield
        return
    tokens = spec.image_tokens(images) or 0
    live.picked, live.pictures = tokens, images.count
    padded = tokens * spec.vision_config.pooling_kernel_size**2 < spec.most_patches  # type: ignore[attr-defined]

    def numbers(tensor: torch.Tensor) -> list[int]:
        return [tokens] * len(tensor)

    def whole(*given: Any, **settings: Any) -> bool:
        return not padded

    with ExitStack() as patched:
        patched.enter_context(mock.patch.object(FakeTensor, "tolist", numbers, create=True))
        patched.enter_context(mock.patch.object(torch.nn.functional, "one_hot", one_hot))
        patched.enter_context(mock.patch.object(masking_utils, "_ignore_bidirectional_mask_sdpa", whole))
        yield
