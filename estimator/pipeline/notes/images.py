"""What is taken for granted of a model that sees images or hears."""

from __future__ import annotations

from collections.abc import Iterator

from estimator.contract.job.audio import Audio
from estimator.contract.job.images import Images
from estimator.contract.notes import Said
from estimator.families.spec import ModelSpec

WHERE = "training.images"
HEARD = "training.audio"
CAST = "must be cast to the type of the weights before the model gets them, which casts none"


def of_images(images: Images | None, spec: ModelSpec) -> Iterator[Said]:
    """How many tokens the images of a sequence are, or that there are none."""
    if not spec.sees:
        return
    if images is None:
        text = "text alone: what sees images is loaded and not run"
        yield Said("images", text, WHERE)
        return
    each = spec.image_tokens(images) or 0
    many = "1 image" if images.count == 1 else f"{images.count} images"
    kind = "bfloat16" if getattr(spec, "narrow_pixels", False) else "float32"
    come = f"come in {kind}, as its processor makes them"
    if getattr(spec, "pixels_as_weights", False):
        come = CAST
    text = (
        f"{many} in each sequence, of {images.width} x {images.height} pixels: {each} tokens each, {images.count * each} of its "
        f"sequence_length; pixels {come}"
    )
    yield Said("images", text, WHERE)


def of_audio(audio: Audio | None, spec: ModelSpec) -> Iterator[Said]:
    """How many tokens the sound of a sequence is, or that there is none."""
    if not spec.hears:
        return
    if audio is None:
        yield Said("audio", "text alone: what hears is loaded and not run", HEARD)
        return
    each = spec.audio_tokens(audio) or 0
    come = CAST if getattr(spec, "pixels_as_weights", False) else "come in float32, as its processor makes them"
    many = "1 clip" if audio.count == 1 else f"{audio.count} clips"
    text = (
        f"{many} in each sequence, of {audio.seconds:g} s: {each} tokens each, {audio.count * each} of its sequence_length; "
        f"spectrograms {come}"
    )
    yield Said("audio", text, HEARD)
