"""Every number of estimator/ that was measured or fitted, with its address, and the page that says to what each was fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from estimator.facts import catalogue
from estimator.facts.fact import FittedTo, MeasuredFact, measured
from estimator.hardware.capability import nvlinks
from estimator.host import memory
from estimator.pricing import energy, spot
from estimator.runtime import overheads
from estimator.serving.sglang import settings as sglang
from estimator.serving.tensorrt_llm import settings as tensorrt_llm
from estimator.serving.vllm import settings
from estimator.timing import ggml, host, loader, step
from estimator.timing import run_length as course
from estimator.timing.measured import FOLDER, Curves, Sourced, load, shared
from tests import held_out
from tests.accuracy import table

BY_EYE = {
    "efficiency.training",
    "efficiency.decode_bandwidth",
    "overheads.fragmentation",
    "overheads.driver",
    "overheads.driver_share",
    "vllm.non_torch",
    "vllm.non_torch_before",
    "vllm.non_torch_tensor_parallel",
    "vllm.non_torch_tensor_parallel_before",
    "vllm.cuda_graphs",
    "tensorrt-llm.outside",
    "tensorrt-llm.outside_tensor_parallel",
    "tensorrt-llm.kept",
}
"""Numbers that no equation makes of their rows: shares for cards without curves, a margin, a line through twelve cards, and what
vLLM's and TensorRT-LLM's logs show between their extremes."""
CONSTANTS: dict[str, Callable[[], dict[str, MeasuredFact]]] = {
    "efficiency": step.efficiencies,
    "overheads": overheads.facts,
    "host": lambda: measured(host.FILE),
    "loader": lambda: measured(loader.FILE),
    "process": memory.facts,
    "course": course.facts,
    "llama.cpp": ggml.facts,
    "vllm": settings.facts,
    "sglang": sglang.facts,
    "tensorrt-llm": tensorrt_llm.facts,
    "nvlink": nvlinks,
    "energy": energy.facts,
    "spot": lambda: {"hours_lost": spot.hours_lost()},
}


def constants() -> Iterator[tuple[str, MeasuredFact]]:
    """Every measured constant that is no parameter of a curve."""
    for file, read in CONSTANTS.items():
        yield from ((f"{file}.{name}", fact) for name, fact in read().items())
    yield from ((f"shared.{name}", fact) for name, fact in shared() if isinstance(fact, MeasuredFact))
    yield from ((f"shared.under_load {fact.names}", fact) for fact in shared().under_load)
    yield from ((f"shared.slow_kernels {fact.operations[0]}", fact) for fact in shared().slow_kernels)
    yield from ((f"shared.reading {fact.names} {fact.kind}", fact) for fact in shared().reading)


def parameters() -> Iterator[tuple[str, Sourced | MeasuredFact]]:
    """Every entry of every card's curves."""
    for card in catalogue.names(FOLDER):
        yield from ((f"{card} {what}", entry) for what, entry in sourced(load(card)))
        yield from ((f"{card} {dtype} sustained", entry.sustained) for dtype, entry in load(card).matmul.items())


def sourced(curves: Curves) -> Iterator[tuple[str, Sourced]]:
    """Every entry of a card's curves."""
    yield from ((f"products {dtype}", entry) for dtype, entry in curves.matmul.items())
    for kernel, dtypes in curves.attention.items():
        for dtype, directions in dtypes.items():
            yield from ((f"attention {kernel} {dtype} {direction}", entry) for direction, entry in directions.items())
    yield from (("memory", curves.memory), ("decode", curves.decode))
    yield from ((f"collectives {kind}", entry) for kind, entry in curves.collectives.items())
    for engine, kinds in curves.experts.items():
        yield from ((f"experts {engine} {kind}", entry) for kind, entry in kinds.items())


def page() -> dict[str, str]:
    """The parts of docs/fits.md that are made."""
    rows = [
        [where.replace("|", r"\|"), f"{fact.value:g}", f"{fact.low:g} to {fact.high:g}", *_said(fact.fitted_to)]
        for where, fact in constants()
    ]
    curves = [[where, *_said(entry.fitted_to)] for where, entry in parameters()]
    tables = [[name, *_divided(name), str(known["of"])] for name, known in held_out.listed().items()]
    return {
        "tables": table(["table", "rule", "rows", "held out", "where"], tables),
        "constants": table(["number", "value", "range", "fitted to", "how"], rows),
        "curves": table(["number", "fitted to", "how"], curves),
    }


def _said(fitted_to: FittedTo) -> list[str]:
    """To which rows, and how."""
    if fitted_to == "nothing":
        return ["nothing", ""]
    counted = []
    for name in dict.fromkeys(rows.table for rows in fitted_to):
        known = name not in held_out.WHEEL
        counted.append(f"{name}, {len(held_out.fitted_rows(fitted_to, name))} rows" if known else name)
    return ["; ".join(counted), "; ".join(dict.fromkeys(rows.how for rows in fitted_to))]


def _divided(name: str) -> list[str]:
    """A table's rule, its rows, and those held out."""
    rule = str(held_out.listed()[name]["rule"])
    if name in held_out.WHEEL:
        return [rule, "", "a third"]
    names = held_out.TABLES[name][0]()
    return [rule, str(len(names)), str(sum(held_out.held_out(name, row) for row in names))]
