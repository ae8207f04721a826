"""Plots of what was measured beside what the curves say, as SVG; made by tests/fit_efficiency.py, which has the measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

DOCS = Path(__file__).parent.parent / "docs"
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee")
WIDTH, HEIGHT, LEFT, GAP = 250, 170, 46, 58
DOTS = 350
Series = tuple[str, np.ndarray, np.ndarray]
"""Name, x and y."""


class Axes:
    """One panel: logarithmic x, linear or logarithmic y."""

    def __init__(self, place: int, x: tuple[float, float], y: tuple[float, float], logarithmic: bool):
        column, row = place % 3, place // 3
        self.left, self.top = LEFT + column * (WIDTH + GAP), 34 + row * (HEIGHT + GAP)
        self.x, self.y, self.logarithmic = x, y, logarithmic

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = math.log(x / self.x[0]) / math.log(self.x[1] / self.x[0])
        low, high, value = (math.log(v) if self.logarithmic else v for v in (*self.y, y))
        return self.left + across * WIDTH, self.top + HEIGHT - (value - low) / (high - low) * HEIGHT

    def frame(self, title: str, xs: Iterable[tuple[float, str]], ys: Iterable[tuple[float, str]]) -> list[str]:
        parts = [f'<text x="{self.left}" y="{self.top - 8}" font-weight="bold">{title}</text>']
        for value, label in xs:
            x, _ = self.at(value, self.y[0])
            parts.append(f'<path d="M{x:.0f} {self.top}v{HEIGHT}" stroke="#eee"/>')
            parts.append(f'<text x="{x:.0f}" y="{self.top + HEIGHT + 14}" text-anchor="middle">{label}</text>')
        for value, label in ys:
            _, y = self.at(self.x[0], value)
            parts.append(
                f'<path d="M{self.left} {y:.0f}h{WIDTH}" stroke="{"#999" if self.logarithmic and label == "1" else "#eee"}"/>'
            )
            parts.append(f'<text x="{self.left - 5}" y="{y + 4:.0f}" text-anchor="end">{label}</text>')
        return parts

    def dots(self, x: Iterable[float], y: Iterable[float], colour: str, size: float = 2.5) -> str:
        points = (self.at(a, min(max(b, self.y[0]), self.y[1])) for a, b in zip(x, y, strict=True) if self.x[0] <= a <= self.x[1])
        path = "".join(f"M{a:.0f} {b:.0f}h0" for a, b in points)
        return f'<path d="{path}" stroke="{colour}" stroke-opacity="0.6" stroke-width="{size}" stroke-linecap="round"/>'

    def line(self, x: np.ndarray, y: np.ndarray, colour: str) -> str:
        path = "L".join("{:.1f} {:.1f}".format(*self.at(a, b)) for a, b in zip(x, y, strict=True))
        return f'<path d="M{path}" stroke="{colour}" fill="none"/>'

    def legend(self, names: Iterable[str], bottom: bool = False) -> list[str]:
        labels = list(names)
        top = self.top + (HEIGHT - 13 * len(labels) - 2 if bottom else 0)
        return [
            f'<circle cx="{self.left + 10}" cy="{top + 13 * i + 9}" r="3.5" fill="{colour}"/>'
            f'<text x="{self.left + 18}" y="{top + 13 * i + 13}">{label}</text>'
            for i, (label, colour) in enumerate(zip(labels, COLOURS, strict=False))
        ]


def write(name: str, panels: int, parts: list[str]) -> None:
    """Save the panels, three to a row."""
    height = 34 + math.ceil(panels / 3) * (HEIGHT + GAP)
    style = 'font-family="sans-serif" font-size="11"'
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + 3 * (WIDTH + GAP)} {height}" {style}>\n'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
    (DOCS / f"{name}.svg").write_text(text, encoding="utf-8")


def some(rows: pd.DataFrame, count: int = DOTS) -> pd.DataFrame:
    """A few rows, the same ones each time."""
    return rows.sample(min(count, len(rows)), random_state=0)


def products(name: str, panels: list[tuple[str, pd.DataFrame]], like_training: Callable[[pd.DataFrame], Any]) -> None:
    """Predicted over measured, by the time that a product would take at peak."""
    parts = []
    microseconds = [(1.0, "1 us"), (100.0, "100 us"), (1e4, "10 ms")]
    for place, (title, rows) in enumerate(panels):
        axes = Axes(place, (0.1, 1e5), (0.5, 2.0), True)
        parts += axes.frame(title, microseconds, [(0.5, "0.5"), (0.8, "0.8"), (1.0, "1"), (1.25, "1.25"), (2.0, "2")])
        training = like_training(rows)
        for few, colour in ((some(rows[~training]), "#bbbbbb"), (some(rows[training]), COLOURS[0])):
            parts.append(axes.dots(few.ideal, few.predicted / few.found, colour))
    write(name, len(panels), parts)


def attention(panels: list[tuple[str, pd.DataFrame, dict[str, Any]]], peaks: dict[str, float]) -> None:
    """Share of peak by length, measured medians and the curve, causal, by head size."""
    parts = []
    for place, (title, rows, entry) in enumerate(panels):
        axes = Axes(place, (200, 20000), (0, 0.8), False)
        parts += axes.frame(title, [(512, "512"), (2048, "2k"), (8192, "8k")], [(v / 10, f"{v / 10}") for v in range(0, 9, 2)])
        peak = peaks[title.split(",")[0]]
        sizes = [head for head in entry["heads"] if ((rows.head_dim == head["size"]) & rows.causal).any()][:5]
        for head, colour in zip(sizes, COLOURS, strict=False):
            group = rows[(rows.head_dim == head["size"]) & rows.causal]
            share = group.flops / peak / 1e6 / (group.found - entry["launch_us"])
            few = share.groupby(group.isl).quantile([0.25, 0.5, 0.75])
            parts.append(axes.dots(few.index.get_level_values(0), few, colour, 4))
            length = np.geomspace(256, 16384, 40)
            parts.append(axes.line(length, head["causal_share"] * length / (length + head["causal_half"]), colour))
        parts += axes.legend(f"head size {head['size']}" for head in sizes)
    write("efficiency-attention", len(panels), parts)


def collectives(panels: list[tuple[str, pd.DataFrame]]) -> None:
    """Bus bandwidth by payload: dots measured, lines predicted."""
    parts = []
    sizes = [(2.0**10, "1 KiB"), (2.0**20, "1 MiB"), (2.0**29, "512 MiB")]
    for place, (title, rows) in enumerate(panels):
        count = int(rows.num_gpus.max())
        rows = rows[rows.num_gpus == count].sort_values("payload")
        speeds = {}
        for kind, group in rows.groupby("kind"):
            moved = (2 if kind == "all_reduce" else 1) * (count - 1) / count * group.payload.to_numpy() / 1e3
            speeds[str(kind)] = (group.payload.to_numpy(), moved / group.found.to_numpy(), moved / group.predicted.to_numpy())
        top = max(measured.max() for _, measured, _ in speeds.values()) * 1.1
        axes = Axes(place, (2.0**9, 2.0**30), (0, float(top)), False)
        step = 10 ** math.floor(math.log10(top)) * (1 if top / 10 ** math.floor(math.log10(top)) < 5 else 2)
        ticks = [(i * step, f"{i * step:g}") for i in range(int(top / step) + 1)]
        parts += axes.frame(f"{title}, {count} GPUs, GB/s", sizes, ticks)
        for (payload, measured, predicted), colour in zip(speeds.values(), COLOURS, strict=False):
            parts += [axes.dots(payload, measured, colour, 4), axes.line(payload, predicted, colour)]
        parts += axes.legend(speeds)
    write("efficiency-collectives", len(panels), parts)
