"""The accuracy page's plot."""

from __future__ import annotations

import math

from tests.accuracy import allocated, megatron, shown, steps


def plot() -> str:
    """Predicted against found, logarithmic both ways, as SVG."""
    kinds = [
        ("torch, fake tensors", "#4477aa", steps("fake_steps")),
        ("torch, real tensors", "#228833", steps("real_steps")),
        ("A100, allocated", "#ee6677", list(allocated())),
        ("A100, nvidia-smi", "#ccbb44", list(shown())),
        ("B200, Megatron-Core", "#aa3377", list(megatron())),
    ]
    largest = max(max(row.found, row.predicted) for _, _, rows in kinds for row in rows)
    low, high, side, edge = 20, math.ceil(math.log2(largest)), 480, 60

    def at(value: float) -> float:
        return (math.log2(value) - low) / (high - low) * side

    marks = [(2**k, f"{2 ** (k - 30)} GiB" if k >= 30 else f"{2 ** (k - 20)} MiB") for k in range(low, high + 1, 3)]
    parts = [f'<line x1="{edge}" y1="{edge + side}" x2="{edge + side}" y2="{edge}" stroke="#bbb"/>']
    for value, label in marks:
        x, y = edge + at(value), edge + side - at(value)
        parts.append(f'<text x="{x:.0f}" y="{edge + side + 18}" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="{edge - 6}" y="{y + 4:.0f}" text-anchor="end">{label}</text>')
        parts.append(f'<path d="M{x:.0f} {edge}V{edge + side}M{edge} {y:.0f}H{edge + side}" stroke="#eee"/>')
    for i, (label, colour, rows) in enumerate(kinds):
        points = [(edge + at(r.found), edge + side - at(r.predicted)) for r in rows]
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}" fill-opacity="0.5"/>' for x, y in points]
        parts.append(f'<circle cx="{edge + 14}" cy="{edge + 14 + 20 * i}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{edge + 24}" y="{edge + 18 + 20 * i}">{label}</text>')
    parts.append(f'<text x="{edge + side / 2}" y="{edge + side + 42}" text-anchor="middle">counted or measured</text>')
    parts.append(f'<text x="14" y="{edge - 24}">predicted</text>')
    size = side + 2 * edge
    style = 'font-family="sans-serif" font-size="12"'
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" {style}>\n'
        f'<rect width="{size}" height="{size}" fill="white"/>\n{body}\n</svg>\n'
    )
