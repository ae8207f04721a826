"""The accuracy page, made of what the judges said and of what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from statistics import median

from estimator import Answer, estimate
from estimator.contract.units import MIB
from estimator.runtime import overheads
from tests.held_out import held_out, nvidia_cards
from tests.jobs import CASES, cases, content, job_of, moments
from tests.measured_runs import CUBLAS_WORKSPACES, a100_runs, as_measured, fsdp1_runs, megatron_runs, stages
from tests.records import records
from tests.splits import split, split_table


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one case."""

    group: str
    case: str
    what: str
    predicted: int
    found: int

    @property
    def error(self) -> float:
        return relative(self.predicted, self.found)


def relative(predicted: int, found: int) -> float:
    """The relative error; of what should be nothing (a step on the host) the only right amount is nothing."""
    return predicted / found - 1 if found else float(predicted)


@cache
def steps(judge: str) -> list[Row]:
    """Per case the moment at which the prediction is worst, or the highest where all are equal.

    Where a case does not say how far off it is, tests/verify/test_steps.py holds what is predicted to what was counted: it is not
    asked again here.
    """
    rows = []
    for path in sorted((CASES / judge).glob("*.yaml")):
        for case in cases(f"{judge}/{path.stem}"):
            counted = records()[judge][case["name"]]
            estimated = moments(job_of(case)) if "within" in case else counted
            worst = max(counted, key=lambda name: (abs(relative(estimated[name], counted[name])), counted[name]))
            rows.append(Row(path.stem.replace("_", " "), case["name"], worst.replace("_", " "), estimated[worst], counted[worst]))
    return rows


@cache
def gpu_runs() -> list[tuple[dict[str, object], Answer]]:
    """Measured runs with their answers."""
    return [(run, estimate(run["job"])) for run in (*a100_runs(), *fsdp1_runs())]


def model_of(run: dict[str, object]) -> str:
    """The group of a measured run."""
    return f"{run['model']}, FSDP1" if "gpus" in run else str(run["model"])


def allocated() -> Iterator[Row]:
    """Peaks of allocated bytes."""
    for run, answer in gpu_runs():
        if not run["out_of_memory"]:
            predicted = as_measured(run, answer.memory.peak_bytes, answer)
            yield Row(model_of(run), str(run["name"]), answer.memory.peak_phase, predicted, int(str(run["peak_allocated_bytes"])))


def megatron() -> Iterator[Row]:
    """Peaks of allocated bytes of each pipeline stage, cuBLAS's workspaces of torch's own products included."""
    for run in megatron_runs():
        ranks, output = stages(run["job"]), len(run["stages"]) - 1
        for number, (simulated, found) in enumerate(zip(ranks, run["stages"], strict=True)):
            predicted = simulated.phases.peak.peak_bytes + CUBLAS_WORKSPACES * (number == output)
            moment = f"{simulated.phases.peak.name}, stage {number}"
            yield Row(str(run["model"]), str(run["name"]), moment, predicted, round(found["allocated_mib"] * MIB))


def shown() -> Iterator[Row]:
    """What nvidia-smi showed."""
    for run, answer in gpu_runs():
        if not run["out_of_memory"]:
            found = round(float(str(run["nvidia_smi_mib"])) * MIB)
            yield Row(model_of(run), str(run["name"]), "nvidia-smi", answer.memory.total_bytes, found)


def verdicts() -> Iterator[list[str]]:
    """Fits or not, as it was and as it was said."""
    for run, answer in gpu_runs():
        was = "ran out" if run["out_of_memory"] else "ran"
        said = "fits" if answer.fits else "does not fit"
        right = "right" if (answer.fits is True) is not run["out_of_memory"] else "wrong"
        yield [str(run["name"]), was, said, f"{answer.memory.total_bytes / MIB:,.0f}", right]


def capacities() -> dict[str, float]:
    """What a process can allocate of a card by the line through some cards of which both totals were read, over what it can, less
    one."""
    known = overheads.facts()
    errors = {}
    for card in nvidia_cards():
        kept = known["driver"].value + known["driver_share"].value * card.framebuffer.value
        errors[card.name] = (card.framebuffer.value - kept) / card.memory.value - 1
    return errors


def held_out_part(peaks: list[Row], smi: list[Row], spread: list[Row]) -> str:
    """Of each table of measured memory the rows that a number was fitted to, and those that none was."""
    used = [row.case for row in smi if not held_out("fine_tuning_a100", row.case)]
    cards = capacities()
    rows = [
        ("A100, peak allocated", split({row.case: row.error for row in peaks})),
        ("B200, Megatron-Core, each stage's peak allocated", split({f"{row.case} {row.what}": row.error for row in spread})),
        ("A100, what nvidia-smi showed", split({row.case: row.error for row in smi}, used)),
        (
            "cards, what a process can allocate of one not in the catalogue",
            split(cards, [c for c in cards if not held_out("cards", c)]),
        ),
    ]
    return split_table(rows, 3)


def summary(rows: list[Row]) -> list[str]:
    """Group, cases, equal ones, median and worst error."""
    errors = [abs(row.error) for row in rows]
    return [str(len(rows)), str(errors.count(0)), f"{median(errors):.3%}", f"{max(errors):.3%}"]


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def details(rows: list[Row], found: str) -> str:
    """Every case, folded away."""
    body = table(
        ["case", "moment", "predicted", found, "error"],
        [[r.case, r.what, f"{r.predicted:,}", f"{r.found:,}", "equal" if r.error == 0 else f"{r.error:+.3%}"] for r in rows],
    )
    return f"<details><summary>every case</summary>\n\n{body}\n</details>\n"


def by_group(rows: list[Row]) -> str:
    """A line per group, and one for all."""
    groups = {row.group: [r for r in rows if r.group == row.group] for row in rows}
    lines = [[group, *summary(members)] for group, members in groups.items()]
    return table(["", "cases", "equal", "median error", "worst error"], [*lines, ["**all**", *summary(rows)]])


def drawn() -> str:
    """What became of jobs that were drawn at random, run by run."""
    runs: list[dict[str, object]] = content(CASES.parent / "data" / "drawn.yaml")
    columns = ["date", "commit", "seed", "width", "draws", "equal", "refused", "not judged", "finding"]
    return table(columns, [[str(run[column]) for column in columns] for run in runs])


def page() -> dict[str, str]:
    """The parts of the page that are made, by the name of their place in it."""
    fake, real, peaks, smi = steps("fake_steps"), steps("real_steps"), list(allocated()), list(shown())
    said, spread = list(verdicts()), list(megatron())
    wrong = [line for line in said if line[-1] == "wrong"]
    return {
        "held-out": held_out_part(peaks, smi, spread),
        "fake": by_group(fake) + "\n" + details(fake, "counted"),
        "drawn": drawn(),
        "real": by_group(real) + "\n" + details(real, "counted"),
        "allocated": by_group(peaks) + "\n" + details(peaks, "measured"),
        "megatron": by_group(spread) + "\n" + details(spread, "measured"),
        "nvidia-smi": by_group(smi) + "\n" + details(smi, "measured"),
        "verdicts": f"{len(said) - len(wrong)} of {len(said)} verdicts are right.\n\n"
        + "<details><summary>every run</summary>\n\n"
        + table(["run", "it", "we say", "MiB in all", ""], said)
        + "\n</details>\n",
    }
