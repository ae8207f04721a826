"""Tables of docs/efficiency.md, made of the curves as they ship and of what the fit said of its terms."""

from __future__ import annotations

from pathlib import Path

from estimator.facts import catalogue
from estimator.facts.fact import MeasuredFact
from estimator.timing.measured import FOLDER, Curves, Spread, borrowed, load, shared
from tests.jobs import content
from tests.splits import Figures, split_table

TERMS = Path(__file__).parent / "data" / "efficiency_terms.yaml"
"""Held-out errors of the equation with fewer terms, written by tests/fit_efficiency.py."""
FITS = Path(__file__).parent / "data" / "efficiency_fits.yaml"
"""Errors of rows that curves were fitted to, and of rows held out, by card and table, written by tests/fit_efficiency.py."""


def page() -> dict[str, str]:
    """Every made part of the page."""
    cards = [load(name) for name in catalogue.names(FOLDER)]
    return {
        "held-out": _held_out(),
        "products": _products(cards),
        "terms": _terms(),
        "attention": _attention(cards),
        "memory": _memory(cards),
        "collectives": _collectives(cards),
        "shared": _shared(),
        "borrowed": _borrowed(),
    }


def _table(header: list[str], rows: list[list[object]]) -> str:
    lines: list[list[object]] = [[*header], ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def _error(spread: Spread) -> str:
    return f"{spread.median:.1%}, {spread.p90:.0%}"


def _held_out() -> str:
    fits: dict[str, dict[str, dict[str, dict[str, float]]]] = content(FITS)
    rows = []
    for card, tables in fits.items():
        for table, sides in tables.items():
            used, held = (Figures(int(of["rows"]), of["median"], of["p90"], of["worst"]) for of in sides.values())
            rows.append((f"{card}, {table.replace('_', ' ')}", (used, held)))
    return split_table(rows)


def _products(cards: list[Curves]) -> str:
    header = ["card", "dtype", "launch us", "share", "of bandwidth", "p", "prologue", "step ns", "wave"]
    header += ["sustained", "error", "rows", "in training", "rows"]
    rows: list[list[object]] = []
    for card in cards:
        for dtype, p in card.matmul.items():
            fitted = [f"{p.launch_us:.1f}", f"{p.share:.3f}", f"{p.bandwidth_share:.3f}", f"{p.sharpness:.2f}"]
            terms = [f"{p.prologue:.0f}", f"{p.step_ns:.2f}", f"{p.wave_share:.2f}"]
            held = f"{p.sustained.value:.2f} ({p.sustained.low:.2f} to {p.sustained.high:.2f})"
            judged = [_error(p.spread), p.spread.rows, _error(p.training_spread), p.training_spread.rows]
            rows.append([card.name, dtype, *fitted, *terms, held, *judged])
    return _table(header, rows)


def _terms() -> str:
    terms = content(TERMS)
    rows: list[list[object]] = []
    for card, of in terms.items():
        rows += [
            [card, what, *(f"{e[i]:.1%}, {e[i + 1]:.0%}" for e in of.values())] for i, what in ((0, "all"), (2, "in training"))
        ]
    return _table(["card", "products", *terms["h100"]], rows)


def _attention(cards: list[Curves]) -> str:
    header = ["card", "kernel", "dtype", "direction", "launch us"]
    header += ["head size: causal share, half-length; full share, half-length", "times", "measured on it"]
    rows: list[list[object]] = []
    for card in cards:
        kinds = [(k, t, d, p) for k, dtypes in card.attention.items() for t, found in dtypes.items() for d, p in found.items()]
        for kernel, dtype, direction, p in kinds:
            heads = [
                f"{h.size}: {h.causal_share:.2f}, {h.causal_half:.0f}; {h.full_share:.2f}, {h.full_half:.0f}" for h in p.heads
            ]
            ends = f"{p.range[0]:.2f} to {p.range[1]:.2f}"
            row = [card.name, kernel, dtype, direction, f"{p.launch_us:.1f}", "<br>".join(heads), ends, p.note or "yes"]
            rows.append([*row])
    return _table(header, rows)


def _memory(cards: list[Curves]) -> str:
    rows: list[list[object]] = []
    for card in cards:
        for what, p in (("elementwise", card.memory), ("decoding", card.decode)):
            rows.append([card.name, what, p.launch_us, p.share, f"{p.range[0]} to {p.range[1]}"])
    return _table(["card", "what", "launch us", "share of bandwidth", "range"], rows)


def _collectives(cards: list[Curves]) -> str:
    rows: list[list[object]] = []
    for card in cards:
        for kind, p in card.collectives.items():
            ranks = [f"{n}: {a:g}, {share * card.link:.0f}, {g:g}" for n, (a, share, g) in p.ranks.items()]
            rows.append([card.name, kind.replace("_", " "), card.link, "<br>".join(ranks), _error(p.spread)])
    return _table(["card", "kind", "link GB/s", "ranks: alpha us, bus GB/s, gamma us", "error"], rows)


def _shared() -> str:
    facts = [(name.replace("_", " "), fact) for name, fact in shared() if isinstance(fact, MeasuredFact)]
    facts += [(f"products under load, cards {fact.names}", fact) for fact in shared().under_load]
    facts += [(f"Triton's {', '.join(fact.operations)}", fact) for fact in shared().slow_kernels]
    rows: list[list[object]] = [[name, f.value, f.unit, f"{f.low} to {f.high}", f.source] for name, f in facts]
    return _table(["what", "value", "unit", "range", "source"], rows)


def _borrowed() -> str:
    rows: list[list[object]] = []
    for name, rule in borrowed().items():
        rows.append([name, rule.curves, f"{rule.widen[0]} to {rule.widen[1]}", rule.why])
    return _table(["card", "takes the curves of", "times may be besides", "why"], rows)
