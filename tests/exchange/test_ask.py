"""Resources that are asked for are those of the job, as the readers of such files find them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from api.app import app
from estimator import InvalidJob, estimate
from estimator.cli.main import main
from estimator.cli.options import PLATFORMS
from estimator.exchange import read
from estimator.exchange.ask import TO, asked
from estimator.exchange.launch import slurm
from estimator.exchange.platforms import dstack, skypilot
from estimator.exchange.shell import sbatch

TRAIN: dict[str, Any] = {"model": "llama-3.2-1b", "hardware": {"gpu": "a100-80gb", "gpus": 4, "nodes": 2}}
SERVE: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B",
    "task": "serve",
    "hardware": {"gpu": "h100", "gpus": 2},
    "parallelism": {"tensor": 2},
    "serving": {"context": 8192},
}


def test_training_on_nodes_of_a_named_card() -> None:
    said = estimate(TRAIN)
    assert said.host is not None
    launch, text = slurm(sbatch(asked(TRAIN, "slurm"))), asked(TRAIN, "slurm")
    assert (launch.gpus, launch.nodes) == (4, 2)
    assert said.host.scheduler in text
    for to, reader in (("skypilot", skypilot), ("dstack", dstack)):
        hardware = reader(yaml.safe_load(asked(TRAIN, to))).hardware
        assert hardware is not None
        assert (hardware.gpu, hardware.gpus, hardware.nodes) == ("a100-80gb", 4, 2), to
    pod = yaml.safe_load(asked(TRAIN, "kubernetes"))["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 4
    with pytest.raises(InvalidJob, match="serve"):
        asked(TRAIN, "kserve")


def test_a_served_model_read_back_is_the_same_job() -> None:
    found = read(asked(SERVE, "kserve")).job
    assert found["model"] == SERVE["model"]
    assert found["hardware"] == {"gpu": "h100", "gpus": 2}
    assert found["parallelism"] == {"tensor": 2}
    assert estimate(found).memory == estimate(SERVE).memory


def test_a_card_of_which_only_the_memory_is_known() -> None:
    job = {**TRAIN, "hardware": {"memory": "24GB", "gpus": 2}}
    assert yaml.safe_load(asked(job, "skypilot"))["resources"]["accelerators"] == "24GB+:2"
    assert yaml.safe_load(asked(job, "dstack"))["resources"]["gpu"] == "24GB..:2"
    assert "24 GB or more" in asked(job, "kubernetes")
    assert "--gpus-per-node=2\n" in asked(job, "slurm")


@pytest.mark.parametrize("to", TO)
def test_the_doors(to: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(TO) == PLATFORMS
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(SERVE), encoding="utf-8")
    assert main(["ask", str(path), "--as", to]) == 0
    text = capsys.readouterr().out
    assert text == TestClient(app).post("/v1/ask", params={"as": to}, json=SERVE).text
    assert text.startswith("# fits: ")


def test_a_name_that_is_not_known() -> None:
    with pytest.raises(InvalidJob, match="slurm"):
        asked(SERVE, "nomad")
