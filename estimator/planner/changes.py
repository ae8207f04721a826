"""The smallest change with which a usual way of using a model would fit (docs/techniques/advice.md says why in this order)."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, NamedTuple

from estimator.contract.errors import WillItFitError
from estimator.contract.job import Hardware
from estimator.contract.units import gib
from estimator.hardware.capacity import Capacity
from estimator.parallel.strategies import STRATEGIES
from estimator.pipeline.judged import Judged
from estimator.pipeline.remedies import EXPERTS, remedies
from estimator.planner.on_host import partly
from estimator.planner.spreads import Question, spreads, unshared
from estimator.planner.ways import Way

MOST_GPUS = 1024
NODE = 8
"""GPUs up to which they are added within a node."""
SERVED = 64
"""GPUs up to which a server is spread, its layers over nodes."""
USUAL = ("ddp", "fsdp2")
"""How several GPUs share training, where nothing is said of it."""
EVEN = ("ddp", "hsdp", "zero", "fsdp1")
"""Strategies of which more GPUs never take more of each: shards are cut from flat parameters, or are those of one node."""
ROOMY = 0.3
"""Share of the card that is left by what is not asked further whether it is too much: a spread is then tried on fewer GPUs."""
HOST: dict[str, str] = {"optimizer": "cpu", "gradients": "cpu", "parameters": "cpu"}
OFFLOADING: tuple[tuple[str, dict[str, str]], ...] = (
    ("none", {"optimizer": "cpu", "gradients": "cpu"}),
    ("fsdp2", HOST),
    ("zero3", HOST),
)
"""What each strategy can keep in the host's memory."""


class Change(NamedTuple):
    """A change in words, and the job with it, which fits; no job where nothing does, and the words say what is in the way."""

    said: str
    job: dict[str, Any] | None = None


class _Spread(NamedTuple):
    said: str
    job: dict[str, Any]


def smallest_change(question: Question, way: Way, hardware: Hardware, card: Capacity, answer: Judged) -> Change:
    """The first of these that fits: the same computed otherwise, or experts in few bits, too; half or a quarter of the tokens;
    more of the same GPUs within a node, those and the first together, the fewest nodes with either; and last what waits in the
    host's memory, which llama.cpp is asked about before more GPUs. Where none does, what is in the way."""
    capacity = answer.memory.capacity_bytes or 0
    kinder = list(_in_fewer_bytes(question, way, answer))
    if question.least_bytes(way, hardware.gpus * hardware.nodes) <= capacity:
        for said, other in [*kinder, *_fewer_tokens(way, answer)]:
            if spread := _spread_that_fits(question, other, hardware):
                return Change(said, spread.job)
    whole = _is_a_computer(card)
    alone = whole or (card.accelerator is not None and card.accelerator.of_laptop)
    more = "" if alone else unshared(question, way, hardware)
    if way.gguf and not whole and (found := _on_the_host(question, way, hardware)):
        return found  # llama.cpp is mostly run so
    larger = [] if alone or more else list(_larger(way, hardware))
    within, over = [each for each in larger if each.nodes == 1], [each for each in larger if each.nodes > 1]
    if within and (found := _more(question, [("", way)], within, capacity)):
        return found
    least: Judged | None = answer
    for sizes in filter(None, (within, over)):
        least = _least(question, way, sizes[-1]) if way.part == "training" else None
        others = [(f" and {said}", other) for said, other in _in_fewer_bytes(question, way, least)] if least else []
        if found := _more(question, [*([("", way)] if sizes is over else []), *others], sizes, capacity):
            return found
    if not whole and not way.gguf:
        for extra, other in [("", way), *((f" and {said}", other) for said, other in kinder)]:
            if found := _on_the_host(question, other, hardware):
                return Change(found.said + extra, found.job)
    if more:
        return Change(f"a larger card; of more GPUs it is not known: {more}")
    if alone:
        if card.ram:
            return Change(f"more RAM: {_largest(answer)}")
        kind = "it comes alone" if whole else "a laptop has one GPU"
        return Change(f"more memory: {_largest(answer)}, and {kind}")
    if way.part == "serving":
        return Change(_too_much_to_serve(question, way, hardware))
    most = (
        f"; on {MOST_GPUS} it takes {gib(least.memory.total_bytes)}, of which {_largest(least, 'are')}"
        if larger and least
        else ""
    )
    spec = question.found.spec
    untried = "tensor" in way.strategies and not spec.can.tensor
    but = f"; tensor parallelism of {spec.model_type} models, which might, is not modelled" if untried else ""
    return Change(f"a larger card: no number of these does it{most}{but}")


def _in_fewer_bytes(question: Question, way: Way, answer: Judged) -> Iterator[tuple[str, Way]]:
    """Settings that compute the same in fewer bytes, for the largest parts at the peak; and where weights are in few bits, those
    of experts, too."""
    if way.part == "training":
        for remedy in remedies(answer.job, answer.memory, question.found.spec):
            if (remedy.same_result or remedy.field == EXPERTS) and set(remedy.change) == {"training"}:
                yield remedy.said, way.changed(**remedy.change["training"])


