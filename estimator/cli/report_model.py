"""One model's counts as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from estimator.cli.table import aligned
from estimator.contract.units import gib
from estimator.views.inspection import Card, Counts, Group, Stored

GGUF_SHOWN = (
    "Q8_0",
    "Q6_K",
    "Q5_K_M",
    "Q5_K_S",
    "Q4_K_M",
    "Q4_K_S",
    "Q4_0",
    "IQ4_XS",
    "Q3_K_L",
    "Q3_K_M",
    "Q3_K_S",
    "IQ3_XXS",
    "Q2_K",
    "IQ2_XXS",
)


def card_text(card: Card) -> str:
    """What a model is made of."""
    lines = [f"{card.name}: {_title(card)}", "", *_table(_facts(card))]
    if card.stored:
        lines += ["In the files", *_table(_files(card.stored))]
    if card.counts:
        lines += _counts(card.counts)
    if card.assumptions:
        lines += ["Assumptions" if card.counts else "Why no more", *(f"  - {note}" for note in card.assumptions), ""]
    return "\n".join(lines)


def _title(card: Card) -> str:
    listed = card.published.counted if card.published else None
    total = card.counts.total if card.counts else listed.total if listed else None
    return "weights of an unknown architecture" if total is None else f"{total:,} parameters, {card.architecture}"


def _facts(card: Card) -> list[tuple[str, str]]:
    rows = [("source", card.source)]
    if card.counts or card.context:
        rows.append(("context", f"{card.context:,} tokens" if card.context else "not limited"))
    if published := card.published:
        told = {"released": published.released, "licence": published.licence, "stored in": published.dtype}
        rows += [(name, text) for name, text in told.items() if text]
        if published.parameters:
            rows.append(("published count", f"{int(published.parameters.value):,} ({published.parameters.source})"))
        if published.aliases:
            rows.append(("also called", ", ".join(published.aliases)))
        if published.same_architecture:
            rows.append(("the same sizes", ", ".join(published.same_architecture)))
    return rows


def _files(stored: Stored) -> list[tuple[str, str]]:
    rows = [("files", f"{len(stored.files)}, {stored.format}"), ("tensors", f"{stored.tensors:,}")]
    if stored.missing:
        rows.append(("missing", ", ".join(stored.missing)))
    if stored.numbers is not None:
        rows.append(("numbers", f"{stored.numbers:,}"))
    if stored.bytes is not None:
        rows.append(("bytes", f"{stored.bytes:,} ({gib(stored.bytes)})"))
    return rows + [(f"of {name}", f"{size:,}") for name, size in (stored.bytes_by_dtype or {}).items()]


def _counts(counts: Counts) -> list[str]:
    rows = [("total", f"{counts.total:,}")]
    if counts.active != counts.total:
        rows.append(("active for one token", f"{counts.active:,}"))
    rows += [
        ("token embedding", f"{counts.embedding:,}"),
        ("buffers, apart", f"{counts.buffers:,} ({counts.buffer_bytes:,} bytes)"),
    ]
    lines = ["Parameters, tied weights once", *_table(rows)]
    for title, groups in (("By layer", counts.layers), ("By module", counts.modules)):
        lines += [title, *_groups(groups)]
    sizes = [(name, f"{size:,} bytes ({gib(size)})") for name, size in counts.bytes.items()]
    if counts.as_built_bytes != counts.bytes["bfloat16"]:
        sizes.append(("as transformers holds it in bfloat16", f"{counts.as_built_bytes:,} bytes: some of it stays in float32"))
    lines += ["In bytes, without the scales of a quantization", *_table(sizes)]
    if counts.stored_bytes:
        lines += ["In few bits, scales and all; embeddings, output layer and norms in half precision"]
        lines += _sizes(counts.stored_bytes, tuple(counts.stored_bytes), counts.total)
    if counts.gguf_bytes:
        header = counts.gguf_header_bytes
        rest = "" if header is None else f"; a file has {header:,} bytes more"
        lines += [f"As GGUF, all tensors{rest}", *_sizes(counts.gguf_bytes, GGUF_SHOWN, counts.total)]
    if counts.kv_bytes_per_token:
        lines += [
            "A token in the KV cache",
            *_table((name, f"{size:,} bytes") for name, size in counts.kv_bytes_per_token.items()),
        ]
    return lines


def _sizes(sizes: dict[str, int], shown: tuple[str, ...], parameters: int) -> list[str]:
    rows = [("", "bytes", "", "bits per weight")]
    rows += [(name, f"{sizes[name]:,}", gib(sizes[name]), f"{8 * sizes[name] / parameters:.4f}") for name in shown]
    return [*(f"  {line}" for line in aligned(rows)), ""]


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
