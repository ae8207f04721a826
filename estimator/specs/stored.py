"""How the checkpoint is stored that a name means: what the name ends in, what its spec says, or what its config.json says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args

from estimator.contract.job.serving import GgufKind
from estimator.facts import catalogue
from estimator.facts.spelling import words

FILE = Path(__file__).parent / "stored.yaml"
GGUF, USUAL, REPACKED = "gguf", "q4_k_m", "mxfp4_moe"
"""A name's last word for llama.cpp's files, and the kind that is taken where the name says none, which is Ollama's;
of a model whose checkpoint has its experts in MXFP4, the kind that leaves them so."""
_EXLLAMA, _RATE = {"exl2", "exl3"}, re.compile(r"\d+(\.\d+)?bpw|h\d")
"""ExLlama's formats, and the words beside them: bits for each weight, and for the output layer's."""
DYNAMIC = "which tensors its maker keeps in other types is not known here, so all are counted as llama.cpp's"


class Stored(NamedTuple):
    """A `format` by its name in a job, and its `group` where it is not the usual one; layers that are left `whole`.

    `format` is empty where none of a job's is that of the name: `says` then says what is counted instead.
    `named`: whether the caller said so, and not only a spec. `gguf`: whether it is llama.cpp's file. `says`: what to know of it.
    """

    format: str
    group: int | None = None
    whole: tuple[str, ...] = ()
    named: bool = True
    gguf: bool = False
    says: str = ""
    mixed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Other formats that some layers are stored in, and parts of the names of these layers."""
    choose: tuple[str, ...] = ()
    """Endings of which the caller must write one, since this one says of how many bits and not how."""
    mlx: str = ""
    """MLX's format, which MLX alone reads."""
    usual: bool = False
    """Whether the name says that it is llama.cpp's file, and not of what kind."""


def stripped(text: str) -> Iterator[tuple[str, Stored]]:
    """A name without the last words that say how its weights are stored, and how they are; the longest such ending first."""
    organisation, _, name = text.strip().rstrip("/").rpartition("/")
    parts = words(name)
    if _EXLLAMA & {*parts}:
        parts = [word for word in parts if not _RATE.fullmatch(word)]
    before, maker = f"{organisation}/" if organisation else "", organisation.rpartition("/")[2].lower()
    for ending, stored in _endings(maker if maker in _makers() else ""):
        if len(ending) < len(parts) and tuple(parts[-len(ending) :]) == ending:
            yield before + " ".join(parts[: -len(ending)]), stored


@cache
def _makers() -> frozenset[str]:
    """Those whose endings mean something of their own."""
    return frozenset(name.lower() for row in catalogue.shipped(FILE) for key in ("of", "by") for name in row.get(key, ()))


@cache
def _endings(maker: str) -> tuple[tuple[tuple[str, ...], Stored], ...]:
    """What the last words of a maker's names mean, the longest first."""
    found = dict(_of_files())
    for row in catalogue.shipped(FILE):
        if "ends" in row and ("of" not in row or maker in map(str.lower, row["of"])):
            by = {name.lower(): chosen for name, chosen in row.get("by", {}).items()}
            chosen = by.get(maker, row["format"])
            found[tuple(words(row["ends"]))] = Stored(
                chosen,
                row.get("group"),
                gguf=row.get("gguf", False),
                says=row.get("says", ""),
                choose=tuple(row.get("choose", ())),
                mlx=row.get("mlx", ""),
            )
    return tuple(sorted(found.items(), key=lambda one: -len(one[0])))


def _of_files() -> Iterator[tuple[tuple[str, ...], Stored]]:
    """How llama.cpp's files are named: by their kind, before or after the word GGUF, or by that word alone."""
    usual = Stored(USUAL, gguf=True, usual=True, says=f"its usual kind, {USUAL}: write another after a colon")
    for ending in (GGUF, f"i1 {GGUF}"):
        yield tuple(words(ending)), usual
    for kind in get_args(GgufKind):
        for ending in (kind, f"{GGUF} {kind}", f"{kind} {GGUF}", f"{GGUF} i1 {kind}"):
            yield tuple(words(ending)), Stored(kind, gguf=True)
        dynamic = Stored(kind, gguf=True, says=f"{DYNAMIC} {kind}")
        for ending in (f"ud {kind}", f"{GGUF} ud {kind}"):
            yield tuple(words(ending)), dynamic
    for row in catalogue.shipped(FILE):
        if larger := row.get("larger"):
            for ending in (larger, f"{GGUF} {larger}", f"ud {larger}", f"{GGUF} ud {larger}"):
                yield tuple(words(ending)), Stored(row["kind"], gguf=True, says=f"{DYNAMIC} {row['kind']}")
    for ending in (f"{GGUF} mxfp4", f"mxfp4 {GGUF}"):
        yield tuple(words(ending)), Stored(REPACKED, gguf=True)
    for plain, kind in (("f16", "fp16"), ("bf16", "bf16"), ("fp16", "fp16")):
        yield tuple(words(f"{GGUF} {plain}")), Stored(kind, gguf=True)