def _fewer_tokens(way: Way, answer: Judged) -> Iterator[tuple[str, Way]]:
    """Where an engine says how many requests its cache holds, and the longest, those; else a half and a quarter of the tokens."""
    engine = answer.memory.engine
    if engine is not None and engine.longest_context is not None:
        fewer = int(engine.concurrency or 0)
        if 0 < fewer < way.settings["concurrency"]:
            yield f"concurrency {fewer}", way.changed(concurrency=fewer)
        if engine.longest_context:
            yield f"context {engine.longest_context}", way.changed(context=engine.longest_context)
        return
    key = "context" if way.part == "serving" else "sequence_length"
    for divisor in (2, 4):
        tokens = max(1, way.settings[key] // divisor)
        yield f"{key.replace('_', ' ')} {tokens}", way.changed(**{key: tokens})


def _is_a_computer(card: Capacity) -> bool:
    """Whether no second one can be put beside it, nor memory of a host's: one chip with its computer, or no GPU at all."""
    return card.ram or (card.accelerator is not None and card.accelerator.form == "soc")


def _largest(answer: Judged, verb: str = "alone take") -> str:
    part, size = max(answer.memory.at_peak.items(), key=lambda one: one[1])
    return f"{part.replace('_', ' ')} {verb} {gib(size)}"


def _larger(way: Way, hardware: Hardware) -> Iterator[Hardware]:
    """More of the same GPUs, doubling: within a node up to eight, then nodes."""
    gpus, nodes = hardware.gpus, hardware.nodes
    most = NODE if way.gguf else SERVED if way.part == "serving" else MOST_GPUS
    while gpus * nodes < most:
        gpus, nodes = (gpus * 2, nodes) if gpus < NODE else (gpus, nodes * 2)
        yield Hardware(gpu=hardware.gpu, memory=hardware.memory, ram=hardware.ram, gpus=gpus, nodes=nodes)


def _more(question: Question, asked: list[tuple[str, Way]], sizes: list[Hardware], capacity: int) -> Change | None:
    """The fewest GPUs that do it, of these numbers of them, by a way as it is or as others that compute the same, each with what
    is said of it. A spread that is too much even on the most of them, though it shares all evenly, is not tried on fewer."""
    hopeless: dict[str, set[str]] = {}
    for larger in sizes:
        total, nodes = larger.gpus * larger.nodes, larger.nodes
        for said, way in asked:
            if question.least_bytes(way, total) > capacity:
                continue
            if said not in hopeless:
                hopeless[said] = _hopeless(question, way, sizes[-1]) if way.part == "training" else set()
            if spread := _spread_that_fits(question, way, larger, hopeless[said]):
                many = f"{total} such GPUs" if nodes == 1 else f"{nodes} nodes of {larger.gpus} such GPUs"
                usual = way.part == "serving" or spread.said.startswith(USUAL)
                return Change((many if usual else f"{many} ({spread.said})") + said, spread.job)
    return None


def _hopeless(question: Question, way: Way, most: Hardware) -> set[str]:
    """Spreads that are too much on the most GPUs, and so on fewer: they share all evenly, or the same whatever the number is."""
    found = set()
    for said, job in spreads(question, way, most):
        if said.startswith(EVEN):
            too_much = not question.fits(job, ROOMY)
        else:
            try:
                answer = question.ask(job, reserves=False)
            except WillItFitError:
                too_much = True
            else:
                too_much = answer.verdict.fits is False and not answer.uneven
        if too_much:
            found.add(_kind(said))
    return found


def _kind(spread: str) -> str:
    """'zero3' of 'zero3 x16', 'tensor' of 'tensor 8, fsdp2 x2'."""
    return spread.split()[0]


def _least(question: Question, way: Way, hardware: Hardware) -> Judged | None:
    """Of the spreads over some GPUs the one that takes least; None where none can be answered."""
    found = []
    for _, job in spreads(question, way, hardware):
        try:
            found.append(question.ask(job, reserves=False))
        except WillItFitError:
            continue
    return min(found, key=lambda one: one.memory.total_bytes, default=None)


def _too_much_to_serve(question: Question, way: Way, hardware: Hardware) -> str:
    """What is in the way of a server over the most GPUs: that it does not fit there, or that it is not known."""
    sizes = [hardware, *_larger(way, hardware)]
    *_, (spread, job) = spreads(question, way, sizes[-1])
    try:
        answer = question.ask(job, reserves=False)
    except WillItFitError as error:
        return f"a larger card; as {spread} it is not known: {error.message}"
    return f"a larger card: even as {spread} it takes {gib(answer.memory.total_bytes)} of each"


def _on_the_host(question: Question, way: Way, hardware: Hardware) -> Change | None:
    """Whether it fits with a part in the host's memory, however much that is."""
    if way.part == "serving":
        found = partly(question, way, hardware) if way.gguf else None
        return Change(*found) if found else None
    for strategy, places in OFFLOADING:
        job: dict[str, Any] = {**way.job, "hardware": hardware, "parallelism": {"strategy": strategy}, "offload": places}
        if question.fits(job):
            by = "" if STRATEGIES[strategy].alone else f" ({strategy})"
            host = question.ask(job, reserves=False).host
            much = f", of which a node needs {gib(host.peak_bytes)}" if host else ""
            return Change(f"{', '.join(places)} in the host's memory{by}{much}", job)
    return None


def _spread_that_fits(question: Question, way: Way, hardware: Hardware, without: Set[str] = frozenset()) -> _Spread | None:
    """The first spread that fits, and its job; None if none does."""
    for said, job in spreads(question, way, hardware):
        if _kind(said) not in without and question.fits(job):
            return _Spread(said, job)
    return None
