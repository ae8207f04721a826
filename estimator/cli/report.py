"""Answers as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from estimator.cli.table import aligned, spaced
from estimator.contract.answer import (
    DEFAULT,
    Answer,
    Course,
    Energy,
    EngineMemory,
    HostMemory,
    Memory,
    ServingTime,
    Tensors,
    Time,
)
from estimator.contract.job import Hardware
from estimator.contract.units import gib
from estimator.serving.engines import ENGINES


def answer_text(answer: Answer, explain: bool = False, ranks: bool = False, defaults: bool = False) -> str:
    """One job's answer in full; `explain` also names what is alive at the peak, tensor by tensor, `ranks` each stage of a
    pipeline and what ranks exchange, `defaults` every default, those that are off, none, 0 or 1, too."""
    memory = answer.memory
    lines = [f"{answer.verdict.upper()}: {answer.reason}", ""]
    lines += _block(
        "In RAM" if Hardware.model_validate(answer.job["hardware"]).without_gpu else "Memory per GPU", _memory_rows(answer)
    )
    largest = sorted(memory.at_peak.items(), key=lambda part: -part[1])
    lines += _block(
        f"At the peak ({spaced(memory.peak_phase)}: {memory.peak.where})", [(spaced(name), gib(size)) for name, size in largest]
    )
    if explain:
        lines += _explained(memory)
    if ranks:
        lines += _ranks(answer)
    lines += _block("Beside it", [(spaced(name), gib(size)) for name, size in memory.overhead.items()])
    if memory.engine:
        lines += _block("What the engine logs, per GPU", _engine_rows(memory.engine))
    if answer.host:
        lines += _block("Memory of a node's host", _host_rows(answer.host))
    count = answer.parameters
    lines += _block("Parameters", [("total", f"{count.total:,}"), ("trainable", f"{count.trainable:,}")])
    if answer.serving:
        lines += _block("Serving (estimated)", _serving_rows(answer.serving))
    elif answer.time:
        low, high = answer.time.range_seconds
        lines += _block(
            "Time (estimated)",
            [
                ("step", f"{_seconds(answer.time.step_seconds)} ({_seconds(low)} to {_seconds(high)})"),
                ("tokens per second", f"{answer.time.tokens_per_second:,.0f}"),
                *_utilisation(answer.time),
                *(
                    (part.name, f"{part.share:4.0%}  {'#' * round(40 * part.share)}")
                    for part in answer.time.parts
                    if part.share >= 0.005
                ),
            ],
        )
    if answer.run:
        lines += _block("The whole run", _run_rows(answer.run))
    if again := answer.recomputation:
        change = "lowers the peak by" if again.saved_bytes >= 0 else "raises the peak by"
        rows = [("FLOPs per step", f"{again.flops:.3g}, {again.share:.1%} more"), (change, gib(abs(again.saved_bytes)))]
        lines += _block("Recomputed", rows)
    if answer.cost:
        lines += _block("Cost", _cost_rows(answer))
    if answer.energy:
        lines += _block("Energy (estimated)", _energy_rows(answer.energy))
    for title, items in (
        ("Warnings", answer.warnings),
        ("Suggestions", answer.suggestions),
        ("Assumptions", answer.assumptions if defaults else _assumptions(answer)),
        ("Not modelled", answer.not_modelled),
    ):
        if items:
            lines += [title, *(f"  - {item}" for item in items), ""]
    return "\n".join(lines)


def _assumptions(answer: Answer) -> list[str]:
    """What is taken for granted, without the defaults that are off, none, 0 or 1."""
    off = {DEFAULT + note.text for note in answer.notes if note.slug == "default-off"}
    said = [text for text in answer.assumptions if text not in off]
    return (
        [*said, f"{len(off)} more defaults are off, none, 0 or 1: `willitfit estimate JOB --defaults` lists them"]
        if off
        else said
    )


def _explained(memory: Memory) -> list[str]:
    """The tensors at the peak, and where each phase has its own."""
    peak, rows = memory.peak, [("made by", "in", "counted as", "shape", "count", "each", "together")]
    for kind in peak.tensors:
        rows.append(
            (
                kind.operation,
                kind.part or "",
                spaced(kind.component),
                shape_text(kind),
                f"{kind.count:,}",
                gib(kind.each_bytes),
                gib(kind.bytes),
            )
        )
    if peak.rest_count:
        rows.append(("the rest", "", "", "", f"{peak.rest_count:,}", "", gib(peak.rest_bytes)))
    lines = ["Alive at the peak", *(f"  {line}" for line in aligned(rows)), ""]
    return lines + _block("Where each phase peaks", [(spaced(name), place.where) for name, place in memory.phase_peaks.items()])


def _run_rows(run: Course) -> list[tuple[str, str]]:
    rows = [("optimizer steps", f"{run.steps:,}"), ("tokens", f"{run.tokens:,}")]
    if run.computed_tokens > 1.01 * run.tokens:
        rows.append(("tokens computed", f"{run.computed_tokens:,}, with padding"))
    if run.hours is not None and run.range_hours is not None:
        rows.append(("hours", f"{run.hours:,.2f} ({' to '.join(f'{hours:,.2f}' for hours in run.range_hours)})"))
        rows += [(f"  {spaced(name)}", f"{hours:,.2f}") for name, hours in run.parts.items()]
    return rows


def _utilisation(time: Time) -> list[tuple[str, str]]:
    """How much of the card's arithmetic is used; nothing where none was counted."""
    if not time.flops_per_step:
        return []
    return [
        ("of the peak", f"{time.mfu:.1%} ({time.hfu:.1%} with what is recomputed), {time.tflops_per_gpu:,.0f} TFLOP/s per GPU")
    ]


