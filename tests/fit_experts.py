"""Fit the kernels of a mixture's experts, of each card, engine and type, to aiconfigurator-core's tables of them.

Run by hand:  python -m tests.fit_experts FOLDER [CARD ...]

FOLDER is where aiconfigurator-core 0.12.0 was unpacked; it needs what tests/fit_efficiency.py does, which writes the same when it
fits everything. Of each engine the newest version counts, of its kernels for a type that with the most rows of ranks that divide
each expert, and of these rows those whose tokens choose each expert as often as any other: it is known how many experts they
touch. Where more than eight ranks share experts, rows are left out, and those of models whose experts have no gate.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy.optimize import least_squares

from estimator.timing.experts import RATES
from estimator.timing.measured import FOLDER

ENGINES = ("sglang", "vllm")
RANKS = 8
MXFP4 = 0.53125
BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.00024, "nvfp4": 0.5625, "int4_wo": 0.5625, "w4a16_mxfp4": MXFP4}
BYTES |= {"w4a8_mxfp4_mxfp8": MXFP4}
"""Bytes of a weight with its share of scales; those of int4 are of groups of 32, Kimi-K2.5's."""
TIMES = {"bf16": 1, "fp8": 2, "fp4": 4}
"""The peak of a type over that of bfloat16."""
PARAMETERS = ("launch_us", "each_us", "share", "bandwidth_share", "sharpness", "tile", "passes")
LOW = (2, 1e-4, 0.02, 0.05, 1, 1, 0.05)
HIGH = (200, 5, 0.999, 0.999, 8, 16, 20)
STARTS = ((15, 0.1, 0.5, 0.7, 2, 8, 1), (15, 0.1, 0.5, 0.7, 5, 8, 1))
OTHERS = {"fp8": "flashinfer_cutlass", "w4a16_mxfp4": "sglang_fused_moe_triton|situ_as_silu"}
"""Kernels that are not what a server runs, by type. FlashInfer's it tunes when it starts, and the benchmark
did not: 1.2 ms in fp8 on an H200, where the same kernel in TensorRT-LLM takes 0.19 ms. SGLang's Triton kernel was timed with
weights in MXFP4 that had been made bf16, and took four times as long for a byte; its server runs triton_kernels, as vLLM does.
The activation of Kimi K3 was replaced by another."""
OFF = 0.1
"""How far off sizes are that have a factor of their own, as a logarithm."""
UNGATED = [(512, 22), (128, 6)]
"""Experts, and those of a token, of Nemotron 3, whose experts have no gate, and so two products instead of three."""
SHAPE = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]


def model(x: np.ndarray, card: dict[str, Any], kind: str, peak: float, rows: pd.DataFrame) -> np.ndarray:
    """Milliseconds, as `experts_seconds` has them."""
    launch, each, share, bandwidth, sharpness, tile, passes = x
    tokens, k, inner, topk, experts, tensor, ranks = (rows[name].to_numpy(float) for name in SHAPE)
    n, here = 3 * inner / tensor, experts / ranks
    many = np.maximum(tokens * topk / ranks, 1)
    touched = np.minimum(here, many)
    compute = 2 * touched * np.hypot(many / touched, tile) * n * k / (share * peak * 1e9)
    memory = touched * n * k * BYTES[kind] / (bandwidth * card["memory"] * 1e6)
    moved = 2 * many * (2 * k + n) / (card["memory"] * 1e6)
    together = (compute**sharpness + memory**sharpness) ** (1 / sharpness)
    return np.asarray(1e-3 * (launch + each * touched) + together + passes * moved)


def named(rows: pd.DataFrame) -> list[str]:
    """Experts of a rank, their width, and the hidden size."""
    held = rows.num_experts // rows.moe_ep_size
    return [" x ".join(map(str, size)) for size in zip(held, rows.inter_size, rows.hidden_size, strict=True)]


def factors(rows: pd.DataFrame, predicted: np.ndarray) -> dict[str, float]:
    """Median of measured over predicted of each size that is more than a tenth off: kernels are tuned for some models' sizes."""
    ratio = pd.Series(rows.latency.to_numpy() / predicted).groupby(named(rows)).median()
    return {str(name): round(float(value), 3) for name, value in ratio.items() if abs(np.log(value)) > OFF}


def fit_experts(name: str, card: dict[str, Any], rows: pd.DataFrame, peak_fp4: float) -> dict[str, dict[str, Any]]:
    """Parameters by engine and type."""
    from tests.fit_efficiency import AS_OF, DATA, WHEEL, held_out, rows_of, spread

    found: dict[str, dict[str, Any]] = {}
    for (table, kind), every in rows.groupby(["table", "moe_dtype"]):
        engine = str(table).split()[0]
        if engine not in ENGINES or kind not in RATES:
            continue
        some = every[(every.distribution == "balanced") & (every.moe_ep_size <= RANKS) & (every.latency > 0)]
        if kind in OTHERS:
            some = some[~some.kernel_source.str.contains(OTHERS[kind])]
        some = some[~pd.MultiIndex.from_frame(some[["num_experts", "topk"]]).isin(UNGATED)]
        if some.groupby(SHAPE[1:]).ngroups < 2:
            continue
        usual = some[some.moe_ep_size == 1] if (some.moe_ep_size == 1).any() else some
        some = some[some.kernel_source == usual.kernel_source.mode()[0]]
        peak = card["peak"] * (peak_fp4 if RATES[kind] == "fp4" else TIMES[RATES[kind]])
        held = held_out(some, *SHAPE)
        teach, check = some[~held], some[held]

        def misses(x: np.ndarray, kind: str = kind, peak: float = peak, teach: pd.DataFrame = teach) -> np.ndarray:
            return np.log(model(np.exp(x), card, kind, peak, teach) / teach.latency.to_numpy())

        low, high = np.log(LOW), np.log(HIGH)
        tries = [least_squares(misses, np.log(start), loss="cauchy", f_scale=0.1, bounds=(low, high)) for start in STARTS]
        x = np.exp(min(tries, key=lambda one: float(one.cost)).x)
        sizes = factors(teach, model(x, card, kind, peak, teach))
        own = np.array([sizes.get(name, 1.0) for name in named(check)])
        found.setdefault(engine, {})[kind] = {
            **{key: float(f"{value:.4g}") for key, value in zip(PARAMETERS, x, strict=True)},
            "sizes": sizes,
            "spread": spread(own * model(x, card, kind, peak, check), check.latency.to_numpy()),
            "source": f"{WHEEL}, {DATA}/{card['data']}/moe: {table}, {some.kernel_source.iloc[0]}",
            "as_of": AS_OF,
            "fitted_to": [rows_of("experts", "least errors")],
        }
    return found


def of_card(name: str, where: Path) -> dict[str, dict[str, Any]]:
    """A card's."""
    from tests.fit_efficiency import CARDS, FP4, newest, tables

    card = CARDS[name]
    return fit_experts(name, card, newest(tables(where, f"{card['data']}/moe/*/*/moe_perf.parquet")), FP4.get(name, 4))


def main(where: Path, names: list[str]) -> None:
    """Write the experts of every card, or of these, into its file."""
    from tests.fit_efficiency import CARDS, DATA, written

    for name in names or CARDS:
        path = FOLDER / f"{name}.yaml"
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        found["experts"] = of_card(name, where / DATA)
        path.write_text(written(found), encoding="utf-8")
        for engine, kinds in found["experts"].items():
            for kind, entry in kinds.items():
                print(name, engine, kind, entry["spread"], *(f"{key} {entry[key]}" for key in PARAMETERS))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
