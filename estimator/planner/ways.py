"""The usual ways of using a model, and on which hardware each of them runs: ways.yaml, read."""

from __future__ import annotations

from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from estimator.contract.errors import InvalidValue, did_you_mean
from estimator.contract.reading import load_yaml
from estimator.contract.validation import validated
from estimator.facts.spelling import shown
from estimator.hardware.capacity import Capacity
from estimator.parallel.strategies import NONE
from estimator.serving.engine import WHOLE
from estimator.training.recipes import recipe

FILE = Path(__file__).parent / "ways.yaml"
PACKED = {"nf4-double": 0.5, "awq-int4": 0.5, "fp8": 1.0, "q8_0": 1.0, "q4_k_m": 0.5}
"""Bytes that a quantized weight takes at least."""
OF_GGUF = ("llama.cpp", "ollama")
"""Engines that serve GGUF files."""
CPU, APPLE = "cpu", "apple"
"""The platforms of a machine without a GPU, and of Apple's chips."""
STATES = 2
"""Moments that AdamW keeps of each parameter."""
HOURS = "hours are of the whole run: set-up, saving, restarts and the evaluations that the job asks for are in them"
SPEED = (
    "tokens/s, on all GPUs: of answers while they are written, all sequences together; in training, tokens that are trained on; "
    "`willitfit estimate` says the range"
)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Platform(_Part):
    """A kind of accelerator on which the same ways run. `starts`: NVIDIA's compute capability, up to that of the entry before."""

    name: str
    vendor: str
    starts: str = "0.0"
    targets: tuple[str, ...] = ()
    says: str = ""
    source: str = ""
    as_of: date | None = None


class Elsewhere(_Part):
    """Where a way is not answered, and why."""

    where: tuple[str, ...]
    verdict: Literal["unknown", "does not run"]
    why: str
    source: str
    as_of: date


class Way(_Part):
    """One usual way of using a model: how it is called, and the part of a job that says it."""

    way: str
    slug: str
    """Its short name, by which it is asked for on any hardware: serve, qlora."""
    also: tuple[str, ...] = ()
    """Other short names that mean it on its platforms."""
    job: dict[str, Any]
    strategies: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()

    @property
    def part(self) -> str:
        """The key of the job under which its settings are: serving, training."""
        return "serving" if self.job["task"] == "serve" else "training"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings under `part`."""
        return dict(self.job[self.part])

    @property
    def gguf(self) -> bool:
        """Whether llama.cpp serves it, or Ollama."""
        return self.settings.get("engine") in OF_GGUF

    def answers(self, *slugs: str) -> bool:
        """Whether one of these short names means it."""
        return self.slug in slugs or not {*self.also}.isdisjoint(slugs)

    def changed(self, **settings: Any) -> Way:
        """This way of using a model with some settings replaced."""
        return self.model_copy(update={"job": {**self.job, self.part: {**self.settings, **settings}}})

    def refusal(self, platform: Platform) -> Elsewhere | None:
        """Why it is not answered on a platform; None where it is."""
        return next((one for one in self.elsewhere if platform.name in one.where), None)

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes that each parameter of the model takes at least, over all GPUs: its weight, and where all are trained AdamW's
        moments. Whoever shares them, and however, has no fewer: what is gathered, gradients and activations come on top."""
        asked = self.settings
        if self.gguf:
            return 0.0  # whose embedding lies in the host's memory, and layers may
        if "weights" in asked:
            return PACKED.get(asked["weights"], 2.0 if asked["weights"] in WHOLE else 0.5)
        weights = recipe(asked["precision"], NONE)
        assert weights is not None
        each = PACKED.get(asked.get("quantization", ""), float(weights.weights.itemsize))
        return each if "adapter" in asked else each * (1 + STATES)


class _File(_Part):
    platforms: tuple[Platform, ...]
    ways: tuple[Way, ...]


@cache
def _file() -> _File:
    return validated(_File, load_yaml(FILE), str(FILE))


def platform(card: Capacity) -> Platform:
    """What kind of accelerator a card is; one without a name is the first, CUDA's."""
    found = card.accelerator
    if card.ram:
        return next(one for one in _file().platforms if one.name == CPU)
    if found is None:
        return _file().platforms[0]
    return next(one for one in _file().platforms if one.vendor == found.vendor and _has(one, found.compute_capability or "0.0"))


def _has(kind: Platform, capability: str) -> bool:
    if kind.vendor != "nvidia":
        return not kind.targets or capability in kind.targets
    return _version(capability) >= _version(kind.starts)


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def ways(kind: Platform, serving: dict[str, int], training: dict[str, int]) -> list[Way]:
    """The ways of a platform, those that do not run there with them; `serving`, `training`: settings that all of them have."""
    return [
        way.changed(**(serving if way.part == "serving" else training))
        for way in _file().ways
        if kind.name in way.where or way.refusal(kind)
    ]


def slugs() -> tuple[str, ...]:
    """The short names of the ways, in the order of ways.yaml."""
    return tuple(dict.fromkeys(way.slug for way in _file().ways))


def slug(name: str) -> str:
    """A way's short name. Raises `InvalidValue`."""
    if name not in slugs():
        raise InvalidValue(f"{shown(name)} is no task; write {', '.join(slugs())}.{did_you_mean(name, slugs())}", "task")
    return name


def of_task(task: str) -> list[str]:
    """The short names that a task means: `serve` those of every type of weights, the widest first; another its own. Raises
    `InvalidValue`."""
    return [name for name in slugs() if name.startswith(task)] if task == "serve" else [slug(task)]


def platforms() -> tuple[Platform, ...]:
    """Every platform that ways.yaml describes."""
    return _file().platforms


def every_way() -> tuple[Way, ...]:
    """All of them, of every platform."""
    return _file().ways
