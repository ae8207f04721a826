"""A model of no family here, run by transformers' own classes on tensors without data, and counted as it runs.

Where its layers repeat, models of two, three and four of the repeated units are run, and any number of them follows
(`simulation/record.py`); where that is not so, or is no less work, the whole model is.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as transformers_logging

from estimator.contract.errors import Contradiction, NotJudged, NotModelled, UnknownArchitecture, WillItFitError
from estimator.contract.job import CheckpointForm, Job
from estimator.families.other import OtherSpec
from estimator.simulation.counting import Counted, Weight
from estimator.simulation.record import Record, deeper
from estimator.tape.gpu import Gpu
from estimator.training.step import unreached
from estimator.verify.depth import Repeat, repeat
from estimator.verify.model import build, plain
from estimator.verify.recorder import Recorder
from estimator.verify.routing import EVEN, looping
from estimator.verify.step import fake_step

LIMIT_S = 120.0
"""Seconds of processor time that a count may take, so that what else a machine is at changes no answer."""
CLASSES = {
    "causal-lm": transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
    "masked-lm": transformers.MODEL_FOR_MASKED_LM_MAPPING,
    "seq2seq-lm": transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    "sequence-classification": transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "image-text-to-text": transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
}
"""transformers' classes for each head that is counted, by config."""


def count(job: Job, spec: OtherSpec, gpu: Gpu) -> Counted:
    """The second step of a job with its defaults. Raises `NotModelled` for what cannot be counted, with the reason."""
    started = time.process_time()
    head = job.training.head or spec.head
    kind = check_class(spec, head)
    with _said() as remarks:
        if job.training.attention == "sdpa" and not kind._supports_sdpa:
            job = job.model_copy(update={"training": job.training.model_copy(update={"attention": "eager"})})
            remarks.append(f"transformers runs the attention of {spec.model_type} eagerly: it has no other way")
        with _refusing(spec), _without_data():
            model = build(job, spec)
        if model.main_input_name != "input_ids":
            raise NotModelled(f"{spec.model_type} reads {model.main_input_name}: only what reads texts is counted", "model")
        if looping(model) is not None:
            remarks.append(EVEN)
        found = repeat(model) if _by_units(job) else None
        record, how, guessed = _asked(job, spec, gpu, found, started)
    if guessed:
        asking = f"{', '.join(sorted(guessed))} asks for numbers, which tensors without data do not have"
        remarks.append(f"{asking}: it was told true, and 1; where it does something else for others, this is not its step")
    return Counted(record, listed(model), how or "all of its layers", round(time.process_time() - started, 1), remarks)


def _asked(job: Job, spec: OtherSpec, gpu: Gpu, found: Repeat | None, started: float) -> tuple[Record, str, set[str]]:
    """The step, how it was found, and which functions asked for numbers that are not known. Where some did,
    it is run again with masks of one number throughout known."""
    guessed: set[str] = set()
    first: tuple[Record, str] | None = None
    try:
        first = _record(job, spec, gpu, found, started, guessed)
    except NotJudged as error:
        reason = error
    if first is not None and not guessed:
        return *first, guessed
    again: set[str] = set()
    try:
        return *_record(job, spec, gpu, found, started, again, knowing=True), again
    except NotJudged:
        if first is None:
            raise reason from None
        return *first, guessed


def _record(
    job: Job, spec: OtherSpec, gpu: Gpu, found: Repeat | None, started: float, guessed: set[str], knowing: bool = False
) -> tuple[Record, str]:
    """The step, and how it was found; `guessed` gets the functions that asked for numbers."""
    if found is not None:
        depths = (spec.model_copy(update={"kept": found.kept(n)}) for n in (2, 3, 4))
        try:
            shallow = [_played(job, one, gpu, started, guessed, knowing) for one in depths]
        except NotJudged:
            return _played(job, spec, gpu, started, guessed, knowing), ""
        two, three, four = shallow
        record = deeper(two, three, four, found.units)
        if record is not None:
            each = "layer" if found.length == 1 else f"unit of {found.length} layers"
            beside = f" beside {rest} others" if (rest := found.before + found.after) else ""
            return record, f"two, three and four of {found.units} times the same {each}{beside}, the rest by arithmetic"
    return _played(job, spec, gpu, started, guessed, knowing), ""


