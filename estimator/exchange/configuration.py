"""A framework's configuration: what a file says, what the framework does where it says nothing, and the job that comes of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from estimator.contract.errors import InvalidValue, Unreadable
from estimator.contract.job import Hardware
from estimator.contract.reading import load_yaml
from estimator.contract.validation import validated
from estimator.exchange.found import NO_FIELD, Assumed, Found, LeftOut, field_of, with_field
from estimator.exchange.releases import Default, Earlier, day_of, earlier

FOLDER = Path(__file__).parent / "frameworks"
_SHELL = re.compile(r"\$[\w({]|^\$")
WORDS = "command words"
"""The key of what a command says without options: a subcommand, a model."""
NEAR, LONGEST, MOST_COMPARED = 0.8, 60, 40
"""How alike two keys are of which one may be meant by the other; characters of a key that is compared, and how many keys are."""
LONGEST_NAME = 1000
"""Characters of a dotted name that is kept: thousands of long ones within each other would be thousands of times as much."""
MOST_SETTINGS = 2000
"""Settings of a file, each of which is compared with what is known."""
INHERITED = "transformers' own"
"""Why a default is what it is where a framework takes it over from transformers."""
YES, NO = ("true", "yes", "1", "on"), ("false", "no", "0", "off", "none", "null", "")


class Framework(BaseModel):
    """A framework's defaults, names and silent keys, as data with their source."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    framework: str
    release: str
    source: str
    as_of: str
    defaults: dict[str, Default] = {}
    releases: dict[str, date] = {}
    """The days of releases, by their numbers."""
    earlier: list[Earlier] = []
    """Defaults that were others once. Those of `shared` hold for whatever a framework takes over from transformers."""
    aliases: dict[str, str] = {}
    """Older names of keys."""
    left: dict[str, str] = {}
    """Keys that may change what a GPU holds, for which a job has no field, and why."""
    silent: list[str] = []
    """Patterns of the keys that change nothing that a GPU holds."""
    edits: dict[str, str | dict[str, dict[str, Any]]] = {}
    """A job's fields in the framework's own keys: the key of a number, or for a value the settings that say it."""
    dashes: bool = False
    """Whether the words of its options are written with dashes: `--max-model-len`."""
    switches: bool = False
    """Whether an option that is on is written without a value."""
    tables: dict[str, dict[str, Any]] = {}
    """Whatever else the framework's reader looks up: its names of targets, its own files of DeepSpeed, …"""


@cache
def framework(name: str) -> Framework:
    """A framework's data."""
    path = FOLDER / f"{name.replace('-', '_').replace('.', '_')}.yaml"
    return validated(Framework, load_yaml(path), str(path))


@cache
def _silent(name: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in (*framework(name).silent, *framework("shared").silent)))


def silent(name: str, key: str) -> bool:
    """Whether a framework's key changes nothing that a GPU holds."""
    return _silent(name).fullmatch(key) is not None


@dataclass(slots=True)
class Launch:
    """What starts a program: how many GPUs, and Accelerate's settings."""

    gpus: int | None = None
    nodes: int | None = None
    processes: bool = True
    """Whether each GPU has a process of its own; False where several GPUs are merely visible to one."""
    program: str = ""
    """The script, or the framework's subcommand."""
    accelerate: Mapping[str, Any] | None = None
    expandable: bool | None = None
    """Whether torch's allocator has expandable segments (PYTORCH_CUDA_ALLOC_CONF); None where the environment does not say."""
    mxfp8: bool = False
    """Whether vLLM multiplies experts in MXFP4 by numbers in MXFP8 (VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8)."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment that a command is given."""
    card: str = ""
    """The GPU that a batch script's header asks for, as it is written there."""


@dataclass(slots=True)
class Surroundings:
    """What is known beside a file: its name, the hardware that was asked about, and files that it points to."""

    name: str = ""
    hardware: Hardware | None = None
    beside: Callable[[str], str | None] = lambda path: None
    """The text of a file that a file points to; None where such files are not read, or it is not there."""
    allow_files: bool = False
    release: str | None = None
    """The framework's release whose defaults are taken, by its number or its day; None: today's."""


