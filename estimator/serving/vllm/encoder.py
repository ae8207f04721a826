"""What vLLM's profile run takes of a model that sees or hears: images at the largest size that the processor makes, or clips at
their longest, through the tower.

After v1/worker/gpu_model_runner.py (`profile_run`), multimodal/encoder_budget.py and models/qwen2_vl.py (`get_num_image_tokens`)
of 0.19 and 0.33. As many images as a pass has tokens for, and one at least, go through the tower together. What it gives stays
while the language model runs, so that of both passes the higher one counts:

    activations = max(images + one layer of the tower, [images +] what the tower gave + the language model's)

Films are not counted: of what is as large, their frames depend on the context. Of what sees and hears, an image is more tokens
than a clip, and is run. Clips: models/qwen2_audio.py, voxtral.py and qwen3_omni_moe_thinker.py of 2026.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import prod

from estimator.families.cache_layers import Picture
from estimator.families.spec import ModelSpec
from estimator.serving.tensors import Held


def images(picture: Picture, tokens: int) -> int:
    """Images that go through the tower at once in a pass of so many tokens."""
    return max(1, tokens // picture.tokens)


def pixels(spec: ModelSpec, tokens: int, context: int = 0) -> int:
    """Numbers of these images, or clips."""
    picture = _largest(spec, context)
    return images(picture, tokens) * picture.numbers if picture else 0


def _largest(spec: ModelSpec, context: int) -> Picture | None:
    return spec.picture or spec.clip(context)


def given(spec: ModelSpec, tokens: int, context: int = 0) -> int:
    """Numbers that the tower gives of them, of several of its layers where the language model reads these."""
    picture = _largest(spec, context)
    if picture is None:
        return 0
    return images(picture, tokens) * picture.tokens * picture.levels * spec.language_model.hidden_size


def tower(spec: ModelSpec, tensors: Iterable[Held], tokens: int, context: int = 0) -> int:
    """Numbers of the images, and of the tower's widest layer over all their patches: the residual, its norm, and what the
    products around attention or around the activation give. 0 where patches are not known."""
    picture = _largest(spec, context)
    seen = [each for each in tensors if each.seen and each.heard == (spec.picture is None)]
    embeds = next((each for each in seen if "patch" in each.name and "position" not in each.name and len(each.shape) > 1), None)
    if picture is None or (embeds is None and spec.picture):
        return 0
    of_one = picture.patches or (picture.numbers // prod(embeds.shape[1:]) if embeds else 0)
    patches = images(picture, tokens) * of_one
    layers: dict[int, list[Held]] = defaultdict(list)
    for each in seen:
        if each.layer is not None and each.kind == "linear":
            layers[each.layer].append(each)
    return pixels(spec, tokens, context) + patches * max(map(_widest, layers.values()), default=0)


def _widest(linears: list[Held]) -> int:
    """Numbers of a patch in a layer."""
    hidden = linears[0].shape[1]

    def widest(part: str) -> int:
        return max((each.shape[0] for each in linears if part in each.name), default=0)

    queries = sum(widest(part) for part in ("q_proj", "k_proj", "v_proj")) if not widest("+v_proj") else 0
    joined, up = max(widest("gate_proj+up_proj"), widest("gate_up_proj")), max(widest("fc1"), widest("up_proj"))
    activated = joined + joined // 2 if joined else (3 if widest("gate_proj") else 2) * up
    return 2 * hidden + max(max(queries, linears[0].shape[0]) + hidden, activated)
