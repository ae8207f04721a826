"""A timeline as a picture: stacked areas in SVG, in the reader's light or dark theme; what is pointed at says its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

from estimator.contract.units import GIB, gib
from estimator.tape.tape import (
    ACTIVATION,
    COMMUNICATION,
    GRADIENT,
    KV_CACHE,
    LOSS,
    OPTIMIZER_STATE,
    OTHER_MODEL,
    PARAMETER,
    TEMPORARY,
)
from estimator.timelines.answers import Timeline

WIDTH, HEIGHT = 1000, 440
LEFT, RIGHT, TOP, BOTTOM = 58, 236, 66, 34
"""Room around the areas, for the axes, the legend, the title and the phases."""
HEADING = 44
"""Of `TOP`, what the title takes, with the peak in words."""
STRIPS = 180
"""Columns that say what is alive when they are pointed at."""
STACK: dict[str, tuple[str, str]] = {
    PARAMETER: ("#4269d0", "#6b8ce6"),
    OTHER_MODEL: ("#8a7bd8", "#a89cf0"),
    OPTIMIZER_STATE: ("#97bbf5", "#a9c8f7"),
    GRADIENT: ("#2f9e6e", "#3cb985"),
    KV_CACHE: ("#6cc5b0", "#6cc5b0"),
    COMMUNICATION: ("#9c6b4e", "#b98667"),
    ACTIVATION: ("#efb118", "#f2c14b"),
    LOSS: ("#ff725c", "#ff8a77"),
    TEMPORARY: ("#9498a0", "#a5aab3"),
}
"""Colours of the components on light and on dark ground, from the lowest area up."""


def svg(found: Timeline, styled: bool = True) -> str:
    """The picture as text. It says the peak to the byte, and where it is. `styled` False leaves the look of its classes, and
    the heading, to the document that it is part of."""
    return "\n".join(_lines(found, styled)) + "\n"


def _lines(found: Timeline, styled: bool) -> Iterator[str]:
    shown = [name for name in STACK if name in found.points.components]
    highest = max(found.points.total)
    capacity = found.capacity_bytes
    top = max(highest, capacity) if capacity and capacity < 1.5 * highest else highest
    scale = _Scale(max(found.events, 1), top * 1.08)
    above = 0 if styled else HEADING
    box = f"0 {above} {WIDTH} {HEIGHT - above}"
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" aria-labelledby="t d">'
    title = f"{_named(found.job)}: live bytes over a step"
    peak = found.peak
    where = f"{gib(peak.bytes)} at the peak: {peak.phase.replace('_', ' ')}, {peak.where}"
    yield f'<title id="t">{escape(title)}</title><desc id="d">{escape(where)} ({peak.bytes:,} bytes)</desc>'
    if styled:
        yield f"<style>{_style(shown)}</style>"
    yield f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}"/>'
    if styled:
        yield f'<text class="title" x="{LEFT}" y="22">{escape(title)}</text>'
        yield f'<text class="note" x="{LEFT}" y="{TOP - 24}">{escape(where)}</text>'
    yield from _axis(scale, top)
    yield from _phases(found, scale)
    yield from _areas(found, shown, scale)
    if capacity and capacity <= top:
        y = scale.y(capacity)
        yield f'<path class="capacity" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
        yield f'<text class="note" x="{LEFT + 6}" y="{y - 4}">a process can allocate {gib(capacity)}</text>'
    yield from _mark(found, scale)
    yield from _legend(found, shown)
    yield from _strips(found, shown, scale)
    yield "</svg>"


class _Scale:
    """Events to the right and bytes up, in the picture's units."""

    def __init__(self, events: int, nbytes: float):
        self.events, self.nbytes = events, nbytes

    def x(self, event: int) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * max(event, 0) / self.events, 1)

    def y(self, nbytes: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * nbytes / self.nbytes, 1)


def _named(job: dict[str, Any]) -> str:
    model = job["model"]
    return str(model.get("name") or model.get("model_type")) if isinstance(model, dict) else str(model)


def _style(shown: list[str]) -> str:
    light = "".join(f".{name}{{fill:{STACK[name][0]}}}" for name in shown)
    dark = "".join(f".{name}{{fill:{STACK[name][1]}}}" for name in shown)
    return (
        "svg{font:12px system-ui,sans-serif}.ground{fill:#fff}text{fill:#24292f}.title{font-size:15px;font-weight:600}"
        ".note,.tick{fill:#57606a;font-size:11px}.grid{stroke:#d0d7de;stroke-width:1;fill:none}"
        ".edge{stroke:#8c959f;stroke-width:1;stroke-dasharray:2 3;fill:none}"
        ".capacity{stroke:#cf222e;stroke-width:1.5;stroke-dasharray:6 4;fill:none}"
        ".mark{fill:#24292f;stroke:#fff;stroke-width:1.5}"
        ".peak{font-weight:600;stroke:#fff;stroke-width:3;paint-order:stroke}"
        ".strip{fill:#24292f;fill-opacity:0}.strip:hover{fill-opacity:.12}" + light + "@media(prefers-color-scheme:dark){"
        ".ground{fill:#0d1117}text{fill:#e6edf3}.note,.tick{fill:#9198a1}.grid{stroke:#30363d}.edge{stroke:#656c76}"
        ".capacity{stroke:#f85149}.mark{fill:#e6edf3;stroke:#0d1117}.peak{stroke:#0d1117}.strip{fill:#e6edf3}" + dark + "}"
    )


