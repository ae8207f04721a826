"""Fit the curves of estimator/timing/curves/ to measured kernels and write them, with docs/efficiency.md and its plots.

Run by hand:  python -m tests.fit_efficiency WHEEL

WHEEL is aiconfigurator-core 0.12.0 as PyPI has it (Apache-2.0, 82 MB: `pip download --no-deps aiconfigurator-core==0.12.0`), or
where it was unpacked. Needs pandas, pyarrow and scipy, which nothing else here does. The tables themselves are not shipped.

A third of each table's rows is held out of every fit, by the hash of its name (tests/held_out.py): rows of one shape are on the
same side whichever framework timed them. Spreads, and the ranges of attention, are those of the rows held out.
"""

from __future__ import annotations

import re
import sys
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy.optimize import least_squares

from estimator.timing.measured import FOLDER
from tests import fit_plots
from tests.efficiency_page import FITS, TERMS
from tests.fit_experts import of_card
from tests.fit_published import DIAGONAL, head, published_attention, published_errors
from tests.fit_steps import sustained_beside_training
from tests.held_out import by_hash, of_series

DATA = "aiconfigurator_core/systems/data"
AS_OF = date(2026, 11, 22)
WHEEL = "aiconfigurator-core 0.12.0 (PyPI, Apache-2.0)"
CARDS: dict[str, dict[str, Any]] = {
    "a100-80gb": {"data": "a100_sxm", "peak": 312, "memory": 2039, "multiprocessors": 108, "cache": 40, "link": 300},
    "h100": {"data": "h100_sxm", "peak": 989.4, "memory": 3350, "multiprocessors": 132, "cache": 50, "link": 450},
    "h200": {"data": "h200_sxm", "peak": 989.4, "memory": 4800, "multiprocessors": 132, "cache": 50, "link": 450},
    "b200": {"data": "b200_sxm", "peak": 2250, "memory": 7672, "multiprocessors": 148, "cache": 126, "link": 900},
    "b300": {"data": "b300_sxm", "peak": 2250, "memory": 7750, "multiprocessors": 148, "cache": 126, "link": 900},
    "gb200": {"data": "gb200", "peak": 2500, "memory": 8000, "multiprocessors": 152, "cache": 126, "link": 900},
    "gb300": {"data": "gb300", "peak": 2500, "memory": 8000, "multiprocessors": 152, "cache": 126, "link": 900},
    "l40s": {"data": "l40s", "peak": 362, "memory": 864, "multiprocessors": 142, "cache": 96, "link": 32},
    "rtx-pro-6000-server": {
        "data": "rtx_pro_6000_server",
        "peak": 467.8,
        "memory": 1792,
        "multiprocessors": 188,
        "cache": 128,
        "link": 64,
    },
}
"""Peak: dense, bfloat16, TFLOP/s. Memory and link: GB/s. Cache: the second level's MB. As the catalogue of accelerators has them,
else as the wheel's systems/*.yaml; caches and multiprocessors from the vendor's white papers."""
RATES = {"bfloat16": 1, "fp8": 2, "fp8_block": 2, "int8": 2, "nvfp4": 4}
"""Peak of a dtype over that of bfloat16."""
FP4 = {"b300": 14000 / 2250, "gb300": 15000 / 2500}
INPUT_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8": 1.0, "nvfp4": 0.5625}
NAMES = {"sq": "int8"}
SUSTAINED_MAMF = {
    "a100-80gb": 0.869,
    "h100": 0.803,
    "b200": 0.776,
    "b300": 0.786,
    "gb200": 0.729,
}
"""Largest share of peak that any product held (stas00/ml-engineering, mamf-finder, bfloat16, table of 2026-08-22)."""
BESIDE_TRAINING = "b200"
"""The card whose products were timed beside real training, where they hold less than in benchmarks, which are shorter."""
COLLECTIVES_IN_TRAINING: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "data" / "collectives.yaml").read_text("utf-8"))
"""A second measurement of collectives, by card."""
LARGE = 2.0 ** np.arange(24, 31)
"""Payloads at which it is asked."""
ELEMENTWISE: dict[str, tuple[float, str]] = {
    "a100-80gb": (
        0.893,
        "torch's product of two tensors on an A800 PCIe of 80 GB, 1727 of 1935 GB/s: mli/transformers-benchmarks #4",
    ),
}
"""Shares of the bandwidth that torch's element-wise kernels reach, where the wheel has none."""
SHOWN = {"a100-80gb": "flash2", "h100": "flash3", "h200": "flash3", "b200": "cudnn", "b300": "cudnn", "gb200": "cudnn"} | {
    "gb300": "cudnn",
    "l40s": "flash2",
    "rtx-pro-6000-server": "flash2",
}
"""The kernel of each card that is plotted."""
NARROW = {"a100-80gb": ("int8",), "h100": ("fp8", "fp8_block"), "b200": ("fp8", "nvfp4"), "b300": ("nvfp4",)} | {
    "l40s": ("fp8",),
    "rtx-pro-6000-server": ("fp8", "nvfp4"),
}
"""Products in few bits that are plotted."""
PARAMETERS = ("launch_us", "share", "bandwidth_share", "sharpness", "prologue", "step_ns", "wave_share", "quantize_bytes")
LOW = (0.5, 0.05, 0.05, 1.0, 1e-3, 1e-3, 1e-4, 1e-3)
HIGH = (40.0, 0.999, 0.999, 6.0, 3000.0, 20.0, 1.0, 16.0)
START = (3.0, 0.8, 0.8, 2.5, 100.0, 0.5, 0.1, 3.0)