class Configuration:
    """A file's settings with a framework's defaults. Each is read once; what is left was not understood."""

    def __init__(self, name: str, given: Mapping[str, Any], lines: Mapping[str, int], launch: Launch, around: Surroundings):
        self.facts, self.launch, self.around, self.lines = framework(name), launch, around, dict(lines)
        self.given: dict[str, Any] = {}
        self._bound(given)
        for key, value in given.items():
            known = self.facts.aliases.get(str(key), str(key))
            if known not in self.given or self.given[known] is None:
                self.given[known] = value
                self.lines.setdefault(known, self.lines.get(str(key), 0))
        self.read: set[str] = set()
        self.job: dict[str, Any] = {}
        self.left_out: list[LeftOut] = []
        self.assumed: list[Assumed] = []
        self.day = day_of(around.release, name, self.facts.releases) if around.release is not None else None
        if around.release is not None:
            newer = f"newer than all that are known here: the defaults of {self.facts.release}"
            known = f"defaults of {self.day}, where they are known to have been others"
            self.assume("release", around.release, newer if self.day is None else known)

    def has(self, key: str) -> bool:
        """Whether the file says something of a key."""
        return self.given.get(key) not in (None, "")

    def take(self, key: str) -> Any:
        """What the file says, or else the framework's default, which is then said."""
        self.read.add(key)
        if self.has(key):
            return self.given[key]
        default = self.default(key)
        if default is None:
            return None
        if default.why:
            self.assume(key, default.value, default.why)
        return default.value

    def default(self, key: str) -> Default | None:
        """What the framework does where the file says nothing of a key, in the release that was asked about."""
        today = self.facts.defaults.get(key)
        found = earlier(self.facts.earlier, key, self.day)
        if found is None and today is not None and today.why == INHERITED:
            found = earlier(framework("shared").earlier, key, self.day)
        return found or today

    def yes(self, key: str) -> bool:
        """A setting that is on or off, in whatever words."""
        value = self._known(key)
        if isinstance(value, str):
            if value.lower() not in (*YES, *NO):
                raise InvalidValue(f"{value[:40]!r} is neither true nor false: write one of these", self.where(key))
            return value.lower() in YES
        return bool(value)

    def _known(self, key: str) -> Any:
        """What `take` gives, or the default in place of what only a shell knows."""
        given = self.given.get(key)
        if isinstance(given, str) and _SHELL.search(given):
            self.leave(key, f"{_short(given)}: only a shell knows what it is; the framework's default is taken")
            self.given[key] = None
        return self.take(key)

    def whole(self, key: str) -> int | None:
        """A whole number; None where nothing says one. What counts rows, steps or tokens is 1 at least."""
        value = self.number(key)
        if value is not None and value != int(value):
            raise InvalidValue(f"{value} is no whole number", self.where(key))
        if value is not None and value < 1 and self.facts.edits.get("training.micro_batch_size") == key:
            raise InvalidValue(f"{value:g} rows are no batch: write 1 or more", self.where(key))
        return None if value is None else int(value)

    def number(self, key: str) -> float | None:
        """A number; None where nothing says one."""
        value = self._known(key)
        if value is None or value == "auto":
            return None
        try:
            found = float(value)
        except (TypeError, ValueError, OverflowError):
            raise InvalidValue(f"{str(value)[:40]!r} is no number: write digits alone, such as 2048", self.where(key)) from None
        if isinstance(value, bool) or not abs(found) < 1e15:
            raise InvalidValue(f"{str(value)[:40]!r} is no number of such a thing", self.where(key))
        return found

    def text(self, key: str) -> str | None:
        """A word; None where nothing says one."""
        value = self.take(key)
        if value is None or isinstance(value, bool):
            return None
        if not isinstance(value, str | int | float):
            raise InvalidValue(f"holds a {_kind(value)}, where one word stands: write that alone", self.where(key))
        return str(value)

    def names(self, key: str) -> list[str]:
        """A list of names, which one name, or several with commas or spaces between them, stand for, too."""
        value = self.take(key)
        if isinstance(value, str):
            return [name for name in re.split(r"[,\s]+", value) if name]
        return [str(name) for name in value] if isinstance(value, list | tuple) else []

    def part(self, key: str) -> Mapping[str, Any]:
        """A mapping within the file; empty where there is none."""
        value = self.take(key)
        if value is not None and not isinstance(value, Mapping):
            raise InvalidValue(f"holds {_short(value)!r}, where settings stand: write them with their names", self.where(key))
        return value or {}

    def where(self, key: str) -> str:
        """A key's place, as errors name it."""
        line = self.lines.get(key)
        return f"{self.facts.framework} {key}{f' (line {line})' if line else ''}"

    def put(self, path: str, value: Any) -> None:
        """Set a field of the job, by its dotted name; None takes it away."""
        self.job = with_field(self.job, path, value)

    def get(self, path: str) -> Any:
        """A field of the job as far as it was read; None where it is not there."""
        return field_of(self.job, path)

    def leave(self, key: str, why: str) -> None:
        """Say of a key that the job does not have it."""
        self.read.add(key)
        self.left_out.append(LeftOut(key=key, line=self.lines.get(key) or None, why=why))

    def _bound(self, given: Mapping[str, Any]) -> None:
        """Raise for more settings than any framework has."""
        if len(given) > MOST_SETTINGS:
            raise Unreadable(f"has {len(given):,} settings, more than the {MOST_SETTINGS:,} that are read", self.facts.framework)

    def _unknown(self, key: str, value: Any) -> None:
        """Say of a key that nothing here reads it, and which one may be meant."""
        known = {*self.read, *self.facts.defaults, *self.facts.aliases, *self.facts.left} - self.given.keys()
        compared = len(key) <= LONGEST and len(self.left_out) < MOST_COMPARED
        near = get_close_matches(key, sorted(known), n=1, cutoff=NEAR) if compared else []
        asked = f" Did you mean {near[0]!r}?" if near else ""
        why = f"{_short(value)}: the reader does not know it; whatever it changes is not in the answer.{asked}"
        self.left_out.append(LeftOut(key=key, line=self.lines.get(key) or None, why=why, meant=near[0] if near else None))

    def assume(self, key: str, value: Any, why: str) -> None:
        """Say what was filled in."""
        if all(one.key != key for one in self.assumed):
            self.assumed.append(Assumed(key=key, value=value, why=why))

    def skip(self, *keys: str) -> None:
        """Count keys as read."""
        self.read.update(keys)

    @property
    def gpus(self) -> int:
        """GPUs in all: those of the question, else those that are started, else one."""
        if (asked := self.around.hardware) is not None:
            return asked.gpus * asked.nodes
        return (self.launch.gpus or 1) * (self.launch.nodes or 1)

    def found(self) -> Found:
        """The job, and all that was not read named."""
        silent = _silent(self.facts.framework)
        self._bound(self.given)
        for key, value in self.given.items():
            if key in self.read or key == WORDS or value in (None, False, "", [], {}) or str(value).lower() in ("false", "none"):
                continue
            if key in self.facts.left:
                self.leave(key, f"{_short(value)}: {self.facts.left[key]}")
            elif not silent.fullmatch(key):
                self._unknown(key, value)
        return Found(
            framework=self.facts.framework,
            version=self.around.release or self.facts.release,
            job=self.job,
            left_out=self.left_out,
            assumed=self.assumed,
        )


