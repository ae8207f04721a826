"""Documents and golden files that are made from the code: `python -m tests.documents` writes them all anew.

`tests/docs/test_documents.py` fails when one of them is not what the code would write.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

from api.problems import Problem
from estimator import Answer, estimate, fit, what_if
from estimator.cli.commands import COMMANDS
from estimator.cli.main import main
from estimator.cli.report import answer_text
from estimator.cli.report_hardware import unverified_text
from estimator.cli.report_headline import headline_text
from estimator.views import listing
from estimator.views.picture import picture
from estimator.views.schemas import DIALECT, KINDS, schema_text
from tests import accuracy, accuracy_plot, constants, efficiency_page, errors_page, served_speeds, serving_speeds, techniques
from tests.jobs import TODAY, cases

ROOT = Path(__file__).parent.parent
TUTORIALS = ("tutorials/fine_tune_8b", "tutorials/serve_70b", "tutorials/read_my_axolotl_file")
ANSWERED = ("jobs", "limits", "which", "plan", "what_if", "here", "fix", "diff", "timeline", "explain", *TUTORIALS)
"""Pages with answers of the command line."""
GENERATED = "<!-- generated: python -m tests.documents -->\n\n"
HEADLINE = ("llama-2-13b", "2x24GB")
PAGES = {
    "accuracy": accuracy.page,
    "techniques": techniques.page,
    "efficiency": efficiency_page.page,
    "serving_time": lambda: serving_speeds.page() | served_speeds.page(),
    "fits": constants.page,
    "errors": errors_page.page,
}
MADE = re.compile(r"(?<=<!-- made: )([\w-]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
ASKED = re.compile(r"(?<=```console\n)\$ willitfit ([^\n]*)\n.*?(?=```)", re.DOTALL)


def documents() -> Iterator[tuple[Path, Callable[[], str]]]:
    """Every generated file, and what makes its text: slow ones only when they are asked for."""
    for name in (*KINDS, "model"):
        yield ROOT / "docs" / "schema" / f"{name}.json", partial(schema_text, name)
    yield ROOT / "docs" / "schema" / "problem.json", _problem
    yield ROOT / "docs" / "cli.md", _command_line
    yield ROOT / "docs" / "catalogue.md", _catalogue
    for path in (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ANSWERED)):
        yield path, partial(_with_answers, path)
    for name, page in PAGES.items():
        path = ROOT / "docs" / f"{name}.md"
        yield path, partial(_with_parts, path, page)
    yield ROOT / "docs" / "accuracy.svg", accuracy_plot.plot
    yield ROOT / "docs" / "what_if.svg", _what_if
    for case in cases("golden"):
        yield ROOT / "tests" / "golden" / f"{case['name']}.json", partial(_golden, case["job"], Answer.to_json)
        yield ROOT / "tests" / "golden" / f"{case['name']}.txt", partial(_golden, case["job"], answer_text)
    yield ROOT / "tests" / "golden" / "headline.json", lambda: fit(*HEADLINE).to_json()
    yield ROOT / "tests" / "golden" / "headline.txt", lambda: headline_text(fit(*HEADLINE))


def _what_if() -> str:
    """The picture of the first what-if on its page."""
    changes = {"training.sequence_length": "1k..8k", "training.quantization": "null,nf4-double"}
    return picture(what_if(ROOT / "docs" / "examples" / "qlora.yaml", changes))


def _problem() -> str:
    return json.dumps({"$schema": DIALECT, **Problem.model_json_schema()}, indent=2) + "\n"


def _golden(job: dict[str, Any], written: Callable[[Answer], str]) -> str:
    return written(estimate(job, today=TODAY))


def _with_parts(path: Path, page: Callable[[], dict[str, str]]) -> str:
    """A page of which some parts are made."""
    parts = page()
    return MADE.sub(lambda place: f"{place[1]}{place[2]}{parts[place[1]]}", path.read_text(encoding="utf-8"))


def _with_answers(path: Path) -> str:
    """A page that shows commands with their output."""
    return ASKED.sub(_answered, path.read_text(encoding="utf-8"))


def _printed(arguments: list[str]) -> str:
    """What a command prints on a terminal of 100 columns."""
    out = StringIO()
    columns, day = mock.patch.dict("os.environ", {"COLUMNS": "100"}), mock.patch("estimator.cli.inputs.today", return_value=TODAY)
    with chdir(ROOT), redirect_stdout(out), suppress(SystemExit), columns, day:
        main(arguments)
    return out.getvalue()


def _answered(asked: re.Match[str]) -> str:
    """A command with its output under it."""
    return f"$ willitfit {asked[1]}\n{_printed(shlex.split(asked[1]))}"


def _command_line() -> str:
    parts = [f"{GENERATED}# Command line\n"]
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
            f"{row['memory_bytes']:,}",
            row["bandwidth_gb_per_second"],
            row["bf16_tflops"] or "none",
            _link(row["interconnect"], row["interconnect_gb_per_second"]),
            row["power_watts"] or "unknown",
            row["usd_per_gpu_hour"] or "no price known",
            unverified_text(row["unverified"]),
        ]
        for row in listing.gpus()
    ]
    nodes = [
        [
            row["name"],
            row["provider"],
            f"{row['gpus']} x {row['accelerator']}",
            _link(row["interconnect"], row["interconnect_gb_per_second"]),
            _link(row["network"], row["network_gb_per_second"]),
            unverified_text(row["unverified"]),
        ]
        for row in listing.nodes()
    ]
    return "\n".join(
        [
            f"{GENERATED}# Models, accelerators and nodes\n",
            "Each is a file with its sources: in `model_specs/`, and in `accelerators/` and `nodes/` of `estimator/hardware/`.\n",
            "## Models\n",
            _table(["model", "parameters", "family", "layers", "positions", "licence"], models),
            "## Accelerators\n",
            ACCELERATORS,
            _table(
                [
                    "accelerator",
                    "bytes a process can allocate",
                    "memory, GB/s",
                    "dense bf16 TFLOP/s",
                    "joined by, GB/s",
                    "W",
                    "least USD per GPU-hour",
                    "unverified",
                ],
                cards,
            ),
            "## Nodes\n",
            NODES,
            _table(["node", "provider", "accelerators", "joined by, GB/s", "network, GB/s per node", "unverified"], nodes),
        ]
    )


ACCELERATORS = """\
Each fact has two independent sources that agree within 1.5 %, or is flagged; `willitfit gpus NAME` shows all of one. Peaks
are dense, and products of less than fp32 are summed in fp32: consumer cards reach twice as much where fp16 products are
summed in fp16, and twice as much again is said of sparse ones. Bandwidths of links are those of one accelerator in one
direction. Memory is what `torch.cuda.get_device_properties` reports where that was seen; elsewhere, flagged, what nvidia-smi
shows less 330 MiB and 0.22 %. Drivers differ by up to 0.25 GiB. Of an Apple chip it is what Metal recommends to use, of a TPU
what XLA offers, of Trainium and Inferentia all of it, for want of a source. An MI250 or MI250X is one of a card's two dies,
as torch sees it.
"""
NODES = """\
`--on dgx-h100` or `--on 2xp5.48xlarge` means as many accelerators as these have. Networks are those of a whole node, in one
direction.
"""


def _link(kind: str | None, speed: float | None) -> str:
    return f"{kind} {speed:g}" if kind and speed else "-"


def _table(header: list[str], rows: list[list[object]]) -> str:
    lines = [header, ["---"] * len(header), *([str(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    for path, text in documents():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(), encoding="utf-8")
