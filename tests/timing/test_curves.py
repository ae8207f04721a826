"""Curves of measured kernels: in plausible ranges, bounded by the roofline, monotone, near what was measured, for every card."""

from __future__ import annotations

import re
from typing import Any

import pytest

from estimator.contract.errors import NotModelled
from estimator.facts import catalogue
from estimator.facts.fact import MeasuredFact
from estimator.hardware.accelerator import FOLDER as ACCELERATORS
from estimator.hardware.accelerator import Accelerator, accelerator
from estimator.timing import curves as timing
from estimator.timing.experts import RATES, experts_seconds, measured_experts
from estimator.timing.measured import FOLDER, Experts, Matmul, load, shared
from tests import efficiency_page
from tests.constants import sourced
from tests.jobs import TESTS, content

CASES: dict[str, Any] = content(TESTS / "cases" / "kernels.yaml")
MEASURED = catalogue.names(FOLDER)
CARDS = catalogue.names(ACCELERATORS)
NVIDIA = [name for name in CARDS if accelerator(name).vendor == "nvidia"]
OWN = [name for name in MEASURED if name in CARDS]
SIZES = (1, 64, 129, 1000, 1024, 4096, 4097, 16384)


@pytest.mark.parametrize("name", MEASURED)
def test_parameters_can_be(name: str) -> None:
    measured = load(name)
    assert measured.name == name
    for p in measured.matmul.values():
        assert 0.3 < p.share < 1
        assert 0.5 < p.bandwidth_share < 1
        assert 1 <= p.sharpness <= 6
        assert 0 <= p.wave_share <= 1
        assert 1 < p.launch_us < 45
        assert 0 <= p.prologue < 1500
        assert 0 <= p.step_ns < 10
        assert p.sustained.low <= p.sustained.value <= p.sustained.high <= 1
        assert p.training_spread.median < 0.11
        assert p.spread.factor[0] < 1 < p.spread.factor[1]
    for _, entry in sourced(measured):
        assert len(entry.source) > 30
        assert entry.as_of.year >= 2026
    for stream in (measured.memory, measured.decode):
        assert 0.6 < stream.share < 1
        assert stream.range[0] <= stream.share <= stream.range[1]
    for collective in measured.collectives.values():
        assert collective.spread.median < 0.12
        for alpha, share, gamma in collective.ranks.values():
            assert 1 < alpha < 50
            assert 0 < share < 1.3
            assert gamma >= 0


@pytest.mark.parametrize("name", MEASURED)
def test_experts_parameters_can_be(name: str) -> None:
    """Those of rows held out lie within a third in the middle: of an engine's kernel some sizes were tuned and some were not."""
    for kinds in load(name).experts.values():
        for p in kinds.values():
            assert 1 < p.launch_us < 60
            assert 0 <= p.each_us < 2
            assert 0.02 < p.share < 1
            assert 0.1 < p.bandwidth_share < 1
            assert 1 <= p.sharpness <= 8
            assert p.spread.median < 0.3
            assert p.spread.factor[0] < 1 < p.spread.factor[1]


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_more_experts_rows_and_columns_take_longer(name: str, engine: str) -> None:
    """And no less than reading the weights of those that are touched, or multiplying with them."""
    measured, card = timing.curves(name), accelerator(name)
    for kind, each in (
        ("bfloat16", 2.0),
        ("fp8_block", 1.0),
        ("nvfp4", 0.5625),
        ("int4_wo", 0.5),
        ("w4a16_mxfp4", 0.53125),
        ("w4a8_mxfp4_mxfp8", 0.53125),
    ):
        known = measured_experts(measured, card, engine, kind)
        if known is None:
            continue

        def took(touched: int, rows: int, n: int, k: int, kind: str = kind, each: float = each, p: Experts = known) -> float:
            return experts_seconds(p, card, kind, (touched, rows, n, k, 128), touched * n * k * each)

        for shapes in (
            [(many, 8 * many, 4608, 4096) for many in (1, 8, 64, 128)],
            [(128, rows, 4608, 4096) for rows in (128, 1024, 65536)],
            [(128, 1024, width, 4096) for width in (384, 4608)],
        ):
            times = [took(*shape) for shape in shapes]
            assert times == sorted(times)
            for (touched, rows, n, k), seconds in zip(shapes, times, strict=True):
                assert seconds > touched * n * k * each / (card.memory_bandwidth.value * 1e9)
                assert seconds > 2 * rows * n * k / (card.peak[RATES[kind]].value * 1e12)