def _played(job: Job, spec: OtherSpec, gpu: Gpu, started: float, guessed: set[str], knowing: bool) -> Record:
    recorder = Recorder(gpu, spec.vocab_size, started, LIMIT_S)
    recorder.knowing_all = knowing
    with _refusing(spec):
        try:
            fake_step(job, spec, counting=recorder)
        except RuntimeError as error:
            if "does not require grad" in str(error):
                raise _unreached(job) from error
            raise
    if not recorder.reached and not job.training.optimizer_in_backward:
        raise _unreached(job)
    guessed |= recorder.guessed
    return recorder.record()


def _unreached(job: Job) -> Contradiction:
    asked = getattr(job.training.adapter, "targets", ())
    return unreached((asked,) if isinstance(asked, str) else asked)


def _by_units(job: Job) -> bool:
    """Whether every layer is treated alike."""
    asked = job.training.activation_checkpointing
    alike = not isinstance(asked, CheckpointForm) or not (asked.every or asked.segments or asked.layers or asked.mix)
    return alike and getattr(job.training.adapter, "layers", None) is None


@contextmanager
def _refusing(spec: OtherSpec) -> Iterator[None]:
    """What goes wrong in transformers' code is no fault of the caller's, but no answer either."""
    try:
        yield
    except WillItFitError:
        raise
    except Exception as error:
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), "it does not say why")[:200]
        raise NotJudged(
            f"transformers {transformers.__version__} cannot run this {spec.model_type} on tensors without data "
            f"({type(error).__name__}: {why})",
            "model",
        ) from error


@contextmanager
def _said() -> Iterator[list[str]]:
    """What transformers says of packages that it does without."""
    found: list[str] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if "falling back" in text and text not in found:
                found.append(f"transformers: {text}")

    logger, heard = transformers_logging.get_logger("transformers"), Heard()
    transformers_logging.warning_once.cache_clear()
    handlers, level, logger.handlers = logger.handlers, logger.level, [heard]
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield found
    finally:
        logger.handlers = handlers
        logger.setLevel(level)


def check_class(spec: OtherSpec, head: str) -> Any:
    """transformers' class for the model with a head. Raises `NotModelled` where it has none."""
    if spec.model_type not in CONFIG_MAPPING:
        raise UnknownArchitecture(f"transformers {transformers.__version__} has no model_type {spec.model_type!r}", "model")
    kind = CONFIG_MAPPING[spec.model_type]
    known = [name for name, classes in CLASSES.items() if kind in classes]
    if head not in known:
        instead = f"write training.head: {' or '.join(known)}" if known else "no head of it is counted"
        raise NotModelled(f"transformers has no {head} of {spec.model_type}: {instead}", "training.head")
    found = CLASSES[head][kind]
    return found[0] if isinstance(found, tuple) else found


@contextmanager
def _without_data() -> Iterator[None]:
    """Models are built of tensors that have no numbers, which nothing sets."""
    with FakeTensorMode(allow_non_fake_inputs=True), mock.patch.object(PreTrainedModel, "initialize_weights"):
        yield


def listed(model: Any) -> list[Weight]:
    """A model's parameters, tied ones once."""
    return [
        Weight(name, tuple(p.shape), str(p.dtype).removeprefix("torch."), p.requires_grad) for name, p in model.named_parameters()
    ]


def weights(spec: OtherSpec) -> list[Weight]:
    """The parameters of the model with its usual head, in bfloat16."""
    check_class(spec, spec.head)
    with _refusing(spec), _without_data():
        return listed(plain(spec, spec.head, torch.bfloat16, "eager"))
