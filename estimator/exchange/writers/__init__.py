"""Jobs as files of the frameworks that run them, each read back before it is given: what it cannot say is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from estimator.contract.errors import InvalidJob
from estimator.contract.job import Job, read_job
from estimator.contract.job.adapter import ALL_LINEAR
from estimator.exchange.configuration import Surroundings
from estimator.exchange.documents import read
from estimator.exchange.found import with_field
from estimator.exchange.writers import recipes, serving, spread, training
from estimator.pipeline.defaults import with_defaults
from estimator.pipeline.estimation import estimate
from estimator.specs.resolve import resolve

WHOLE: dict[str, Callable[[Job], str]] = {
    "trl": training.trl,
    "axolotl": training.axolotl,
    "llama-factory": training.llama_factory,
    "ms-swift": training.ms_swift,
    "oumi": training.oumi,
    "openrlhf": training.openrlhf,
    "litgpt": recipes.litgpt,
    "torchtune": recipes.torchtune,
    "nemo-automodel": recipes.nemo_automodel,
    "megatron-bridge": spread.megatron_bridge,
    "verl": spread.verl,
    "vllm": serving.vllm,
    "sglang": serving.sglang,
    "tensorrt-llm": serving.tensorrt_llm,
}
"""Frameworks whose files say a whole job."""
COMMANDS = ("openrlhf", "megatron-bridge", "verl", "vllm", "sglang")
"""Those for which it is a command."""
COMPARED = ("model", "task", "training", "parallelism", "offload", "serving")
TARGETS = "training.adapter.targets"
UNSAID = frozenset(
    (
        *(
            "training.tokens",
            "training.dataset",
            "training.lengths",
            "training.run",
            "training.tf32",
            "training.expandable_segments",
        ),
        *(
            "training.adapter.alpha",
            "training.adapter.rslora",
            "training.adapter.init",
            "serving.prompt_length",
            "serving.output_length",
        ),
        *("serving.concurrency", "serving.hours", "serving.engine_version", "serving.speculative_acceptance"),
    )
)
"""What a run's file does not say, or no byte depends on: how long it runs, what is asked of a server."""


def write(job: Job, to: str, allow_files: bool) -> str:
    """The file of a job with its defaults. Raises `InvalidJob` for a job that the framework's files cannot say."""
    text = WHOLE[to](job)
    around = Surroundings(hardware=job.hardware, allow_files=allow_files)
    found = read(text, None if to in COMMANDS else to, around=around)
    again = read_job(found.job)
    model = resolve(again.model, allow_files)
    again = with_defaults(again, model.spec, model.stored, model.embeds)[0]
    part = "serving" if job.task == "train" else "training"
    wanted, had = (one.model_dump(mode="json", include={*COMPARED} - {part}) for one in (job, again))
    if model.spec == resolve(job.model, allow_files).spec:
        had["model"] = wanted["model"]
    if _adapts_alike(job, again, allow_files):
        had["training"]["adapter"]["targets"] = wanted["training"]["adapter"]["targets"]
    unlike = [f"{field} is {_shown(mine)}, and there {_shown(theirs)}" for field, mine, theirs in _unlike(wanted, had, "")]
    if unlike:
        raise InvalidJob(f"is no job that a file of {to} says: {'; '.join(unlike[:4])}", unlike[0].split(" ")[0])
    return text


def _adapts_alike(job: Job, again: Job, allow_files: bool) -> bool:
    """Whether names of layers that stand for all linear layers, or the other way round, are the same layers: the same bytes."""
    ours, theirs = (getattr(one.training.adapter, "targets", None) for one in (job, again))
    if ours == theirs or ALL_LINEAR not in (ours, theirs) or ours is None or theirs is None:
        return False
    mine = read_job(with_field(again.model_dump(mode="json", exclude_unset=True), TARGETS, ours))
    return estimate(mine, allow_files=allow_files).memory == estimate(again, allow_files=allow_files).memory


def _unlike(wanted: Any, had: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The fields in which two jobs differ."""
    if path in UNSAID or (path.startswith("offload.") and {wanted, had} <= {None, "none"}):
        return
    if isinstance(wanted, Mapping) and isinstance(had, Mapping):
        for name in dict.fromkeys((*wanted, *had)):
            yield from _unlike(wanted.get(name), had.get(name), f"{path}.{name}".lstrip("."))
    elif wanted != had and (wanted or had):
        yield path, wanted, had


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else "not there" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