def tables(where: Path, pattern: str) -> pd.DataFrame:
    """Every table of a pattern, as one, with the framework's name in it."""
    frames = []
    for path in sorted(where.glob(pattern)):
        frame = pd.read_parquet(path)
        frame["table"] = f"{path.parent.parent.name} {path.parent.name}"
        frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def version(table: str) -> list[int]:
    """The numbers of "framework 1.2.3rc4", to order them."""
    return [int(number) for number in re.findall(r"\d+", table.split()[1])]


def newest(frame: pd.DataFrame) -> pd.DataFrame:
    """Of each framework only the newest version."""
    latest = {name.split()[0]: name for name in sorted(frame.table.unique(), key=version)}
    return frame[frame.table.isin(latest.values())]


def held_out(rows: pd.DataFrame, *columns: str) -> np.ndarray:
    """Which rows are held out, by the names that these columns give them."""
    of_row = rows.groupby(list(columns)).ngroup().to_numpy()
    shapes = np.zeros((of_row.max() + 1, len(columns)), int)
    shapes[of_row] = rows[list(columns)].to_numpy(int)
    return np.array([by_hash(" ".join(map(str, shape))) for shape in shapes])[of_row]


def rows_of(table: str, how: str) -> dict[str, Any]:
    """All rows of a table but those held out, as a number's `fitted_to` says it."""
    return {"table": table, "rows": ["*"], "how": how}


def errors(rows: pd.DataFrame, held: np.ndarray) -> dict[str, dict[str, Any]]:
    """How far off rows are that a curve was fitted to, and rows held out."""
    found = {}
    for side, some in (("used", rows[~held]), ("held_out", rows[held])):
        error = (some.predicted / some.found - 1).abs()
        figures = {"median": error.median(), "p90": error.quantile(0.9), "worst": error.max()}
        found[side] = {"rows": len(some), **{name: round(float(value), 4) for name, value in figures.items()}}
    return found


def spread(predicted: np.ndarray, found: np.ndarray) -> dict[str, Any]:
    """Rows, median and ninetieth percentile of the relative error, and the middle four fifths of found over predicted."""
    error, ratio = np.abs(predicted / found - 1), found / predicted
    low, high = np.quantile(ratio, [0.1, 0.9])
    return {
        "rows": len(found),
        "median": round(float(np.median(error)), 3),
        "p90": round(float(np.quantile(error, 0.9)), 3),
        "factor": [round(float(low), 3), round(float(high), 3)],
    }


