"""What is said of a job before it starts: to Kubernetes, and in front of sbatch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import app
from api.problems import problem
from api.settings import settings
from estimator import estimate
from estimator.cli.main import main
from estimator.exchange.gate import MOST_WARNING, admitted, ruled, warning
from tests.jobs import ROOT
from tests.schemas import of_route

client = TestClient(app)
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


def _pod(command: list[str], gpus: int | None = 1, selector: dict[str, str] | None = None) -> dict[str, Any]:
    limits = {} if gpus is None else {"nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "registry/image", "command": command, "resources": {"limits": limits}}
    return {"nodeSelector": H100 if selector is None else selector, "containers": [container]}


def _object(spec: dict[str, Any], kind: str = "Pod", notes: dict[str, str] | None = None) -> dict[str, Any]:
    template = {"spec": spec}
    whole = {
        "Pod": spec,
        "Deployment": {"replicas": 2, "template": template},
        "Job": {"template": template},
        "CronJob": {"jobTemplate": {"spec": {"template": template}}},
    }
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x", "annotations": notes or {}}, "spec": whole[kind]}


def _review(given: dict[str, Any] | None, operation: str = "CREATE") -> dict[str, Any]:
    request = {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "operation": operation, "object": given}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


LARGE = ["vllm", "serve", "meta-llama/Llama-3.1-70B-Instruct", "--max-model-len", "8192"]
SMALL = ["vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "8192"]
FITS, WARNS, DENIED = (True, None), (True, 1), (False, None)
REVIEWS: list[tuple[str, dict[str, Any], bool, tuple[bool, int | None], str]] = [
    ("it fits", _object(_pod(SMALL)), True, FITS, ""),
    ("it does not fit, and may", _object(_pod(LARGE)), False, WARNS, "does not fit: vLLM would not start"),
    ("it does not fit", _object(_pod(LARGE)), True, DENIED, "it fits"),
    ("of a Deployment", _object(_pod(LARGE), "Deployment"), True, DENIED, "does not fit"),
    ("of a Job, in a shell", _object(_pod(["bash", "-c", " ".join(LARGE)]), "Job"), True, DENIED, "does not fit"),
    ("of a CronJob", _object(_pod(LARGE), "CronJob"), True, DENIED, "does not fit"),
    ("without a GPU", _object(_pod(LARGE, None)), True, FITS, ""),
    ("no named card", _object(_pod(LARGE, selector={})), True, WARNS, "unknown: no hardware was given"),
    ("a card by annotation", _object(_pod(LARGE, selector={}), notes={"willitfit/on": "h100"}), True, DENIED, "does not fit"),
    ("a card that nobody knows", _object(_pod(LARGE), notes={"willitfit/on": "h1000"}), True, WARNS, "willitfit/on"),
    ("a command that nobody knows", _object(_pod(["python", "x.py"])), True, WARNS, "no command that is known"),
    ("an unknown model", _object(_pod(["vllm", "serve", "own/model"])), True, WARNS, "no model is called"),
    ("a model by annotation", _object(_pod(["vllm", "serve", "own/model"]), notes={"willitfit/model": "gpt2"}), True, FITS, ""),
    ("a file of the service's", _object(_pod(["vllm", "serve", "/etc/passwd.json"])), True, WARNS, "not known whether it fits"),
    ("no pod", {"kind": "Pod", "spec": "nvidia.com/gpu", "metadata": []}, True, FITS, ""),
    ("a hostile pod", {"kind": "Pod", "spec": {"containers": [1, {"nvidia.com/gpu": "x" * 9000}]}}, True, WARNS, "command"),
]


@pytest.mark.parametrize(("name", "given", "enforce", "expected", "says"), REVIEWS, ids=[row[0] for row in REVIEWS])
def test_an_object_is_admitted_unless_its_job_certainly_does_not_fit(
    name: str, given: dict[str, Any], enforce: bool, expected: tuple[bool, int | None], says: str
) -> None:
    review = _review(given)
    found = admitted(review, enforce)
    response = found["response"]
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert response["uid"] == review["request"]["uid"]
    warnings = response.get("warnings")
    assert (response["allowed"], warnings and len(warnings)) == expected
    said = response.get("status", {}).get("message", "") + "".join(warnings or [])
    assert says in said
    assert bool(said) == bool(says)
    assert all(len(one) <= MOST_WARNING and "\n" not in one for one in warnings or [])


def test_only_the_low_end_of_what_is_expected_makes_it_certain() -> None:
    said = estimate({"model": "llama-3-8b", "hardware": {"gpu": "rtx-4090"}, "training": {"precision": "bf16-true"}})
    assert ruled(said).fits == "no"
    limit = said.memory.capacity_bytes or 0
    near = said.model_copy(update={"memory": said.memory.model_copy(update={"range_bytes": (limit - 1, 2 * limit)})})
    assert ruled(near).fits == "unknown"
    assert ruled(estimate({"model": "gpt2"})).fits == "unknown"
    assert warning("x " * 500).endswith("…")


def test_what_is_deleted_is_not_looked_at() -> None:
    assert admitted(_review(None, "DELETE"), True)["response"]["allowed"]
    assert "warnings" not in admitted(_review(_object(_pod(LARGE)), "DELETE"), True)["response"]


@pytest.mark.parametrize("enforce", ["false", "true"])
def test_the_service_is_a_webhook(enforce: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.cache_clear()
    monkeypatch.setenv("WILLITFIT_ENFORCE", enforce)
    try:
        answer = client.post("/v1/admission?timeout=10s", json=_review(_object(_pod(LARGE))))
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert (answer.status_code, answer.headers["content-type"], answer.headers["cache-control"]) == (
        200,
        "application/json",
        "no-store",
    )
    of_route("POST", "/v1/admission").validate(answer.json())
    assert answer.json()["response"]["allowed"] is (enforce == "false")


def test_a_busy_service_lets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*_: Any, **__: Any) -> Any:
        return problem(503, "busy", "more questions wait than this service takes on")

    monkeypatch.setattr("api.routes.cluster.ask", busy)
    response = client.post("/v1/admission", json=_review(_object(_pod(LARGE)))).json()["response"]
    assert (response["allowed"], response["warnings"][0][:44]) == (True, "willitfit: not known whether it fits: more q")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"request": 1}', b'{"request": {"uid": 5}}', b"{"])
def test_what_is_no_review_is_refused(body: bytes) -> None:
    answer = client.post("/v1/admission", content=body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


SCRIPT = "#!/bin/bash\n#SBATCH --gres=gpu:h100:1\ntouch ran\n{}\n"
SBATCH = '#!/bin/sh\necho "Submitted batch job 42: $*"\nexit 3\n'


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text(SBATCH)
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    (tmp_path / "large.sh").write_text(SCRIPT.format(" ".join(LARGE)))
    (tmp_path / "small.sh").write_text(SCRIPT.format(" ".join(SMALL)))
    (tmp_path / "other.sh").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "notes").write_text("no script")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "submitted", "says"),
    [
        (["sbatch", "small.sh", "argument"], "small.sh argument", "fits: "),
        (["sbatch", "large.sh"], "", "not submitted; --force"),
        (["--force", "sbatch", "-J", "notes", "large.sh"], "-J notes large.sh", "does not fit: "),
        (["--warn-only", "sbatch", "large.sh"], "large.sh", "does not fit: "),
        (["sbatch", "--gres=gpu:b200:1", "large.sh"], "--gres=gpu:b200:1 large.sh", "fits: "),
        (["--on", "b200", "sbatch", "large.sh"], "large.sh", "fits: "),
        (["sbatch", "--gres=gpu:v100:1", "large.sh"], "--gres=gpu:v100:1 large.sh", "unknown: "),
        (["sbatch", "other.sh"], "other.sh", "not known whether it fits: "),
        (["sbatch", "--wrap=hostname"], "--wrap=hostname", "no file that begins with #!"),
        (["sbatch", "missing.sh"], "missing.sh", "no file that begins with #!"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_sbatch_runs_after_the_verdict_and_the_script_does_not(
    cluster: Path,
    words: list[str],
    submitted: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(cluster)
    monkeypatch.setenv("PATH", f"{cluster / 'bin'}:{os.environ['PATH']}")
    assert main(["wrap", *words]) == (3 if submitted else 1), "sbatch's own, or that of a refusal"
    found = capfd.readouterr()
    assert says in found.err
    assert found.out == (f"Submitted batch job 42: {submitted}\n" if submitted else "")
    assert not (cluster / "ran").exists()


def test_a_script_of_its_name_in_front_of_slurms_calls_slurms(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As docs/cluster.md has it; it was started again and again."""
    (cluster / "first").mkdir()
    (cluster / "first" / "sbatch").write_text('#!/bin/sh\nexec willitfit wrap sbatch "$@"\n')
    (cluster / "first" / "sbatch").chmod(0o755)
    monkeypatch.chdir(cluster)
    monkeypatch.setenv("PATH", f"{cluster / 'first'}:{cluster / 'bin'}:{os.environ['PATH']}")
    assert main(["wrap", "sbatch", "other.sh"]) == 3
    assert capfd.readouterr().out == "Submitted batch job 42: other.sh\n"


@pytest.mark.slow
def test_without_slurm_it_says_so(cluster: Path) -> None:
    """In a process of its own, as a shell starts it."""
    command = [sys.executable, "-m", "estimator.cli", "wrap", "sbatch", "small.sh"]
    environment = {**os.environ, "PATH": "", "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=cluster, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert "sbatch: is not installed here, or not on the PATH" in found.stderr
