"""What docs/watch.md shows runs."""

from __future__ import annotations

import re

import pytest
import torch

from tests.jobs import ROOT


def test_the_example_runs(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "watch.md").read_text(encoding="utf-8"), re.DOTALL)
    torch.manual_seed(0)
    exec(code, {})
    assert "training.activation_checkpointing: none in the code, full in the job" in capsys.readouterr().out
    assert "With the code's activation_checkpointing" in caplog.text
