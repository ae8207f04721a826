"""What tables of measured kernels lack of attention, from published speeds (tests/data/attention_speeds.yaml): backward passes,
and kernels that serving does not run. A third of each series is held out of the fit (tests/held_out.py)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from tests.held_out import held_out, speeds_series, timed_series
from tests.jobs import content

FILE = Path(__file__).parent / "data" / "attention_speeds.yaml"
SPEEDS: dict[str, Any] = content(FILE)
LENGTHS = np.array(SPEEDS["lengths"], float)
PEAKS = {"h100": 989.4, "a100-80gb": 312.0, "b200": 2250.0}
LIKE = {"l40s": "a100-80gb", "rtx-pro-6000-server": "a100-80gb", "a100-80gb": "a100-80gb"}
"""Whose published backward passes tell a card's; an H100's for the rest."""
STANDS_FOR = {"flash4": "flash3"}
OLD_INSTRUCTIONS = 370 / 132
"""TFLOP/s of FlashAttention-2 per multiprocessor of an H100 (head size 128): its instructions are no faster on Blackwell."""
DIAGONAL = 500.0
"""Tokens more that a causal sequence needs to reach half of what it can: 487 to 696 in the published forwards."""
BLACKWELL = ("b200", "b300", "gb200", "gb300")
TIMED = "b200"
"""The card whose attention was timed beside training, in both directions; the others of its kind are taken to be alike."""
MIXED = 192
"""Head size of queries and keys whose values have 128: multi-head latent attention's."""
Fit = Callable[[Any, Any], tuple[float, float]]


def published_attention(name: str, found: dict[str, Any], card: dict[str, Any], as_of: date, fit: Fit) -> None:
    """Add to a card's kernels what was only published, or only of another card."""
    if name in ("h100", "h200"):
        note = "an H100's" if name == "h200" else ""
        for kernel in ("flash2", "cudnn"):
            heads = [_published("forward", "h100", kernel, size, fit) for size in (64, 128, 256)]
            entry = _entry(
                heads, SPEEDS["forward"]["source"], as_of, (0.8, 1.25), 8.0, _speeds_of(f"forward h100 {kernel}"), note
            )
            found.setdefault(kernel, {})["bfloat16"] = {"forward": entry}
    if name == "a100-80gb":
        _narrow_heads(found["flash2"]["bfloat16"]["forward"], fit)
    if name in BLACKWELL:
        share = OLD_INSTRUCTIONS * card["multiprocessors"] / card["peak"]
        note = "an H100's TFLOP/s per multiprocessor; not measured"
        heads = [head(128, (share, 650.0), (share, 100.0))]
        entry = _entry(heads, SPEEDS["forward"]["source"], as_of, (0.6, 1.5), 10.0, _READ, note)
        found["flash2"] = {"bfloat16": {"forward": entry}}
        _beside_training(name, found["cudnn"]["bfloat16"], as_of, fit)
    for kernel, dtypes in found.items():
        if "bfloat16" in dtypes and "backward" not in dtypes["bfloat16"]:
            dtypes["bfloat16"]["backward"] = _backward(name, kernel, dtypes["bfloat16"]["forward"], as_of, fit)
    _efficient(found, as_of, fit)


def _beside_training(name: str, cudnn: dict[str, Any], as_of: date, fit: Fit) -> None:
    """cuDNN's backward, and both directions of heads whose values are narrower. Sizes and cards that were not timed are in
    proportion to forward, at head size 128 of the card that was."""
    forward, timed = cudnn["forward"], SPEEDS["beside_training"]

    def fitted(size: int, direction: str) -> tuple[float, float]:
        return _timed(size, direction, forward["launch_us"], fit)

    ahead, mixed, back, mixed_back = (
        fitted(size, direction)
        for size, direction in ((128, "forward"), (MIXED, "forward"), (128, "backward"), (MIXED, "backward"))
    )
    own = {known["size"]: known["causal_share"] for known in forward["heads"]}
    scale = 1.0 if name == TIMED else own[128] / ahead[0]
    like = "" if name == TIMED else f", in proportion to {TIMED}'s"
    forward["source"] += f"; heads of {MIXED} whose values have 128: {timed['source']}{like}"
    forward["heads"] = sorted([*forward["heads"], _causal(MIXED, mixed, scale)], key=lambda known: known["size"])
    ahead_of = forward["fitted_to"]
    forward["fitted_to"] = _all_of(ahead_of, [_of_timed(f"* {MIXED}")])
    heads = [
        *(_causal(size, back, share / own[128] * scale) for size, share in own.items()),
        _causal(MIXED, mixed_back, scale),
    ]
    note = "" if name == TIMED else f"as much slower than forward as on {TIMED}; not measured on this card"
    ends = (0.85, 1.2) if name == TIMED else (0.75, 1.35)
    heads.sort(key=lambda known: known["size"])
    cudnn["backward"] = _entry(
        heads, timed["source"], as_of, ends, forward["launch_us"], _all_of(ahead_of, [_of_timed("*")]), note
    )


