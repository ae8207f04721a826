"""What sound in a job goes with a model, and how much of a sequence it takes."""

from __future__ import annotations

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job
from estimator.contract.job.audio import Audio
from estimator.families.spec import ModelSpec

WHERE = "training.audio"


def refuse(job: Job, spec: ModelSpec) -> bool:
    """Whether the model hears. Raises `InvalidJob` for sound that does not fit it or the sequence, `NotModelled` for what is not
    known of it."""
    audio, tokens = job.training.audio, job.training.sequence_length
    if spec.listens:
        _refuse_clips(audio, spec)
        return False
    if not spec.hears:
        if audio is not None:
            raise Contradiction(f"{spec.model_type} hears nothing beside texts: leave it out, or name a model that does", WHERE)
        return False
    if audio is None:
        return True
    if audio.count > 1 and getattr(spec, "one_clip", False):
        raise Contradiction(f"the processor of {spec.model_type} takes one clip for each text: write count 1", f"{WHERE}.count")
    each = spec.audio_tokens(audio)
    if each is None:
        raise NotModelled(f"sound of {spec.model_type} is not modelled yet, texts alone are: leave it out", WHERE)
    if not each:
        raise Contradiction(f"{audio.seconds:g} s are too short: its processor makes no token of them", f"{WHERE}.seconds")
    if audio.count * each > tokens:
        fewer = f"at most {tokens // each}" if tokens >= each else "none"
        raise Contradiction(
            f"{audio.count} of {audio.seconds:g} s are {audio.count * each} tokens ({each} each), and a sequence has {tokens}: "
            f"write a longer training.sequence_length, or {fewer}",
            WHERE,
        )
    return True


def _refuse_clips(audio: Audio | None, spec: ModelSpec) -> None:
    if audio is None:
        raise Contradiction(f"{spec.model_type} is given nothing but sound: write training.audio {{seconds: 10}}", WHERE)
    if audio.count > 1:
        raise Contradiction(f"{spec.model_type} is given clips one by one: write training.micro_batch_size", f"{WHERE}.count")
    if not spec.audio_tokens(audio):
        raise Contradiction(f"{audio.seconds:g} s are too short: its convolutions make no frame of them", f"{WHERE}.seconds")


def tokens(job: Job, spec: ModelSpec) -> int:
    """Tokens of a sequence that are of its sound."""
    audio = job.training.audio
    return 0 if audio is None else audio.count * (spec.audio_tokens(audio) or 0)