def matmul_model(x: np.ndarray, card: dict[str, Any], dtype: str, peak: float, m: Any, n: Any, k: Any) -> np.ndarray:
    """Microseconds of products, as `matmul_seconds` has them; without the pass that quantizes where x is shorter."""
    launch, share, bandwidth, sharpness, prologue, step, wave, quantize = x
    sms, size = card["multiprocessors"], INPUT_BYTES[dtype]
    rows, columns = (np.minimum(tile, 2.0 ** np.ceil(np.log2(of))) for tile, of in ((128, m), (256, n)))
    tiles = np.ceil(m / rows) * np.ceil(n / columns)
    flops = 2 * m * n * k
    waves = np.where(tiles >= sms, 2 * np.ceil(tiles / sms) * sms * rows * columns * k, flops)
    compute = (flops + wave * (waves - flops)) * (1 + prologue / k) / (share * peak * 1e6) + step * k * 1e-3
    memory = (size * (m * k + n * k) + 2 * m * n) / (bandwidth * card["memory"] * 1e3)
    passes = m * k * quantize / (0.85 * card["memory"] * 1e3)
    return launch + (compute**sharpness + memory**sharpness) ** (1 / sharpness) + passes


def fastest(rows: pd.DataFrame, shape: list[str]) -> pd.DataFrame:
    """Of each shape the fastest row."""
    return rows.loc[rows.groupby(shape).latency.idxmin()]


def fit_matmul(name: str, card: dict[str, Any], rows: pd.DataFrame, dtype: str) -> tuple[dict[str, Any], pd.DataFrame]:
    """The parameters of one dtype, and all rows but those of the cache with what they predict.

    Rows of all frameworks count alike. A product that is bound by memory and whose operands stay in the cache from one repetition
    of the benchmark to the next is left out: no step finds its weights there.
    """
    peak = card["peak"] * (FP4.get(name, 4) if dtype == "nvfp4" else RATES[dtype])
    rows = rows[(rows.latency > 0) & (rows.n >= 64) & (rows.k >= 64)]
    m, n, k, found = (rows[c].to_numpy(float) for c in ("m", "n", "k", "latency"))
    found = found * 1e3
    size = INPUT_BYTES[dtype]
    megabytes = (size * (m * k + n * k) + 2 * m * n) / 1e6
    bound = megabytes / card["memory"] * 1e3 > 0.7 * 2 * m * n * k / peak / 1e6
    cached = bound & (megabytes > 1) & (megabytes < 1.5 * card["cache"])
    held = held_out(rows, "m", "n", "k")
    quantized = dtype != "bfloat16"
    teach = ~held & ~cached
    weight = np.where(training_like(rows)[teach], 2.0, 1.0)

    def solve(names: tuple[str, ...]) -> np.ndarray:
        free = [PARAMETERS.index(name) for name in names]

        def full(x: np.ndarray) -> np.ndarray:
            values = np.zeros(len(PARAMETERS))
            values[free] = np.exp(x)
            return values

        def misses(x: np.ndarray) -> np.ndarray:
            predicted = matmul_model(full(x), card, dtype, peak, m[teach], n[teach], k[teach])
            return np.asarray(weight * np.log(predicted / found[teach]))

        low, high, start = (np.log(np.array(v)[free]) for v in (LOW, HIGH, START))
        return full(least_squares(misses, start, loss="soft_l1", f_scale=0.1, bounds=(low, high)).x)

    x = solve(PARAMETERS if quantized else PARAMETERS[:7])
    predicted = matmul_model(x, card, dtype, peak, m, n, k)
    rows = rows.assign(found=found, predicted=predicted, ideal=2 * m * n * k / peak / 1e6)
    for terms in () if quantized else (4, 5, 6):
        rows[f"terms {terms}"] = matmul_model(solve(PARAMETERS[:terms]), card, dtype, peak, m, n, k)
    rows = rows.assign(held=held)
    check = rows[held & ~cached]
    training = check[training_like(check)]
    long = rows[~held & (rows.ideal > 2000) & (rows.m >= 1024) & (rows.n >= 1024) & (rows.k >= 1024)]
    passes = long.m * long.k * x[-1] / (0.85 * card["memory"] * 1e3)
    by_table = (long.ideal / (long.found - passes)).groupby(long.table).median()
    high_share = float(by_table.max())
    mamf = SUSTAINED_MAMF.get(name) if dtype == "bfloat16" else None
    sustained, low_share, where, whose = float(by_table.mean()), float(by_table.min()), "", rows_of("products", "median")
    if name == BESIDE_TRAINING and dtype == "bfloat16":
        sustained, low_share, where, whose = sustained_beside_training()
    fitted = {p: round(float(v), 4) for p, v in zip(PARAMETERS, x, strict=True)}
    fitted["wave_share"] = fitted["wave_share"] if fitted["wave_share"] >= 0.02 else 0.0
    return {
        **fitted,
        "sustained": {
            "value": round(sustained, 3),
            "unit": "share of dense peak",
            "range": [round(low_share, 3), round(max(high_share, mamf or 0), 3)],
            "source": f"{where}{WHEEL}: products of more than 2 ms at peak, mean over frameworks of the median"
            + (f"; mamf-finder's best product {mamf} (stas00/ml-engineering)" if mamf else ""),
            "as_of": AS_OF,
            "fitted_to": [whose],
        },
        "spread": spread(check.predicted.to_numpy(), check.found.to_numpy()),
        "training_spread": spread(training.predicted.to_numpy(), training.found.to_numpy()),
        "source": f"{WHEEL}, {DATA}/{card['data']}/gemm: {', '.join(sorted(rows.table.unique()))}",
        "as_of": AS_OF,
        "fitted_to": [rows_of("products", "least squares")],
    }, rows[~cached]


