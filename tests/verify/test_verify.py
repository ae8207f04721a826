"""`willitfit verify`: what a doubting user runs."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest

from estimator import NotModelled, estimate
from estimator.cli.main import main
from estimator.verify import compare, playable

SMALL = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 1000,
}
JOB = {"model": SMALL, "training": {"sequence_length": 512}}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(JOB), encoding="utf-8")
    return str(path)


def test_both_counts_are_printed(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", file, "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["predicted", "counted", "difference"]
    assert [line.split()[-1] for line in lines[1:]] == ["equal"] * 5


def test_json(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["predicted"] == found["counted"]
    assert list(found["counted"]) == ["resident", "forward_end", "forward", "backward", "optimizer_step"]


def test_the_first_operations_that_differ(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The estimate of another type of weights, beside torch's count of this one."""
    real = estimate(JOB)
    other = estimate({**JOB, "training": {"sequence_length": 512, "precision": "bf16-true"}})
    with mock.patch.object(compare, "estimate", return_value=real.model_copy(update={"memory": other.memory})):
        assert main(["verify", file, "--check"]) == 1
    assert "%" in capsys.readouterr().out
    found = compare._differences(
        {"forward": [(512, "a"), (1024, "b"), (-512, "a")]},
        {"forward": [(512, "x"), (2048, "y"), (-512, "x")]},
        (100, 100),
    )
    (difference,) = found
    assert (difference.phase, difference.predicted_bytes) == ("forward", 100)
    assert difference.predicted[-1] == (1024, "b")
    assert difference.counted[-1] == (2048, "y")


AWQ = {"precision": "16-true", "quantization": "awq-int4", "unquantized": ["mlp"], "adapter": {"targets": ["q_proj"]}}


@pytest.mark.parametrize(
    ("training", "library"),
    [({"float8": "tensorwise"}, "torchao"), (AWQ, "gptqmodel"), ({"implementation": "torchtitan"}, "torchtitan")],
)
def test_without_a_library_it_says_so(training: dict[str, object], library: str) -> None:
    job = {**JOB, "hardware": {"gpu": "h100"}, "training": training}
    with mock.patch.object(playable, "find_spec", return_value=None), pytest.raises(NotModelled, match=f"pip install {library}"):
        compare.verify(job)


def test_without_torch_it_says_what_to_install(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.dict("sys.modules", {"estimator.verify.compare": None}):
        assert main(["verify", file]) == 2
    assert "pip install 'willitfit[torch]'" in capsys.readouterr().err
