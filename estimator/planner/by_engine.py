"""The usual ways of serving a model, by an engine that the question names: each else has vLLM's and llama.cpp's."""

from __future__ import annotations

from collections.abc import Iterator

from estimator.contract.errors import InvalidValue, NotModelled, did_you_mean
from estimator.facts.spelling import shown
from estimator.planner.ways import Platform, Way
from estimator.serving.engine import Engine
from estimator.serving.engines import ENGINES
from estimator.serving.vllm.engine import VLLM

SERVERS = tuple(name for name, engine in ENGINES.items() if engine.continuous or engine.reads_gguf)
"""Engines that people name in a headline's question."""


def engine_of(way: Way) -> Engine | None:
    """The engine of a way of serving; None of one of training."""
    return ENGINES[way.settings.get("engine", VLLM.name)] if way.part == "serving" else None


def served_by(name: str, ways: list[Way], kind: Platform) -> list[Way]:
    """The ways of serving, by the engine of this name. Raises `InvalidValue` where none has it, and `NotModelled` where it has
    none on a platform."""
    if name not in SERVERS:
        raise InvalidValue(f"{shown(name)} is none; write {', '.join(SERVERS)}.{did_you_mean(name, SERVERS)}", "engine")
    engine = ENGINES[name]
    found = [*_changed(engine, ways, kind)]
    if not found:
        raise NotModelled(f"{engine.title} on {kind.name} is not modelled", "engine")
    return found


def _changed(engine: Engine, ways: list[Way], kind: Platform) -> Iterator[Way]:
    """Its own ways, and others' that read the same checkpoints, where what runs there is known of both."""
    for way in ways:
        its = engine_of(way)
        if its is engine:
            yield way
        elif its is not None and its.reads_gguf == engine.reads_gguf and (its.reads_gguf or _known(way, kind)):
            yield way.changed(engine=engine.name).model_copy(update={"way": f"{way.way.partition(',')[0]}, {engine.title}"})


def _known(way: Way, kind: Platform) -> bool:
    """Whether what is said of vLLM on a platform is so of others: on NVIDIA's cards, where vLLM has kernels."""
    return kind.vendor == "nvidia" and not way.refusal(kind)