@pytest.mark.parametrize("name", MEASURED)
def test_every_kernel_has_both_directions(name: str) -> None:
    for dtypes in load(name).attention.values():
        if "bfloat16" in dtypes:
            assert set(dtypes["bfloat16"]) == {"forward", "backward"}
        for directions in dtypes.values():
            for entry in directions.values():
                assert [head.size for head in entry.heads] == sorted({head.size for head in entry.heads})
                assert all(0.05 < share < 0.96 for head in entry.heads for share in (head.causal_share, head.full_share))


@pytest.mark.parametrize("name", NVIDIA)
def test_every_nvidia_card_has_curves(name: str) -> None:
    measured, card = timing.curves(name), accelerator(name)
    assert measured.name == name
    assert (measured.borrowed_from is None) == (name in MEASURED)
    assert measured.widen[0] <= 1 <= measured.widen[1]
    dtype = "bfloat16" if card.bf16 else "float16" if "fp16" in card.peak else "float32"
    assert timing.matmul_seconds(measured, card, 4096, 4096, 4096, dtype=dtype) > 0
    for direction in ("forward", "backward"):
        assert timing.attention_seconds(measured, card, 1e12, 128, 2048, True, direction, "flash2", dtype) > 0


def test_what_was_not_measured_is_refused() -> None:
    with pytest.raises(NotModelled, match="nothing like mi300x was measured"):
        timing.curves("mi300x")
    a100, card = timing.curves("a100"), accelerator("a100")
    with pytest.raises(NotModelled, match="products in fp8 were not measured on a100-80gb"):
        timing.matmul_seconds(a100, card, 8, 8, 8, dtype="fp8")
    with pytest.raises(
        NotModelled, match="attention by flash3 in bfloat16, forward, was not measured on a100-80gb; known are efficient"
    ):
        timing.attention_seconds(a100, card, 1e9, 64, 512, True, kernel="flash3")
    t4 = accelerator("t4")
    with pytest.raises(NotModelled, match="the peak of t4 in bfloat16 is not known"):
        timing.matmul_seconds(timing.curves("t4"), t4, 8, 8, 8)


@pytest.mark.parametrize("name", OWN)
def test_a_bigger_product_is_never_quicker_nor_quicker_than_the_roofline(name: str) -> None:
    measured, card = timing.curves(name), accelerator(name)
    for dtype in (d for d in measured.matmul if _has_peak(card, d)):
        for sustained in (False, True):
            for m in SIZES:
                for n in SIZES:
                    times = [timing.matmul_seconds(measured, card, m, n, k, 1, dtype, sustained) for k in SIZES]
                    assert times == sorted(times)
                    swapped = [timing.matmul_seconds(measured, card, k, n, m, 1, dtype, sustained) for k in SIZES]
                    assert swapped == sorted(swapped)
                    turned = [timing.matmul_seconds(measured, card, n, k, m, 1, dtype, sustained) for k in SIZES]
                    assert turned == sorted(turned)
                    floor = [2 * m * n * k / timing.peak(card, dtype) for k in SIZES]
                    assert all(time > least for time, least in zip(times, floor, strict=True))
    assert timing.matmul_seconds(measured, card, 512, 512, 512, 8) < 8 * timing.matmul_seconds(measured, card, 512, 512, 512)


def _has_peak(card: Accelerator, dtype: str) -> bool:
    return timing.DTYPES[dtype][0] in card.peak


@pytest.mark.parametrize("name", OWN)
def test_long_sequences_and_big_payloads_take_longer(name: str) -> None:
    measured, card = timing.curves(name), accelerator(name)
    for kernel, dtypes in measured.attention.items():
        for dtype, directions in dtypes.items():
            if not _has_peak(card, dtype):
                continue
            for direction in directions:
                for size in (32, 64, 96, 128, 256, 512):
                    for causal in (False, True):
                        flops = [4.0 * s * s * size for s in (256, 1024, 4096)]
                        times = [
                            timing.attention_seconds(measured, card, f, size, s, causal, direction, kernel, dtype)
                            for f, s in zip(flops, (256, 1024, 4096), strict=True)
                        ]
                        assert times == sorted(times)
                        assert times[-1] > flops[-1] / (2 if causal else 1) / timing.peak(card, dtype)
    for kind in measured.collectives:
        payloads = [2.0**i for i in range(10, 34, 4)]
        for nodes in (1, 4):
            times = [timing.collective_seconds(measured, kind, p, 8, nodes, measured.link, 50) for p in payloads]
            assert times == sorted(times)
        ranks = [timing.collective_seconds(measured, kind, 1e9, n, 1, 900, 0) for n in (1, 2, 3, 4, 6, 8, 16)]
        assert ranks[0] == 0
        assert all(ranks[1:])
    assert timing.memory_seconds(measured, card, 1e9) > 1e9 / card.memory_bandwidth.value / 1e9