def _axis(scale: _Scale, top: int) -> Iterator[str]:
    steps = [base * 10**power for power in range(-6, 9) for base in (1, 2, 5)]
    step = next(step for step in steps if top / GIB / step <= 6)
    count = int(top / GIB / step)
    for i in range(count + 1):
        y = scale.y(i * step * GIB)
        yield f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{i * step:g}</text>'
    yield f'<text class="tick" x="{LEFT - 6}" y="{TOP - 8}" text-anchor="end">GiB</text>'
    yield f'<text class="tick" x="{LEFT}" y="{HEIGHT - 10}">each allocation and release of a tensor, in order →</text>'


def _phases(found: Timeline, scale: _Scale) -> Iterator[str]:
    still = list(dict.fromkeys(phase.name.replace("_", " ") for phase in found.phases if phase.start == phase.stop))
    if still:
        said = f"{', '.join(still)}: nothing allocated"
        yield f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{escape(said)}</text>'
    for phase in found.phases:
        left, right = scale.x(phase.start), scale.x(phase.stop)
        if phase.start:
            yield f'<path class="edge" d="M{left} {TOP - 18}V{HEIGHT - BOTTOM}"/>'
        name = phase.name.replace("_", " ")
        if right - left > 7 * len(name):
            yield f'<text class="tick" x="{(left + right) / 2:.1f}" y="{TOP - 8}" text-anchor="middle">{escape(name)}</text>'


def _areas(found: Timeline, shown: list[str], scale: _Scale) -> Iterator[str]:
    """Each component on top of those before it; a point holds until the next."""
    points = found.points
    xs = [scale.x(event) for event in points.events] + [scale.x(found.events)]
    below = [0] * len(points.events)
    for name in shown:
        above = [low + own for low, own in zip(below, points.components[name], strict=True)]
        up = "".join(f"V{scale.y(high):g}H{xs[i + 1]:g}" for i, high in enumerate(above))
        down = "".join(f"V{scale.y(low):g}H{xs[i]:g}" for i, low in reversed([*enumerate(below)]))
        yield f'<path class="{name}" d="M{xs[0]:g} {scale.y(below[0]):g}{up}{down}Z"/>'
        below = above


def _mark(found: Timeline, scale: _Scale) -> Iterator[str]:
    x, y = scale.x(found.peak.event), scale.y(found.peak.bytes)
    anchor = "end" if x > (LEFT + WIDTH - RIGHT) / 2 else "start"
    yield f'<circle class="mark" cx="{x}" cy="{y}" r="4"/>'
    yield f'<text class="peak" x="{x:g}" y="{y - 9:g}" text-anchor="{anchor}">peak {gib(found.peak.bytes)}</text>'


def _legend(found: Timeline, shown: list[str]) -> Iterator[str]:
    x = WIDTH - RIGHT + 18
    yield f'<text class="note" x="{x}" y="{TOP + 4}">at the peak</text>'
    for i, name in enumerate(reversed(shown)):
        y = TOP + 26 + 22 * i
        yield f'<rect class="{name}" x="{x}" y="{y - 10}" width="12" height="12" rx="2"/>'
        yield f'<text x="{x + 18}" y="{y}">{escape(name.replace("_", " "))}</text>'
        size = gib(found.peak.components[name]) if name in found.peak.components else "–"
        yield f'<text class="note" x="{WIDTH - 8}" y="{y}" text-anchor="end">{size}</text>'


def _strips(found: Timeline, shown: list[str], scale: _Scale) -> Iterator[str]:
    """Columns, each with what is alive at its highest point."""
    points = found.points
    wide = -(-len(points.events) // STRIPS)
    for start in range(0, len(points.events), wide):
        stop = min(start + wide, len(points.events))
        at = max(range(start, stop), key=points.total.__getitem__)
        left = scale.x(points.events[start])
        right = scale.x(points.events[stop] if stop < len(points.events) else found.events)
        phase = next((p.name for p in found.phases if p.start <= points.events[at] < p.stop), "before the step")
        parts = [f"{name.replace('_', ' ')} {gib(size)}" for name in reversed(shown) if (size := points.components[name][at])]
        said = "\n".join([f"{phase.replace('_', ' ')}: {points.names[at]}", f"{gib(points.total[at])} alive", *parts])
        box = f'x="{left:g}" y="{TOP}" width="{max(right - left, 0.5):.1f}" height="{HEIGHT - TOP - BOTTOM}"'
        yield f'<rect class="strip" {box}><title>{escape(said)}</title></rect>'