def _ranks(answer: Answer) -> list[str]:
    """Each stage's memory, and what the ranks of the one that needs most exchange in a step."""
    rows = [("stage", "GPUs", "layers", "holds", "micro-batches", "resident", "peak", "peak in")]
    for rank in answer.ranks:
        holds = " and ".join([*["embedding"] * rank.embedding, *["output"] * rank.output])
        layers = ", ".join(f"{chunk[0]} to {chunk[1]}" if chunk else "none" for chunk in rank.chunks)
        peak = gib(rank.resident_bytes), gib(rank.peak_bytes), spaced(rank.peak_phase)
        rows.append((str(rank.stage), f"{rank.gpus:,}", layers, holds, str(rank.micro_batches), *peak))
    lines = ["Ranks", *(f"  {line}" for line in aligned(rows)), ""] if answer.ranks else []
    if not answer.communication:
        return lines
    sent = [("operation", "among", "ranks", "phase", "times", "bytes in all")]
    for one in answer.communication:
        sent.append(
            (spaced(one.operation), spaced(one.group), f"{one.ranks:,}", spaced(one.phase), f"{one.count:,}", gib(one.bytes))
        )
    return [*lines, "Exchanged per step", *(f"  {line}" for line in aligned(sent)), ""]


def shape_text(kind: Tensors) -> str:
    """'bfloat16[1, 2048, 4096]', or nothing where it is not known."""
    return "" if kind.shape is None else f"{kind.dtype}{kind.shape}"


def _memory_rows(answer: Answer) -> list[tuple[str, str]]:
    memory = answer.memory
    rows = [(f"{spaced(name)} peak", gib(size)) for name, size in memory.phases.items()]
    rows = [("resident between steps", gib(memory.resident_bytes)), *rows]
    rows += [("peak allocated", gib(memory.peak_bytes)), ("total", gib(memory.total_bytes))]
    rows.append(("range", " to ".join(gib(b) for b in memory.range_bytes)))
    if memory.capacity_bytes is not None:
        rows.append(("capacity", gib(memory.capacity_bytes)))
    if cache := memory.kv_cache:
        rows.append(("KV cache needed", f"{gib(cache.needed_bytes)} ({cache.bytes_per_token / 1024:.0f} KiB per token)"))
        if cache.available_bytes is not None:
            rows.append(("KV cache available", f"{gib(cache.available_bytes)} ({cache.available_tokens:,} tokens)"))
        if cache.available_range_bytes is not None:
            title = ENGINES[answer.job["serving"]["engine"]].title
            rows.append((f"as {title} may find it", " to ".join(map(gib, cache.available_range_bytes))))
    if answer.host is None:
        rows += [(f"on the host, {spaced(name)}", gib(size)) for name, size in memory.host_bytes.items()]
    return rows


def _engine_rows(engine: EngineMemory) -> list[tuple[str, str]]:
    """What an engine sets aside, and what its cache holds."""
    sizes = ("weights", "draft", "activation", "non_torch", "cuda_graph", "cache")
    rows = [(spaced(name), gib(size)) for name in sizes if (size := getattr(engine, f"{name}_bytes")) is not None]
    if engine.cache_tokens is not None:
        if engine.cache_blocks is not None:
            rows.append(("blocks", f"{engine.cache_blocks:,}"))
        rows.append(("tokens", f"{engine.cache_tokens:,}"))
        rows.append(("requests as long as the context", f"{engine.concurrency:,.2f}"))
        rows.append(("longest context", f"{engine.longest_context:,}"))
    return rows