def test_between_head_sizes_attention_lies_between() -> None:
    measured, card = timing.curves("h100"), accelerator("h100")
    narrow, middle, wide = (timing.attention_seconds(measured, card, 1e13, d, 8192, True, kernel="flash3") for d in (64, 96, 128))
    assert wide < middle < narrow


@pytest.mark.parametrize(
    "case", CASES["products"], ids=lambda case: f"{case['card']} {case['dtype']} {case['m']}x{case['n']}x{case['k']}"
)
def test_measured_products(case: dict[str, Any]) -> None:
    """Rows of the tables that were fitted, within what the curve says of its spread: a factor of the ninetieth percentile."""
    measured = load(case["card"])
    p: Matmul = measured.matmul[case["dtype"]]
    card = accelerator(case["card"])
    shape = case["m"], case["n"], case["k"]
    seconds = timing.matmul_seconds(measured, card, *shape, dtype=case["dtype"], sustained=False, quantize=True)
    assert 1 / (1 + 1.5 * p.spread.p90) < seconds * 1e6 / case["us"] < 1 + 1.5 * p.spread.p90


@pytest.mark.parametrize(
    "case", CASES["attention"], ids=lambda case: f"{case['card']} {case['kernel']} {case['tokens']} {case['direction']}"
)
def test_measured_attention(case: dict[str, Any]) -> None:
    """Calls of a kernel, by the TFLOP/s that were published, or by the time in the tables less that of writing keys and values to
    the cache, which training does not."""
    measured, card = load(case["card"]), accelerator(case["card"])
    flops = (4 if case["direction"] == "forward" else 10) * case["batch"] * case["heads"] * case["tokens"] ** 2.0 * case["size"]
    sizes = (flops, case["size"], case["tokens"], case["causal"])
    seconds = timing.attention_seconds(measured, card, *sizes, case["direction"], case["kernel"])
    low, high = measured.attention[case["kernel"]]["bfloat16"][case["direction"]].range
    if "tflops" in case:
        found = flops / (2 if case["causal"] else 1) / case["tflops"] / 1e12
    else:
        cache = 8.0 * case["batch"] * case["key_heads"] * case["tokens"] * case["size"]
        found = case["us"] * 1e-6 - cache / (0.8e9 * card.memory_bandwidth.value)
    assert low * 0.95 < found / seconds < high * 1.05


@pytest.mark.parametrize(
    "case", CASES["collectives"], ids=lambda case: f"{case['card']} {case['kind']} {case['ranks']} {case['payload']}"
)
def test_measured_collectives(case: dict[str, Any]) -> None:
    measured = load(case["card"])
    seconds = timing.collective_seconds(measured, case["kind"], case["payload"], case["ranks"], link=measured.link)
    assert seconds * 1e6 == pytest.approx(case["us"], rel=2 * measured.collectives[case["kind"]].spread.p90)


@pytest.mark.parametrize("case", CASES["nodes"], ids=lambda case: f"{case['payload']}")
def test_measured_over_nodes(case: dict[str, Any]) -> None:
    """All reduce over four nodes of eight: near the plateau; short ones wait for the network, within its range."""
    payload, ranks = case["payload"], 32
    seconds = timing.collective_seconds(timing.curves("b200"), "all_reduce", payload, 8, 4, 900, 50)
    found = 2 * (ranks - 1) / ranks * payload / case["bus"] / 1e9
    low, high = shared().network_hop_us.range or (0, 0)
    hops = 4e-6 * (high - low)
    assert seconds * 0.9 < found < seconds * 1.35 + hops


def test_copies() -> None:
    assert timing.transfer_seconds(376e9, 450) == pytest.approx(1, rel=0.05)
    assert timing.copy_seconds(55.4e9, 63) == pytest.approx(1, rel=0.02)
    assert timing.copy_seconds(1e9, 32, pinned=False) > timing.copy_seconds(1e9, 32)


def test_who_borrows_is_said() -> None:
    page = efficiency_page.page()
    for name in NVIDIA:
        assert name in MEASURED or re.search(rf"^\| {name} \| ", page["borrowed"], re.MULTILINE)
    for rule in shared().borrowing:
        assert rule.curves in MEASURED
        assert rule.why
    facts = [fact for _, fact in shared() if isinstance(fact, MeasuredFact)]
    for fact in [*facts, *shared().under_load, *shared().slow_kernels]:
        assert fact.low <= fact.value <= fact.high
        assert len(fact.source) > 30
