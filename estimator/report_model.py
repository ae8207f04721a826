"""One model's counts as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from estimator.inspection import Card, Group
from estimator.report import aligned
from estimator.units import gib


def card_text(card: Card) -> str:
    """What a model is made of."""
    counts, published = card.counts, card.published
    lines = [f"{card.name}: {counts.total:,} parameters, {card.architecture}", ""]
    facts = [("source", card.source), ("context", f"{card.context:,} tokens" if card.context else "not limited")]
    if published:
        told = {"released": published.released, "licence": published.licence, "stored in": published.dtype}
        facts += [(name, text) for name, text in told.items() if text]
        if published.parameters:
            facts.append(("published count", f"{int(published.parameters.value):,} ({published.parameters.source})"))
        if published.aliases:
            facts.append(("also called", ", ".join(published.aliases)))
    lines += _table(facts)
    rows = [("total", f"{counts.total:,}")]
    if counts.active != counts.total:
        rows.append(("active for one token", f"{counts.active:,}"))
    rows += [
        ("token embedding", f"{counts.embedding:,}"),
        ("buffers, apart", f"{counts.buffers:,} ({counts.buffer_bytes:,} bytes)"),
    ]
    lines += ["Parameters, tied weights once", *_table(rows)]
    for title, groups in (("By layer", counts.layers), ("By module", counts.modules)):
        lines += [title, *_groups(groups)]
    sizes = [(name, f"{size:,} bytes ({gib(size)})") for name, size in counts.bytes.items()]
    if counts.as_built_bytes != counts.bytes["bfloat16"]:
        sizes.append(("as transformers holds it in bfloat16", f"{counts.as_built_bytes:,} bytes: some of it stays in float32"))
    lines += ["In bytes, without the scales of a quantization", *_table(sizes)]
    if counts.kv_bytes_per_token:
        lines += [
            "A token in the KV cache",
            *_table((name, f"{size:,} bytes") for name, size in counts.kv_bytes_per_token.items()),
        ]
    if card.assumptions:
        lines += ["Assumptions", *(f"  - {note}" for note in card.assumptions), ""]
    return "\n".join(lines)


def _groups(groups: Iterable[Group]) -> list[str]:
    rows = [("", "number", "parameters each", "together")]
    for group in groups:
        each = f"{group.parameters:,}"
        if group.active != group.parameters:
            each += f" ({group.active:,} active)"
        rows.append((group.name, f"{group.times:,}", each, f"{group.times * group.parameters:,}"))
    return [*(f"  {line}" for line in aligned(rows)), ""]


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [*(f"  {line}" for line in aligned(list(rows))), ""]
