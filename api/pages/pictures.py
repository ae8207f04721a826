"""Pictures on the pages, as SVG within the page: what they say is in their titles too, and in the tables beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from markupsafe import Markup

from estimator.contract.answer import Answer, Memory, TimePart
from estimator.contract.job import Job
from estimator.contract.units import gib
from estimator.pipeline.verdict import offered
from estimator.tape.tape import COMPONENTS

from .words import meaning

BESIDE = ("cuda_context", "cublas_workspaces", "nccl_kernels", "cached_blocks")
"""Parts of the overhead that have a colour of their own; the others take the colours after these, in turn."""
OTHERS = 4
"""How many colours those are."""
TIMES = 7
"""How many colours there are for parts of the time."""


class Part(NamedTuple):
    """A part of what is needed of one GPU: its key, its bytes, the class of its colour."""

    key: str
    bytes: int
    colour: str

    @property
    def title(self) -> str:
        """What it is called."""
        return f"NCCL {self.key[5:]}".replace("_", " ") if self.key.startswith("nccl_") else meaning(self.key).title


def components(memory: Memory) -> list[Part]:
    """What is needed of one GPU at the peak, by what it is; together `total_bytes`."""
    found = [Part(name, memory.at_peak[name], name) for name in COMPONENTS if memory.at_peak.get(name)]
    others = [name for name in memory.overhead if name not in BESIDE]
    for name, size in memory.overhead.items():
        colour = f"{BESIDE.index(name)}" if name in BESIDE else f"other-{others.index(name) % OTHERS}"
        found.append(Part(name, size, f"beside-{colour}"))
    return [part for part in found if part.bytes]


def room(answer: Answer) -> int | None:
    """What the verdict compares with: the card's capacity, or the server's share of it."""
    return offered(answer.memory.capacity_bytes, Job.model_validate(answer.job))


def stacked_bar(answer: Answer, widest: int | None = None) -> Markup:
    """Where the bytes are at the peak; a line marks the end of what the job may take of a card. `widest`: bytes of the whole
    width, for bars that are to be compared."""
    parts, edge = components(answer.memory), room(answer)
    total = answer.memory.total_bytes
    scale = 100 / (widest or width(answer))
    x, shapes = 0.0, []
    if edge:
        shapes.append(f'<rect class="room" x="0" y="9" width="{edge * scale:.3f}%" height="38"/>')
    for part in parts:
        wide = part.bytes * scale
        title = f"<title>{escape(part.title)}: {gib(part.bytes)}</title>"
        shapes.append(f'<rect class="part c-{part.colour}" x="{x:.3f}%" y="8" width="{wide:.3f}%" height="40">{title}</rect>')
        x += wide
    if edge:
        at, says = edge * scale, f"{gib(edge)} of one GPU"
        shapes.append(f'<line class="limit" x1="{at:.3f}%" x2="{at:.3f}%" y1="2" y2="54"/>')
        anchor = "end" if at > 50 else "start"
        shapes.append(f'<text class="edge" x="{at:.3f}%" y="68" text-anchor="{anchor}">{says}</text>')
    label = f"{gib(total)} at the peak" + (f" of {gib(edge)}" if edge else "")
    return Markup(f'<svg class="bar" role="img" aria-label="{label}">{"".join(shapes)}</svg>')


def width(*answers: Answer) -> int:
    """Bytes that the bars of answers must have room for."""
    return round(1.02 * max(max(one.memory.total_bytes, room(one) or 0) for one in answers)) or 1


def mini_bar(nbytes: int, edge: int | None, widest: int, tone: str) -> Markup:
    """A row's bytes beside those of other rows, with the edge of the card."""
    scale = 100 / (widest or 1)
    shapes = f'<rect width="{nbytes * scale:.2f}%" height="8"/>'
    if edge:
        shapes += f'<line class="limit" x1="{edge * scale:.2f}%" x2="{edge * scale:.2f}%" y1="0" y2="8"/>'
    return Markup(f'<svg class="mini {tone}" aria-hidden="true">{shapes}</svg>')


def time_parts(answer: Answer) -> list[tuple[str, TimePart]]:
    """What a step's time goes to, each with the class of a colour; nothing where it is one thing."""
    parts = [part for part in answer.time.parts if part.share >= 0.005] if answer.time else []
    return [(f"t-{number % TIMES}", part) for number, part in enumerate(parts)] if len(parts) > 1 else []


def time_bar(answer: Answer) -> Markup:
    """Where the time of a step goes."""
    shapes = "".join(_time_shapes(time_parts(answer)))
    return (
        Markup(f'<svg class="bar time" role="img" aria-label="where the time of a step goes">{shapes}</svg>')
        if shapes
        else Markup("")
    )


def _time_shapes(parts: Sequence[tuple[str, TimePart]]) -> Iterator[str]:
    x = 0.0
    for colour, part in parts:
        title = f"<title>{escape(part.name)}: {part.share:.0%}</title>"
        yield f'<rect class="part {colour}" x="{x:.3f}%" y="8" width="{100 * part.share:.3f}%" height="40">{title}</rect>'
        x += 100 * part.share
