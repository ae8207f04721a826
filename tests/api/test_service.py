"""The service: its document, its health, and its listings."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter

from api.app import app
from estimator import Answer, Fit, inspect_model
from estimator.hardware.accelerator import Accelerator, accelerator
from estimator.hardware.node import Node, node
from estimator.views import listing
from tests.schemas import of_route

pytestmark = pytest.mark.slow

client = TestClient(app)


def test_the_document_has_real_examples() -> None:
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert {"/v1/fit", "/v1/estimate", "/v1/models", "/v1/gpus", "/v1/nodes", "/livez", "/readyz"} <= set(document["paths"])
    post = document["paths"]["/v1/estimate"]["post"]
    asked = post["requestBody"]["content"]["application/json"]["example"]
    answered = post["responses"]["200"]["content"]["application/json"]["example"]
    assert client.post("/v1/estimate", json=asked).json() == answered
    Answer.model_validate_json(json.dumps(answered))
    fit = document["paths"]["/v1/fit"]["get"]
    query = {p["name"]: p["example"] for p in fit["parameters"] if "example" in p}
    example = fit["responses"]["200"]["content"]["application/json"]["example"]
    assert client.get("/v1/fit", params=query).json() == example
    Fit.model_validate_json(json.dumps(example))


def test_every_reference_of_the_document_leads_somewhere() -> None:
    text = client.get("/openapi.json").text
    schemas = json.loads(text)["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/(\w+)", text)) <= set(schemas)


@pytest.mark.parametrize(("path", "status"), [("/livez", "alive"), ("/readyz", "ready")])
def test_health(path: str, status: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": status})


@pytest.mark.parametrize("what", ["models", "gpus", "nodes"])
def test_listings(what: str) -> None:
    rows = TypeAdapter(list[dict[str, Any]]).validate_json(client.get(f"/v1/{what}").text)
    assert rows == getattr(listing, what)()
    assert len(rows) >= 15


@pytest.mark.parametrize(
    ("path", "about"), [("/v1/gpus/4090", accelerator("rtx-4090")), ("/v1/nodes/dgx-h100", node("dgx-h100"))]
)
def test_all_about_one(path: str, about: Accelerator | Node) -> None:
    assert type(about).model_validate_json(client.get(path).text) == about


def test_accelerators_and_nodes_are_searched() -> None:
    assert {row["name"] for row in client.get("/v1/gpus", params={"search": "24GB ada"}).json()} >= {"l4", "rtx-4090"}
    assert [row["name"] for row in client.get("/v1/nodes", params={"search": "aws 8x b200"}).json()] == ["p6-b200.48xlarge"]


def test_models_are_searched_and_counted() -> None:
    rows = client.get("/v1/models", params={"search": "Llama 3 8B", "min": 7e9, "max": 9e9}).json()
    assert "llama-3-8b" in {row["name"] for row in rows}
    for name in ("llama-3-8b", "meta-llama/Meta-Llama-3-8B", "13B"):
        answer = client.get(f"/v1/models/{name}")
        assert answer.text == inspect_model(name).model_dump_json(indent=2)


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/v1/gpus?search=rtx-4099", 404, "Did you mean rtx-4090"),
        ("/v1/gpus/rtx-4099", 404, "Did you mean rtx-4090"),
        ("/v1/nodes/p5.49xlarge", 404, "or p5.48xlarge"),
        ("/v1/models?search=lamma-2-7b", 404, "Did you mean"),
        ("/v1/models?min=many", 422, "min"),
        ("/v1/models/lamma-2-7b", 404, "Did you mean"),
        ("/v1/models/config.json", 422, "files cannot be named here"),
        ("/v1/models/weights.gguf", 422, "files cannot be named here"),
        ("/v1/models/some/model", 404, "some/model"),
    ],
)
def test_what_is_none_is_a_problem(path: str, status: int, said: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert said in answer.text


def test_files_are_checked_as_a_gate_asks() -> None:
    files = {"train.yaml": "model: gpt2\n", "large.yaml": "model: llama-3-8b\n", "ci.yaml": "on: push\n"}
    answer = client.post("/v1/check", params={"on": "24GB"}, json={"files": files})
    assert [file["verdict"] for file in answer.json()["files"]] == ["fits", "does not fit", "skipped"]
    of_route("POST", "/v1/check").validate(answer.json())
    said = client.post("/v1/check", params={"on": "24GB", "format": "github"}, json={"files": files})
    assert said.headers["content-type"] == "text/plain; charset=utf-8"
    assert said.text.startswith("::error file=large.yaml,line=1,")
    for body in ({"files": ["train.yaml"]}, {"files": {"a": 1}}, {}, {"files": dict.fromkeys(map(str, range(33)), "")}):
        assert client.post("/v1/check", json=body).status_code == 422


def test_problems_are_explained() -> None:
    ids = set(re.findall(r'id="([^"]+)"', client.get("/problems").text))
    assert {"invalid-job", "not-modelled", "unknown-name", "invalid-request", "content-too-large", "internal-error"} <= ids