def _host_rows(host: HostMemory) -> list[tuple[str, str]]:
    rows = [(f"{phase} peak", gib(size)) for phase, size in host.phases.items()]
    rows.append(("range", " to ".join(gib(b) for b in host.range_bytes)))
    rows += [(f"at the peak, {spaced(name)}", gib(size)) for name, size in host.at_peak.items()]
    rows += [(f"on disk, {spaced(name)}", gib(size)) for name, size in host.disk_bytes.items()]
    return [*rows, ("for a scheduler", host.scheduler)]


def _serving_rows(serving: ServingTime) -> list[tuple[str, str]]:
    """Times of a request, what bounds them, and what comes of it."""
    prefill, decode = serving.prefill, serving.decode
    each, took = serving.range_time_per_output_token_seconds, serving.range_request_seconds
    rows = [
        ("requests", f"{serving.sequences:,} at a time, {serving.prompt_tokens:,} tokens in, {serving.output_tokens:,} out"),
        ("first token", f"{_range(serving.time_to_first_token_seconds, prefill.range_seconds)}, alone"),
        ("next tokens", f"{_range(serving.time_per_output_token_seconds, each)} each"),
        ("request", _range(serving.request_seconds, took)),
        ("tokens per second", f"{serving.output_tokens_per_second:,.0f} out, {serving.input_tokens_per_second:,.0f} in"),
        ("out, per GPU", f"{serving.output_tokens_per_second_per_gpu:,.0f}"),
        ("prefill", f"{prefill.tokens_per_second:,.0f} tokens per second, bound by {prefill.bottleneck}"),
        ("decode", f"{_seconds(decode.step_seconds)} a step, bound by {decode.bottleneck}"),
    ]
    if serving.tokens_per_step != 1:
        rows.append(("tokens per step", f"{serving.tokens_per_step:.2f} of each sequence"))
    if cost := serving.cost:
        day = f" on {cost.price_as_of}" if cost.price_as_of else ""
        rows += [
            ("a million in", f"{cost.million_input} {cost.currency} ({' to '.join(cost.range_million_input)})"),
            ("a million out", f"{cost.million_output} {cost.currency} ({' to '.join(cost.range_million_output)})"),
            ("at", f"{cost.price_per_hour} {cost.currency} per hour{day}; {cost.price_source}"),
        ]
    return rows


def _range(seconds: float, bounds: tuple[float, float]) -> str:
    return f"{_seconds(seconds)} ({' to '.join(map(_seconds, bounds))})"


def _cost_rows(answer: Answer) -> list[tuple[str, str]]:
    cost = answer.cost
    assert cost is not None
    rows = [("GPU-hours", "unknown" if cost.gpu_hours is None else f"{cost.gpu_hours:,.1f}")]
    if cost.total is None or cost.range_total is None:
        return [*rows, ("money", cost.price_source)]
    day = f" on {cost.price_as_of}" if cost.price_as_of else ""
    if cost.instances is not None:
        rows.append(("rented", f"{cost.instances:,} instance{'s' * (cost.instances > 1)}"))
    return [
        *rows,
        ("money", f"{cost.total} {cost.currency} ({' to '.join(cost.range_total)})"),
        *((f"of it, {part}", f"{amount} {cost.currency}") for part, amount in cost.parts.items()),
        ("price", f"{cost.price_per_gpu_hour} {cost.currency} per GPU-hour{day}; {cost.price_source}"),
    ]


def _energy_rows(energy: Energy) -> list[tuple[str, str]]:
    return [
        ("electricity", f"{energy.kwh:,.1f} kWh ({' to '.join(f'{kwh:,.1f}' for kwh in energy.range_kwh)})"),
        ("emissions", f"{energy.co2e_kg:,.1f} kg CO2e ({' to '.join(f'{kg:,.1f}' for kg in energy.range_co2e_kg)})"),
        ("grid", f"{energy.grid}: {energy.grams_per_kwh:g} g CO2e per kWh"),
        ("by", energy.source),
    ]


def _block(title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    return [title, *(f"  {name.ljust(width)}  {value}" for name, value in rows), ""]


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
