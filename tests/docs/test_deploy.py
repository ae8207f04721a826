"""What the service is run by elsewhere: the image, compose, Kubernetes. Linted by what is installed; built nowhere here."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from api.app import app
from api.settings import Settings
from estimator.cli.commands import COMMANDS
from estimator.contract.version import SOFTWARE_VERSION
from tests.jobs import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
DOCUMENTS = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def _yaml(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def _instructions() -> list[tuple[str, str]]:
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines if line)]


def test_the_image_runs_as_nobody_says_whether_it_lives_and_starts_the_service() -> None:
    last = _instructions()[[name for name, _ in _instructions()].index("FROM", 1) :]
    said = dict(last)
    assert re.fullmatch(r"\d+:\d+", said["USER"])
    assert not said["USER"].startswith("0")
    assert [name for name, _ in last].index("USER") < [name for name, _ in last].index("ENTRYPOINT")
    assert "urlopen('http://127.0.0.1:8000/livez'" in said["HEALTHCHECK"]
    assert shlex.split(said["CMD"].strip("[]").replace(",", ""))[0] in COMMANDS
    for name, rest in _instructions():
        assert name != "ADD"
        assert name != "FROM" or re.match(r"python:3\.\d+-slim-\w+", rest), "a version, and no latest"


def test_only_what_is_installed_goes_into_the_image() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packaged = set(re.findall(r'^"?([\w.]+)"? = "(?:estimator/\w+|willitfit\.py)"$', project, re.MULTILINE)) | {"estimator"}
    assert packaged <= kept
    assert kept - packaged == {"pyproject.toml", "README.md", "LICENSE"}
    assert all((ROOT / name).exists() for name in kept)


def test_compose_takes_away_what_the_service_needs_not() -> None:
    service = COMPOSE["services"]["willitfit"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert {name.removeprefix("WILLITFIT_").lower() for name in service["environment"]} <= set(Settings.model_fields)


def test_kustomize_names_what_is_there_and_the_release() -> None:
    whole = _yaml("kustomization.yaml")
    assert {*whole["resources"], "webhook.yaml"} == {path.name for path in DOCUMENTS}
    container = _yaml("deployment.yaml")["spec"]["template"]["spec"]["containers"][0]
    [image] = whole["images"]
    assert (image["name"], image["newTag"]) == (container["image"], SOFTWARE_VERSION)
    assert {one["name"].removeprefix("WILLITFIT_").lower() for one in container["env"]} <= set(Settings.model_fields)


def test_the_cluster_asks_routes_that_there_are() -> None:
    client = TestClient(app)
    container = _yaml("deployment.yaml")["spec"]["template"]["spec"]["containers"][0]
    for probe in ("livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert client.get(asked["path"]).status_code == 200
        assert asked["port"] in {port["name"] for port in container["ports"]}
    assert _yaml("service.yaml")["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    [hook] = _yaml("webhook.yaml")["webhooks"]
    path = hook["clientConfig"]["service"]["path"]
    review = {"request": {"uid": "1", "operation": "CREATE", "object": {}}}
    assert client.post(f"{path}?timeout=10s", json=review).json()["response"] == {"uid": "1", "allowed": True}
    assert (hook["failurePolicy"], hook["sideEffects"], hook["admissionReviewVersions"]) == ("Ignore", "None", ["v1"])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_kubernetes_schemas_take_each_document(path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate: pip install 'willitfit[dev]'")
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    if document["kind"] == "Deployment":  # kustomize adds the selector and its labels
        labels = _yaml("kustomization.yaml")["labels"][0]["pairs"]
        document["spec"]["selector"] = {"matchLabels": labels}
        document["spec"]["template"]["metadata"] = {"labels": labels}
    validate.validate(document, "1.33", strict=True)


def test_hadolint_finds_nothing() -> None:
    program = shutil.which("hadolint")
    if program is None:
        pytest.skip("no hadolint")
    found = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