def _kind(value: Any) -> str:
    return "mapping" if isinstance(value, Mapping) else "list"


def _short(value: Any) -> str:
    shown = str(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"


@dataclass(slots=True)
class Lines:
    """Where each key of a YAML or JSON document stands, by its dotted name."""

    found: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Lines:
        """Of a document that was read already, so that it is bounded."""
        import yaml

        lines = cls()
        with suppress(yaml.YAMLError):  # JSON that is no YAML
            lines._gather(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        return lines

    def _gather(self, events: Any) -> None:
        import yaml

        path: list[str | None] = []
        maps: list[bool] = []
        keyed = False
        for event in events:
            if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                maps.pop()
                path.pop()
                keyed = False
            elif isinstance(event, yaml.ScalarEvent) and maps and maps[-1] and not keyed:
                path[-1] = event.value
                if sum(map(len, filter(None, path))) <= LONGEST_NAME:
                    self.found.setdefault(".".join(filter(None, path)), event.start_mark.line + 1 if event.start_mark else 0)
                keyed = True
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                maps.append(isinstance(event, yaml.MappingStartEvent))
                path.append(None)
                keyed = False
            else:
                keyed = False


__all__ = ["NO_FIELD", "Configuration", "Default", "Framework", "Launch", "Lines", "Surroundings", "framework"]
