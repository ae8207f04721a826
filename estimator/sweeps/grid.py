"""A grid of fields: what is asked of a job, and the jobs that it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from estimator.contract.errors import InvalidJob, InvalidValue
from estimator.contract.job import Job, read_job

SYMBOLIC = ("training.", "serving.")
"""Parts of a job whose whole numbers a program varies; all other fields are varied one by one."""
TILE = 1 << 13
"""Points that are evaluated at once."""


@dataclass(frozen=True, slots=True)
class Grid:
    """`axes`: the values of each field, in order; `base`: the job around them, as it was written."""

    base: Mapping[str, Any]
    axes: dict[str, tuple[Any, ...]]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(values) for values in self.axes.values())

    def job(self, values: Mapping[str, Any]) -> Job:
        """The job with these values. Raises `InvalidJob` where they cannot be read."""
        content = self.base
        for path, value in values.items():
            content = _with(content, path.split("."), value, path)
        return read_job(content)

    def at(self, values: Mapping[str, Any]) -> Grid:
        """The part of the grid in which some fields have these values."""
        return Grid(self.base, {path: (values[path],) if path in values else axis for path, axis in self.axes.items()})

    def symbolic(self, least: int = 2) -> list[str]:
        """Fields that a program may vary: whole numbers of at least 1, so many different ones or more."""
        return [
            path
            for path, values in self.axes.items()
            if path.startswith(SYMBOLIC) and len(set(values)) >= least and all(type(v) is int and v >= 1 for v in values)
        ]

    def outer(self, inner: Sequence[str]) -> Iterator[tuple[dict[str, Any], tuple[Any, ...]]]:
        """Values of all fields but the `inner` ones, and the part of the grid's arrays that they select."""
        names = [name for name in self.axes if name not in inner]
        for numbers in product(*[range(len(self.axes[name])) for name in names]):
            at = dict(zip(names, numbers, strict=True))
            yield (
                {name: self.axes[name][i] for name, i in at.items()},
                tuple(at.get(name, slice(None)) for name in self.axes),
            )


def grid(job: Any, fields: Mapping[str, Sequence[Any]]) -> Grid:
    """A grid over a job: a `Job`, a mapping, or the path of a YAML file. Raises `InvalidJob` for what cannot be read."""
    base = read_job(job).model_dump(exclude_unset=True)
    axes = {}
    if not fields:
        raise InvalidValue("name at least one field of the job, with its values", "fields")
    for path, values in fields.items():
        if isinstance(values, str) or not hasattr(values, "__iter__"):
            raise InvalidValue(f"write several values in a list, not {values!r}", path)
        axes[path] = tuple(value.item() if hasattr(value, "item") else value for value in values)
        if not axes[path]:
            raise InvalidValue("write at least one value", path)
    found = Grid(base, axes)
    for path, options in axes.items():
        _check_readable(found, path, options)
    return found


def _check_readable(asked: Grid, path: str, values: tuple[Any, ...]) -> None:
    """Raise what is wrong with the first value of a field if none of them can be read by itself."""
    first: InvalidJob | None = None
    for value in values:
        try:
            asked.job({path: value})
        except InvalidJob as error:
            first = first or error
        else:
            return
    assert first is not None
    raise first


def tiles(shape: tuple[int, ...], points: int = TILE) -> Iterator[tuple[slice, ...]]:
    """A grid in parts that are about as long in each direction, of at most so many points."""
    sides, left = list(shape), points
    for n, axis in enumerate(sorted(range(len(shape)), key=lambda a: shape[a])):
        sides[axis] = min(shape[axis], max(1, round(left ** (1 / (len(shape) - n)))))
        left //= sides[axis]
    starts = product(*[range(0, size, side) for size, side in zip(shape, sides, strict=True)])
    for start in starts:
        yield tuple(slice(at, at + side) for at, side in zip(start, sides, strict=True))


def _with(content: Any, path: list[str], value: Any, whole: str) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        raise InvalidValue(
            f"is {content!r} in this job, and has no fields; write it as a mapping to vary one", whole.rpartition(".")[0]
        )
    name, *inner = path
    return {**content, name: _with(content.get(name) or {}, inner, value, whole) if inner else value}