def _timed(size: int, direction: str, launch: float, fit: Fit, held: bool = False) -> Any:
    """Share and half-length of attention that was timed beside training; `held`: instead what they say of all rows, beside what
    was found, and which are held out."""
    rows = np.array(SPEEDS["beside_training"][f"{TIMED} cudnn"], float)
    rows = rows[(rows[:, 2] == size) & ~np.isnan(rows[:, 4 if direction == "forward" else 5])]
    out = np.array([held_out("b200_attention", " ".join(f"{value:.0f}" for value in row[:3])) for row in rows])
    shares = _shares(rows, direction, launch)
    tokens, known = rows[~out][:, 0], shares[~out]
    share, half = fit(tokens, known)
    if direction == "forward" and half < DIAGONAL:  # which sequences as long as these do not tell
        share, half = float(np.median(known * (1 + DIAGONAL / tokens))), DIAGONAL
    return [*zip(rows[:, 0] * share / (rows[:, 0] + half), shares, out, strict=True)] if held else (share, half)


def published_errors(launch: float, fit: Fit) -> dict[str, list[Any]]:
    """Of each table of published speeds: what the line through a series says of each row, what was found, and whether it is held
    out. `launch`: microseconds, of the card whose attention was timed beside training."""
    series: list[Any] = []
    for name, rows in speeds_series().items():
        part, card, kernel, size, mask = name.split()
        share, half = _fitted(part, card, kernel, int(size), mask, fit)
        found = _speeds(part, card, kernel, int(size), mask) / PEAKS[card]
        series += zip(LENGTHS * share / (LENGTHS + half), found, (held_out("attention_speeds", row) for row in rows), strict=True)
    timed = [
        row for size in timed_series() for way in ("forward", "backward") for row in _timed(int(size), way, launch, fit, True)
    ]
    return {"attention_speeds": series, "b200_attention": timed}


def _shares(rows: np.ndarray, direction: str, launch: float) -> np.ndarray:
    """Of the peak, half the square of scores counted: the products of queries and keys, and those with values."""
    length, heads, wide, narrow = rows[:, :4].T
    products = wide + narrow if direction == "forward" else 3 * wide + 2 * narrow
    seconds = (rows[:, 4 if direction == "forward" else 5] - launch) * 1e-6
    return np.asarray(heads * length * (length + 1) * products / seconds / PEAKS[TIMED] / 1e12)


def _causal(size: int, fitted: tuple[float, float], scale: float) -> dict[str, Any]:
    """A head size that was timed with a causal mask only."""
    share, half = fitted[0] * scale, fitted[1]
    return head(size, (share, half), (share, max(half - DIAGONAL, 0.16 * half)))


def _narrow_heads(forward: dict[str, Any], fit: Fit) -> None:
    """Head size 64 on an A100, which no table has: as much slower than 128 as forward and backward together are."""
    wide, narrow = (_published("both", "a100-80gb", "flash2", size, fit) for size in (128, 64))
    known = forward["heads"][0]
    causal, full = (
        (known[f"{mask}_share"] * narrow[f"{mask}_share"] / wide[f"{mask}_share"], known[f"{mask}_half"])
        for mask in ("causal", "full")
    )
    forward["heads"].insert(0, head(64, causal, full))
    forward["fitted_to"] = _all_of(forward["fitted_to"], _speeds_of("both a100-80gb flash2"))
    forward["note"] = "head size 64 is as much slower as forward and backward together are in FlashAttention-2's plot"


def head(size: int, causal: tuple[float, float], full: tuple[float, float]) -> dict[str, Any]:
    """One head size: share and half-length with a causal mask and without."""
    return {
        "size": size,
        "causal_share": round(min(causal[0], 0.95), 4),
        "causal_half": round(causal[1], 1),
        "full_share": round(min(full[0], 0.95), 4),
        "full_half": round(full[1], 1),
    }


def _speeds(part: str, card: str, kernel: str, size: int, mask: str) -> np.ndarray:
    return np.array(SPEEDS[part][f"{card} {kernel}"][f"{size} {mask}"], float)


def _used(part: str, card: str, kernel: str, size: int, mask: str) -> np.ndarray:
    """Which lengths of a series are not held out."""
    rows = speeds_series()[f"{part} {card} {kernel} {size} {mask}"]
    return np.array([not held_out("attention_speeds", row) for row in rows])


def _fitted(part: str, card: str, kernel: str, size: int, mask: str, fit: Fit) -> tuple[float, float]:
    used = _used(part, card, kernel, size, mask)
    return fit(LENGTHS[used], _speeds(part, card, kernel, size, mask)[used] / PEAKS[card])


def _published(part: str, card: str, kernel: str, size: int, fit: Fit) -> dict[str, Any]:
    causal, full = (_fitted(part, card, kernel, size, mask, fit) for mask in ("causal", "full"))
    return head(size, causal, full)


_READ = "nothing"


def _speeds_of(series: str) -> list[dict[str, Any]]:
    """All rows of published series but those held out, as an entry's `fitted_to` says it."""
    return [{"table": "attention_speeds", "rows": [f"{series} *"], "how": "least squares"}]


