"""This machine: what its tools print is read, what they do not is said, and none of them can hang the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import pytest

from estimator import InvalidJob, UnknownName, estimate, fit
from estimator.cli.main import main
from estimator.contract.job import Hardware
from estimator.contract.units import GIB, MIB
from estimator.hardware import here as module
from estimator.hardware.capacity import capacity
from estimator.hardware.here import Here, asked, here
from tests.jobs import ROOT, content

MACHINES = ROOT / "tests" / "data" / "machines"
NOWHERE = Path("/nowhere")


def machine(name: str) -> Here:
    said = content(MACHINES / f"{name}.yaml")

    def ask(command: Sequence[str]) -> str | None:
        words = " ".join(command)
        return next((text for start, text in said.items() if words.startswith(start)), None)

    return here(ask, NOWHERE)


@pytest.mark.parametrize(
    ("name", "hardware", "used"),
    [
        ("nvidia_mixed", Hardware(gpu="rtx-4090", gpus=2), 1234 * MIB),
        ("nvidia_unified", Hardware(gpu="gb10"), None),
        ("nvidia_new", Hardware(memory="50.000GiB"), 0),
        ("amd_smi", Hardware(gpu="mi300x", gpus=2), 60283 * MIB),
        ("rocm_smi", Hardware(gpu="radeon-rx-7900-xtx"), GIB),
        ("mac", Hardware(gpu="m3-max-64gb"), None),
    ],
)
def test_a_machine_is_read_as_its_tools_print_it(name: str, hardware: Hardware, used: int | None) -> None:
    found = machine(name)
    assert found.hardware == hardware
    assert found.in_use_bytes == used
    assert found.said


def test_what_is_left_out_and_in_use_is_said_and_taken_off_if_asked() -> None:
    found = machine("nvidia_mixed")
    assert any("1 other accelerator" in said for said in found.said)
    assert any("hold 1.2 GiB" in said for said in found.said)
    whole, free = capacity(found.hardware), capacity(found.free)
    assert (whole.memory_bytes or 0) - (free.memory_bytes or 0) == 1234 * MIB
    assert free.accelerator == whole.accelerator
    less = estimate({"model": "gpt2", "hardware": found.free.model_dump(exclude_defaults=True)})
    assert less.memory.capacity_bytes == free.memory_bytes
    assert any("other processes hold 1.2 GiB" in said for said in less.assumptions)


def test_without_an_accelerator_it_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(content(MACHINES / "cpu.yaml")["meminfo"], encoding="utf-8")
    with pytest.raises(UnknownName) as refused:
        here(lambda command: None, tmp_path / "meminfo")
    assert "nvidia-smi, amd-smi, rocm-smi" in str(refused.value)
    assert "62.7 GiB" in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "\n", "Failed to initialize NVML", "[", "{}", "[1]", '{"card0": 1}', "[N/A], 1", '[{"gpu": 0}]', "a,b\n"]
)
def test_what_tools_print_in_trouble_is_no_accelerator(text: str) -> None:
    with pytest.raises(UnknownName):
        here(lambda command: text, NOWHERE)


def test_a_tool_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(module, "SECONDS", 0.2)
    start = monotonic()
    assert asked(["nvidia-smi"]) is None
    assert monotonic() - start < 30
    assert asked(["no-such-tool-anywhere"]) is None
    tool.write_text("#!/bin/sh\necho words; exit 9\n", encoding="utf-8")
    assert asked(["nvidia-smi"]) is None


def test_the_command_line_takes_here_wherever_it_takes_hardware(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("estimator.hardware.here.here", lambda: machine("nvidia_mixed"))
    path = str(ROOT / "docs" / "examples" / "qlora.yaml")
    for words in (
        ["gpt2", "--on", "here"],
        [path, "--on", "here"],
        ["max", path, "training.micro_batch_size", "--on", "HERE"],
        ["what-if", path, "training.micro_batch_size=1", "--on", "here:free"],
        ["import", path, "--on", "here"],
    ):
        assert main(words) == 0
        printed = capsys.readouterr()
        assert "this machine, by nvidia-smi: 2 x rtx-4090" in printed.err
        assert printed.out


def test_nothing_else_takes_here() -> None:
    with pytest.raises(InvalidJob, match="command line"):
        fit("gpt2", "here")