def training_like(rows: pd.DataFrame) -> pd.Series:
    """Products of the size that a training step's are."""
    return (rows.m >= 1024) & (rows.n >= 512) & (rows.k >= 512)


def fit_half(length: np.ndarray, share: np.ndarray) -> tuple[float, float]:
    """Share at endless length and half-length of share = e · s / (s + h)."""

    def misses(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(np.exp(x[0]) * length / (length + np.exp(x[1])) / share))

    solved = least_squares(misses, [np.log(share.max()), np.log(300.0)], loss="soft_l1", f_scale=0.1)
    e, h = np.exp(solved.x)
    return float(e), float(h)


def context_rows(where: Path, card: dict[str, Any]) -> pd.DataFrame:
    """Prefill of whole prompts, causal, with the FLOPs of the half square.

    The calls that were timed write keys and values to a paged cache as well: with the same products, a call with as many key
    heads as query heads takes longer than one with few, by 8 to 15 bytes per element of a key at full bandwidth. Reading and
    writing a key and a value is 8 bytes at 0.8 of bandwidth, 6 in fp8; these are taken off, as training writes no cache.
    """
    rows = newest(tables(where, f"{card['data']}/attention/*/*/context_attention_perf.parquet"))
    for column in ("step", "window_size"):
        rows = rows[rows[column].fillna(0) == 0] if column in rows else rows
    rows = rows[(rows.attn_dtype == rows.kv_cache_dtype) & (rows.latency > 0)]
    length = rows.isl.astype(float)
    keys = rows.batch_size * length * rows.num_key_value_heads * rows.head_dim
    written = keys * np.where(rows.kv_cache_dtype == "fp8", 6, 8) / (0.8 * card["memory"] * 1e6)
    flops = 2 * rows.batch_size * rows.num_heads * length * (length + 1) * rows.head_dim
    return rows.assign(causal=True, flops=flops, latency=np.maximum(rows.latency - written, 0.3 * rows.latency))


def encoder_rows(where: Path, card: dict[str, Any]) -> pd.DataFrame:
    """Attention without a mask."""
    rows = tables(where, f"{card['data']}/encoder_attention/*/*/encoder_attention_perf.parquet")
    if rows.empty:
        return rows
    length = rows.isl.astype(float)
    rows = rows.assign(num_key_value_heads=rows.num_heads)
    return rows.assign(causal=False, flops=4 * rows.batch_size * rows.num_heads * length**2 * rows.head_dim)[rows.latency > 0]


