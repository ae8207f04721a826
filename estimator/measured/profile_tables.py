"""Figures of a running step that are no trace: `nvidia-smi dmon`, `iostat -x`, what a loop prints of its data and its steps."""

from __future__ import annotations

import re
from itertools import pairwise
from statistics import mean

from estimator.measured.profile import DATA, HOST, Profile

BUSY, FULL, LITTLE = 0.9, 90.0, 10.0
"""Share of the time in which a GPU that is bound by its kernels runs one; per cent of a disk's time that is all of it, and of the
processors' that is nothing."""
_DATA = r"(?:data[_ ]?(?:load(?:ing)?[_ ]?)?(?:time)?|dataload(?:er|ing)?(?:[_ ]time)?)"
_STEP = r"(?:(?:step|iter(?:ation)?|batch|total)?[_ ]?time)"
_SECONDS = r"\"?'?\s*[:=]?\s*(\d+(?:\.\d+)?(?:e-?\d+)?)\s*(ms|s)?\b"
_LOADED = re.compile(rf"(?<![\w.])\"?'?{_DATA}{_SECONDS}", re.IGNORECASE)
_STEPPED = re.compile(rf"(?<![\w.])(?<!data )(?<!data_)\"?'?{_STEP}{_SECONDS}", re.IGNORECASE)


def dmon(text: str) -> Profile | None:
    """`nvidia-smi dmon`: how much of the time a kernel ran (`sm`), and memory was read or written (`mem`), over all GPUs."""
    columns: list[str] = []
    seen: dict[str, list[float]] = {"sm": [], "mem": []}
    for line in text.splitlines():
        words = line.replace("#", "# ").split()
        if words[:1] == ["#"] and "sm" in words:
            columns = words[1:]
        elif columns and words and words[0] != "#" and len(words) == len(columns):
            for name, found in seen.items():
                value = words[columns.index(name)] if name in columns else "-"
                if value.isdecimal():
                    found.append(float(value))
    if not seen["sm"]:
        return None
    busy = mean(seen["sm"]) / 100
    figures = {"a kernel runs": busy} | ({"memory is read or written": mean(seen["mem"]) / 100} if seen["mem"] else {})
    return Profile("nvidia-smi dmon", {}, None, figures, None if busy >= BUSY else HOST)


def iostat(text: str) -> Profile | None:
    """`iostat -x`: the processors' idle and waiting time, and how much of its time the busiest disk is busy; of several reports
    without the first, which is since the machine was started."""
    lines = [line.split() for line in text.splitlines()]
    processors = [
        dict(zip(head[1:], values, strict=False))
        for head, values in pairwise(lines)
        if head[:1] == ["avg-cpu:"] and "%idle" in head
    ]
    reports: list[dict[str, float]] = []
    columns: list[str] = []
    for words in lines:
        if words and words[0].rstrip(":") == "Device" and words[-1] == "%util":
            columns = words
            reports.append({})
        elif columns and len(words) == len(columns) and reports:
            try:
                reports[-1][words[0]] = float(words[-1].replace(",", "."))
            except ValueError:
                columns = []
        elif not words:
            columns = []
    reports = [one for one in reports if one]
    if not reports:
        return None
    later = reports[1:] or reports
    disk = max(later[0], key=lambda name: mean(one.get(name, 0.0) for one in later))
    busy = mean(one.get(disk, 0.0) for one in later)
    figures = {f"{disk} is busy": busy / 100}
    for name, what in (("%idle", "processors are idle"), ("%iowait", "processors wait for disks")):
        found = [float(one[name].replace(",", ".")) for one in (processors[1:] or processors) if name in one]
        if found:
            figures[what] = mean(found) / 100
    idle = figures.get("processors are idle", 1.0) * 100
    return Profile("iostat", {}, None, figures, DATA if busy >= FULL else HOST if idle <= LITTLE else None)


def timings(text: str) -> Profile | None:
    """Lines with the seconds of a step's data and of the step: `data_time: 0.12 time: 0.50`, as detectron2, timm, mmengine and
    Lightning print them."""
    pairs = []
    for line in text.splitlines():
        data, step = _LOADED.search(line), None
        if data is not None:
            rest = line[: data.start()] + " " + line[data.end() :]
            step = _STEPPED.search(rest)
        if data is not None and step is not None:
            pairs.append((_seconds(data), _seconds(step)))
    whole = sum(step for _, step in pairs)
    if not pairs or not whole or any(data > step for data, step in pairs):
        return None
    share = sum(data for data, _ in pairs) / whole
    return Profile("timings of a loop", {}, whole / len(pairs), {"waiting for data": share}, DATA if share > 1 / 3 else None)


def _seconds(found: re.Match[str]) -> float:
    return float(found[1]) / (1000 if found[2] == "ms" else 1)
