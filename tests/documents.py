"""Documents and golden files that are made from the code: `python -m tests.documents` writes them all anew.

`test_documents.py` fails when one of them is not what the code would write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout, suppress
from datetime import date
from io import StringIO
from pathlib import Path
from unittest import mock

from estimator import Answer, Fit, Job, estimate, fit, listing
from estimator.cli import COMMANDS, main
from estimator.report import answer_text, headline_text
from estimator.specs.schema import model_schema
from tests import accuracy, accuracy_plot, techniques
from tests.jobs import cases

ROOT = Path(__file__).parent.parent
TODAY = date(2026, 11, 22)
"""The day of every answer here: prices get old by it."""
GENERATED = "<!-- generated: python -m tests.documents -->\n\n"
MADE = re.compile(r"(?<=<!-- made: )([\w-]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
ASKED = re.compile(r"(?<=```console\n)\$ willitfit ([^\n]*)\n.*?(?=```)", re.DOTALL)


def documents() -> Iterator[tuple[Path, str]]:
    """Every generated file and what it must hold."""
    for model in (Job, Answer, Fit):
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
        yield ROOT / "docs" / "schema" / f"{model.__name__.lower()}.json", json.dumps(schema, indent=2) + "\n"
    yield ROOT / "docs" / "schema" / "model.json", json.dumps(model_schema(), indent=2) + "\n"
    yield ROOT / "docs" / "cli.md", GENERATED + _command_line()
    yield ROOT / "docs" / "catalogue.md", GENERATED + _catalogue()
    for name in ("README.md", "docs/jobs.md"):
        yield ROOT / name, ASKED.sub(_answered, (ROOT / name).read_text(encoding="utf-8"))
    yield _with_parts("accuracy", accuracy.page())
    yield _with_parts("techniques", techniques.page())
    yield ROOT / "docs" / "accuracy.svg", accuracy_plot.plot()
    for case in cases("golden"):
        answer = estimate(case["job"], today=TODAY)
        yield ROOT / "tests" / "golden" / f"{case['name']}.json", answer.to_json()
        yield ROOT / "tests" / "golden" / f"{case['name']}.txt", answer_text(answer)
    headline = fit("llama-2-13b", "2x24GB")
    yield ROOT / "tests" / "golden" / "headline.json", headline.to_json()
    yield ROOT / "tests" / "golden" / "headline.txt", headline_text(headline)


def _with_parts(name: str, parts: dict[str, str]) -> tuple[Path, str]:
    """A page of which some parts are made."""
    path = ROOT / "docs" / f"{name}.md"
    return path, MADE.sub(lambda place: f"{place[1]}{place[2]}{parts[place[1]]}", path.read_text(encoding="utf-8"))


def _printed(arguments: list[str]) -> str:
    """What a command prints on a terminal of 100 columns."""
    out = StringIO()
    columns, day = mock.patch.dict("os.environ", {"COLUMNS": "100"}), mock.patch("estimator.cli._today", return_value=TODAY)
    with chdir(ROOT), redirect_stdout(out), suppress(SystemExit), columns, day:
        main(arguments)
    return out.getvalue()


def _answered(asked: re.Match[str]) -> str:
    """A command with its output under it."""
    return f"$ willitfit {asked[1]}\n{_printed(asked[1].split())}"


def _command_line() -> str:
    parts = ["# Command line\n"]
    for command in ([], *([name] for name in COMMANDS)):
        parts.append(f"## `{' '.join(['willitfit', *command])}`\n\n```text\n{_printed([*command, '--help'])}```\n")
    return "\n".join(parts)


def _catalogue() -> str:
    models = [
        [
            row["name"],
            f"{row['parameters']:,}",
            row["architecture"],
            row["layers"],
            f"{row['context']:,}" if row["context"] else "any",
            row["licence"],
        ]
        for row in listing.models()
    ]
    cards = [
        [
            row["name"],
            f"{row['memory_bytes']:,}" + ("" if row["memory_verified"] else " (one source)"),
            row["bf16_tflops"] or "none",
            row["bandwidth_gb_per_second"],
            row["usd_per_gpu_hour"] or "no price known",
        ]
        for row in listing.gpus()
    ]
    return (
        "# Models and accelerators\n\nEach is a file with its sources: `model_specs/` and `estimator/hardware/accelerators/`.\n\n"
        + _table(["model", "parameters", "family", "layers", "positions", "licence"], models)
        + "\n"
        + _table(
            ["accelerator", "bytes a process can allocate", "dense bf16 TFLOP/s", "GB/s", "least USD per GPU-hour"],
            cards,
        )
    )


def _table(header: list[str], rows: list[list[object]]) -> str:
    lines = [header, ["---"] * len(header), *([str(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    for path, text in documents():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