def _of_timed(rows: str) -> dict[str, Any]:
    return {"table": "b200_attention", "rows": [rows], "how": "least squares"}


def _all_of(*fitted_to: Any) -> Any:
    """What several numbers were fitted to, each once."""
    found = [rows for one in fitted_to if one != _READ for rows in one]
    return [rows for at, rows in enumerate(found) if rows not in found[:at]] or _READ


def _entry(
    heads: list[Any], source: str, as_of: date, ends: tuple[float, float], launch: float, fitted_to: Any, note: str = ""
) -> dict[str, Any]:
    entry = {"launch_us": launch, "heads": heads, "range": list(ends), "source": source, "as_of": as_of, "fitted_to": fitted_to}
    return {**entry, "note": note} if note else entry


def _reference(card: str, kernel: str, size: int, forward: dict[str, Any], fit: Fit) -> tuple[dict[str, float], dict[str, Any]]:
    """Of a published backward pass: its shares over those of forward, by mask, and itself.

    Where forward and backward were published together, backward has what forward, 2 of the 7 products, leaves of the time.
    """
    first = min(forward["heads"], key=lambda known: abs(known["size"] - size))
    fitted = {}
    for mask in ("causal", "full"):
        if f"{card} {kernel}" in SPEEDS["both"]:
            ahead = first[f"{mask}_share"] * PEAKS[card] * LENGTHS / (LENGTHS + first[f"{mask}_half"])
            speed, used = _speeds("both", card, kernel, size, mask), _used("both", card, kernel, size, mask)
            back_speed = 2.5 / np.maximum(3.5 / speed - 1 / ahead, 0.5 / speed)
            fitted[mask] = fit(LENGTHS[used], back_speed[used] / PEAKS[card])
        else:
            share, half = _fitted("backward", card, kernel, size, "full", fit)
            fitted[mask] = (share, half + (DIAGONAL if mask == "causal" else 0))
    back = head(size, fitted["causal"], fitted["full"])
    return {mask: back[f"{mask}_share"] / first[f"{mask}_share"] for mask in ("causal", "full")}, back


def _backward(name: str, kernel: str, forward: dict[str, Any], as_of: date, fit: Fit) -> dict[str, Any]:
    """Backward of a kernel: published of the card, or as much slower than forward as on a card where it was."""
    like, twin = LIKE.get(name, "h100"), STANDS_FOR.get(kernel, kernel)
    base = forward
    if like != name:
        heads = [_published("forward", "h100", twin if like == "h100" else "flash2", size, fit) for size in (64, 128)]
        base = {"heads": heads}
        if like == "a100-80gb":
            scale = A100_FORWARD / heads[1]["full_share"]
            base = {"heads": [head(128, (heads[1]["causal_share"] * scale, 310.0), (A100_FORWARD, 50.0))]}
    found = []
    for ahead in forward["heads"]:
        ratio, back = _reference(like, twin, 64 if ahead["size"] < 96 else 128, base, fit)
        causal, full = ((ahead[f"{mask}_share"] * ratio[mask], back[f"{mask}_half"]) for mask in ("causal", "full"))
        found.append(head(ahead["size"], causal, full))
    both = f"{like} {twin}" in SPEEDS["both"]
    own = like == name and twin == kernel
    note = "" if own else f"as much slower than forward as {twin} is on {like}; not measured on this card"
    part = "both" if both else "backward"
    whose = _all_of(forward["fitted_to"], _speeds_of(f"{part} {like} {twin}"))
    if like == "h100" and not own:
        whose = _all_of(whose, _speeds_of(f"forward h100 {twin}"))
    ends = (0.85, 1.15) if own else (0.75, 1.35)
    return _entry(found, SPEEDS[part]["source"], as_of, ends, forward["launch_us"], whose, note)


A100_FORWARD = 0.66
"""Share of FlashAttention-2's forward on an A100 without a mask, for what its published sum leaves to backward."""


def _efficient(found: dict[str, Any], as_of: date, fit: Fit) -> None:
    """Memory-efficient attention: half as fast as FlashAttention-2 on an A100, and so taken to be wherever that runs."""
    ratios = {}
    for size in (64, 128):
        slow, fast = (_published("both", "a100-80gb", kernel, size, fit)["full_share"] for kernel in ("efficient", "flash2"))
        ratios[size] = slow / fast
    note = "FlashAttention-2's on this card, times what xformers' is of it on an A100, forward and backward together"
    found["efficient"] = {"bfloat16": {}}
    for direction, entry in found["flash2"]["bfloat16"].items():
        heads = []
        for known in entry["heads"]:
            ratio = ratios[64 if known["size"] < 96 else 128]
            causal, full = ((known[f"{mask}_share"] * ratio, known[f"{mask}_half"]) for mask in ("causal", "full"))
            heads.append(head(known["size"], causal, full))
        whose = _all_of(entry["fitted_to"], *(_speeds_of(f"both a100-80gb {kernel}") for kernel in ("efficient", "flash2")))
        like = _entry(heads, SPEEDS["both"]["source"], as_of, (0.7, 1.4), entry["launch_us"], whose, note)
        found["efficient"]["bfloat16"][direction] = like