KERNELS = {
    "flash2": ("flash_attention", "vllm_flash_attn", "vllm_flash_attn_fa2", "flashinfer", "vllm_vit_flash_attn_fa2"),
    "flash3": ("fa3", "vllm_flash_attn_fa3", "flash_attention_v3", "vllm_vit_flash_attn_fa3"),
    "flash4": ("flash_attention_v4", "vllm_vit_flash_attn_fa4"),
    "cudnn": ("trtllm_mha", "vllm_flashinfer", "vllm_flashinfer_trtllmprefill"),
}
"""Which kernels of the tables stand for which of torch's. TensorRT-LLM's own on Blackwell are NVIDIA's, as cuDNN's are."""


def fit_attention(name: str, card: dict[str, Any], where: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Kernels by dtype and direction, and the rows with what the curves predict."""
    rows = pd.concat([context_rows(where, card), encoder_rows(where, card)], ignore_index=True)
    found: dict[str, Any] = {}
    judged = []
    for kernel, sources in KERNELS.items():
        for dtype in ("bfloat16", "fp8"):
            some = rows[rows.kernel_source.isin(sources) & (rows.attn_dtype == dtype)]
            if kernel == "flash2" and name in ("b200", "b300", "gb200", "gb300"):
                continue
            fit, check = _fit_kernel(some, card, card["peak"] * RATES[dtype])
            if fit:
                source = f"{WHEEL}, {DATA}/{card['data']}: {', '.join(sorted(some.kernel_source.unique()))}"
                fitted_to = [rows_of("attention", "least squares")]
                entry = {**fit, "source": source, "as_of": AS_OF, "fitted_to": fitted_to}
                found.setdefault(kernel, {}).setdefault(dtype, {})["forward"] = entry
                judged.append(check.assign(kernel=kernel, dtype=dtype))
    published_attention(name, found, card, AS_OF, fit_half)
    return found, pd.concat(judged, ignore_index=True)


def _fit_kernel(rows: pd.DataFrame, card: dict[str, Any], peak: float) -> tuple[dict[str, Any], pd.DataFrame]:
    """One kernel: launch from its smallest calls, share and half-lengths by head size from calls that fill the card, of each
    shape the fastest framework's; the range is that of all held out."""
    if rows.empty:
        return {}, rows
    shape = ["causal", "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim"]
    rows = rows.assign(held=held_out(rows, *shape))
    launch = float(rows[~rows.held].latency.quantile(0.02)) * 1e3
    full = rows[(rows.batch_size * rows.num_heads * rows.isl / 128 >= 8 * card["multiprocessors"]) & (rows.isl >= 256)]
    full = full.assign(share=full.flops / peak / 1e6 / np.maximum(full.latency * 1e3 - launch, 0.2 * full.latency * 1e3))
    heads: list[dict[str, Any]] = []
    kept = []
    full = full.assign(fastest=full.groupby(shape).latency.transform("min") == full.latency)
    for size, group in full.groupby("head_dim"):
        fits = {}
        quick = group[group.fastest & ~group.held]
        for mask, some in (("causal", quick[quick.causal]), ("full", quick[~quick.causal])):
            if len(some) >= 20 and size not in (72, 80, 512):
                fits[mask] = fit_half(some.isl.to_numpy(float), some.share.to_numpy(float))
        if not fits:
            continue
        e, h = fits.get("causal") or (fits["full"][0], fits["full"][1] + DIAGONAL)
        plain = fits.get("full") or (e, max(h - DIAGONAL, 0.16 * h))
        heads.append(head(int(size), (e, h), plain))
        share, half = np.where(group.causal, e, plain[0]), np.where(group.causal, h, plain[1])
        time = launch + group.flops / (share * peak * 1e6) * (1 + half / group.isl)
        kept.append(group.assign(predicted=time, found=group.latency * 1e3))
    if not heads:
        return {}, rows
    check = pd.concat(kept)
    judge = check[check.held]
    low, high = spread(judge.predicted.to_numpy(), judge.found.to_numpy())["factor"]
    return {"launch_us": round(launch, 2), "heads": heads, "range": [low, high]}, check


def fit_memory(card: dict[str, Any], where: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Casts to fp8 that read two bytes and write one, larger than the cache or a tenth of a megabyte."""
    rows = newest(tables(where, f"{card['data']}/quantize/*/*/scale_matrix_perf.parquet"))
    rows = rows[rows.table.str.startswith(("vllm", "trtllm"))]
    rows = rows.assign(moved=3.0 * rows.m * rows.k, found=rows.latency * 1e3)
    rows = rows.assign(held=held_out(rows, "m", "k"))
    small, large = rows[rows.moved < 1e5], rows[rows.moved > 1.5e6 * card["cache"] * 1.5]
    launch = float(small[~small.held].found.median())
    used = large[~large.held]
    share = used.moved / 1e3 / card["memory"] / (used.found - launch)
    fit: dict[str, Any] = {"launch_us": round(launch, 2), "share": round(float(share.median()), 3)}
    fit["range"] = [round(float(share.quantile(q)), 3) for q in (0.1, 0.9)]
    rows = large.assign(predicted=launch + large.moved / 1e3 / card["memory"] / fit["share"])
    source = f"{WHEEL}, {DATA}/{card['data']}/quantize: casts from bf16 to fp8 by vLLM and TensorRT-LLM, beyond the cache"
    return {**fit, "source": source, "as_of": AS_OF, "fitted_to": [rows_of("casts", "median")]}, rows


def fit_decode(card: dict[str, Any], where: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Attention of one new token: bytes of keys and values that it reads."""
    rows = newest(tables(where, f"{card['data']}/attention/*/*/generation_attention_perf.parquet"))
    rows = rows[(rows.latency > 0) & (rows.kv_cache_dtype == "bfloat16") & (rows.head_dim == 128)]
    rows = rows[rows.window_size.fillna(0) == 0] if "window_size" in rows else rows
    moved = 4.0 * rows.batch_size * (rows.step + rows.isl) * rows.num_key_value_heads * rows.head_dim
    rows = rows.assign(moved=moved, found=rows.latency * 1e3)
    shape = ["batch_size", "step", "num_heads", "num_key_value_heads"]
    rows = rows.assign(held=held_out(rows, *shape))
    launch = float(rows[(rows.moved < 1e6) & ~rows.held].found.median())
    large = rows[rows.moved > 3e6 * card["cache"]]
    large = large.assign(share=large.moved / 1e3 / card["memory"] / np.maximum(large.found - launch, 1))
    best = large.loc[large.groupby(shape).share.idxmax()]
    best = best[best.share < 1]
    share = best[~best.held].share
    source = f"{WHEEL}, {DATA}/{card['data']}/attention: the fastest kernel of each shape, head size 128, caches beyond the cache"
    ends = [round(float(share.quantile(q)), 3) for q in (0.1, 0.9)]
    fit: dict[str, Any] = {"launch_us": round(launch, 2), "share": round(float(share.median()), 3), "range": ends}
    judged = best.assign(predicted=launch + best.moved / 1e3 / card["memory"] / fit["share"])
    return {**fit, "source": source, "as_of": AS_OF, "fitted_to": [rows_of("decoding", "median")]}, judged


def fit_collectives(name: str, card: dict[str, Any], where: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Latency, share of the link and root term of each collective, by ranks; half precision."""
    rows = tables(where, f"{card['data']}/comm/nccl/*/nccl_perf.parquet")
    rows = rows[rows.nccl_dtype == "half"]
    found: dict[str, Any] = {}
    judged, second = [], COLLECTIVES_IN_TRAINING.get(name)
    for operation, kind in {op: op.replace("alltoall", "all_to_all") for op in sorted(rows.op_name.unique())}.items():
        ranks: dict[int, list[float]] = {}
        kept = []
        used = set()
        for count in (2, 4, 8):
            some = rows[(rows.op_name == operation) & (rows.num_gpus == count)]
            if some.empty:
                continue
            some = some[some.table == max(some.table, key=version)].sort_values("message_size")
            used |= set(some.table)
            payload, time = some.message_size.to_numpy(float) * 2, some.latency.to_numpy(float) * 1e3
            times = 2 if kind == "all_reduce" else 1
            factor = times * (count - 1) / count
            if second:
                share, each, besides = second[kind]
                line = factor * LARGE / (share * 900 * 2**30 / 1e6) + each * times * (count - 1) + besides[count]
                some = pd.concat([some, pd.DataFrame({"message_size": LARGE / 2, "latency": line / 1e3})])
                payload, time = np.append(payload, LARGE), np.append(time, line)

            def model(x: np.ndarray, payload: np.ndarray = payload, factor: float = factor) -> np.ndarray:
                a, b, g = np.exp(x)
                return np.asarray(a + factor * payload / (b * card["link"] * 1e3) + g * np.sqrt(payload / 2**20))

            names = [f"{operation} {count} {elements:.0f}" for elements in payload / 2]
            ends = len(names) - len(LARGE) * bool(second)
            held = np.array([name in of_series(part) for part in (names[:ends], names[ends:]) for name in part])

            def misses(x: np.ndarray, time: np.ndarray = time, used: np.ndarray = ~held) -> np.ndarray:
                return np.asarray(np.log(model(x) / time)[used])

            solved = least_squares(misses, np.log([time.min(), 0.7, 5.0]), loss="soft_l1", f_scale=0.1)
            ranks[count] = [round(float(value), 3) for value in np.exp(solved.x)]
            kept.append(some.assign(kind=kind, payload=payload, found=time, predicted=model(solved.x), held=held))
        check = pd.concat(kept)
        judged.append(check)
        source = f"{WHEEL}, {DATA}/{card['data']}/comm: {', '.join(sorted(used))}, half precision, in one node"
        source += f"; {second['source']}, for half of the weight from 16 MiB on" if second else ""
        found[kind] = {
            "ranks": ranks,
            "spread": spread(*(check[check.held][column].to_numpy() for column in ("predicted", "found"))),
            "source": source,
            "as_of": AS_OF,
            "fitted_to": [rows_of("collectives", "least squares")],
        }
    return found, pd.concat(judged, ignore_index=True)


def fit(name: str, where: Path) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """One card's file, and the rows it was judged on."""
    card = CARDS[name]
    products = newest(tables(where, f"{card['data']}/gemm/*/*/gemm_perf.parquet"))
    products = products.assign(dtype=products.gemm_dtype.replace(NAMES))
    matmul, judged = {}, {}
    for dtype in RATES:
        some = products[(products.dtype == dtype) & (products.latency > 0)]
        if dtype == "fp8_block":
            some = fastest(some, ["m", "n", "k"])
        if len(some):
            matmul[dtype], judged[f"matmul {dtype}"] = fit_matmul(name, card, some, dtype)
    attention, judged["attention"] = fit_attention(name, card, where)
    decode, judged["decoding"] = fit_decode(card, where)
    if (where / card["data"] / "quantize").is_dir():
        memory, judged["casts"] = fit_memory(card, where)
    else:
        share, source = ELEMENTWISE.get(name, (decode["share"], f"{WHEEL}: that of reading keys and values"))
        memory = {
            "launch_us": 1.8,
            "share": share,
            "range": [0.7, 0.92],
            "source": f"{source}; launch of an H100",
            "as_of": AS_OF,
            "fitted_to": "nothing" if name in ELEMENTWISE else [rows_of("decoding", "median")],
        }
    collectives, judged["collectives"] = fit_collectives(name, card, where)
    parts = {"memory": memory, "decode": decode, "collectives": collectives, "experts": of_card(name, where)}
    card_facts = {"name": name, "multiprocessors": card["multiprocessors"], "link": card["link"]}
    return {**card_facts, "matmul": matmul, "attention": attention, **parts}, judged


class Plain(yaml.SafeDumper):
    """Without anchors for what is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class Inline(dict[str, Any]):
    """What is written on one line."""


Plain.add_representer(Inline, lambda dumper, data: dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=True))


def written(found: dict[str, Any]) -> str:
    """A card's file."""
    title = f"# What was measured on a {found['name']}: written by tests/fit_efficiency.py, read by estimator.timing.measured.\n"
    text = yaml.dump(_inlined(found), Dumper=Plain, sort_keys=False, width=140, default_flow_style=None, allow_unicode=True)
    return f"{title}{text}"


def _inlined(value: Any) -> Any:
    """With rows that numbers were fitted to on one line each."""
    if isinstance(value, list):
        return [_inlined(one) for one in value]
    if isinstance(value, dict):
        kept = {key: _inlined(one) for key, one in value.items()}
        return Inline(kept) if "table" in kept else kept
    return value


def main(where: Path) -> None:
    """Fit every card and write everything."""
    if where.suffix == ".whl":
        unpacked = where.with_suffix("")
        if not unpacked.is_dir():
            with zipfile.ZipFile(where) as archive:
                archive.extractall(unpacked)
        where = unpacked
    found, judged = {}, {}
    for name in CARDS:
        found[name], judged[name] = fit(name, where / DATA)
        (FOLDER / f"{name}.yaml").write_text(written(found[name]), encoding="utf-8")
        print(name, {d: (v["training_spread"]["median"], v["training_spread"]["p90"]) for d, v in found[name]["matmul"].items()})
    judged_by = {
        name: {table: errors(rows, rows.held.to_numpy(bool)) for table, rows in of.items()} for name, of in judged.items()
    }
    judged_by["published"] = {table: errors(rows, rows.held.to_numpy(bool)) for table, rows in _published(found).items()}
    FITS.write_text(yaml.dump(judged_by, Dumper=Plain, sort_keys=False, width=140), encoding="utf-8")
    judged = {name: {table: shown_rows(table, rows) for table, rows in of.items()} for name, of in judged.items()}
    terms = {name: errors_by_terms(of["matmul bfloat16"]) for name, of in judged.items()}
    TERMS.write_text(yaml.dump(terms, Dumper=Plain, sort_keys=False, default_flow_style=None), encoding="utf-8")
    fit_plots.products("efficiency-products", [(name, of["matmul bfloat16"]) for name, of in judged.items()], training_like)
    narrow = [(name, dtype) for name, dtypes in NARROW.items() for dtype in dtypes]
    fit_plots.products("efficiency-narrow", [(f"{c}, {d}", judged[c][f"matmul {d}"]) for c, d in narrow], training_like)
    kernels = []
    for name, kernel in SHOWN.items():
        rows = judged[name]["attention"]
        rows = rows[(rows.kernel == kernel) & (rows.dtype == "bfloat16") & rows.fastest]
        kernels.append((f"{name}, {kernel}", rows, found[name]["attention"][kernel]["bfloat16"]["forward"]))
    fit_plots.attention(kernels, {name: card["peak"] for name, card in CARDS.items()})
    fit_plots.collectives([(name, of["collectives"]) for name, of in judged.items()])


def _published(found: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """Published speeds of attention beside the lines that were fitted to them."""
    launch = found[BESIDE_TRAINING]["attention"]["cudnn"]["bfloat16"]["forward"]["launch_us"]
    columns = ["predicted", "found", "held"]
    return {table: pd.DataFrame(rows, columns=columns) for table, rows in published_errors(launch, fit_half).items()}


def shown_rows(table: str, rows: pd.DataFrame) -> pd.DataFrame:
    """What is plotted: of products what was held out, of the rest all."""
    return rows[rows.held] if table.startswith("matmul") else rows


def errors_by_terms(rows: pd.DataFrame) -> dict[str, list[float]]:
    """Median and ninetieth percentile of the error, of all products and of training's, with one term after another."""
    errors = {}
    for title, column in (
        ("p-norm", "terms 4"),
        ("with prologue", "terms 5"),
        ("and step", "terms 6"),
        ("and waves", "predicted"),
    ):
        error = (rows[column] / rows.found - 1).abs()
        errors[title] = [round(float(of.quantile(q)), 4) for of in (error, error[training_like(rows)]) for q in (0.5, 0.9)]
    return errors


if __name__ == "__main__":
    main(Path(sys.argv[1]))
