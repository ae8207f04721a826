"""The service: its document, its health, and the page that needs no JavaScript."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter

from api.app import app
from api.query import job_mapping, job_query
from estimator import Answer, Fit, Job, estimate, inspect_model
from estimator.hardware.accelerator import Accelerator, accelerator
from estimator.hardware.node import Node, node
from estimator.views import listing

pytestmark = pytest.mark.slow

client = TestClient(app)
PAGES = {
    "empty": "/",
    "headline": "/?model=llama-2-13b&on=2x24GB",
    "ways that do not run": "/?model=qwen2.5-7b&on=T4",
    "unnamed card": "/?model=7B&on=80GB",
    "training": "/?task=train&model=llama-3-8b&on=8xh100&training.precision=bf16-true&training.tokens=1e9",
    "serving": "/?task=serve&model=qwen3-8b&on=rtx-4090&serving.hours=10",
    "without hardware": "/?task=train&model=gpt2",
    "no price": "/?task=train&model=gpt2&on=rtx-4070&training.tokens=1e9",
}


class Page(HTMLParser):
    """What a test asks of a page: its tags with their attributes, and its text."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())

    @property
    def text(self) -> str:
        return " ".join(filter(None, self.words))

    def links(self) -> list[str]:
        return [a["href"] or "" for tag, a in self.tags if tag == "a"]


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


@pytest.mark.parametrize("name", PAGES)
def test_a_page(name: str) -> None:
    answer = client.get(PAGES[name])
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    page = Page(answer.text)
    assert not [tag for tag, _ in page.tags if tag == "script"]
    assert not re.search(r'\bon\w+="', answer.text.replace("version=", "")), "no handlers"
    assert "None" not in page.text
    for svg in re.findall(r"<svg.*?</svg>", answer.text, re.DOTALL):
        ET.fromstring(svg)
    for href in page.links():
        assert client.get(href).status_code == 200, href


def test_the_verdict_comes_first() -> None:
    for name in ("headline", "training", "serving"):
        page = Page(client.get(PAGES[name]).text)
        main = page.tags[[tag for tag, _ in page.tags].index("main") + 1]
        assert (main[1]["class"] or "").startswith("verdict")


def test_the_bar_is_as_long_as_its_bytes() -> None:
    html = client.get(PAGES["training"]).text
    bar = ET.fromstring(re.findall(r'<svg class="bar".*?</svg>', html, re.DOTALL)[0])
    widths = [float(rect.attrib["width"]) for rect in bar.iter("rect")]
    answer = estimate(job_mapping(parse_qsl(urlsplit(PAGES["training"]).query)))
    memory = answer.memory
    assert len(widths) == len(memory.at_peak) + len(memory.overhead)
    limit = float(next(bar.iter("line")).attrib["x1"])
    assert memory.capacity_bytes is not None
    assert sum(widths) / limit == pytest.approx(memory.total_bytes / memory.capacity_bytes, rel=0.001)


def test_a_row_of_the_table_leads_to_the_same_bytes() -> None:
    page = Page(client.get(PAGES["headline"]).text)
    rows = client.get("/v1/fit", params={"model": "llama-2-13b", "on": "2x24GB"}).json()["rows"]
    hrefs = [href for href in page.links() if "task=" in href]
    assert len(hrefs) == len(rows)
    for href, row in zip(hrefs, rows, strict=True):
        asked = job_mapping(parse_qsl(urlsplit(href).query))
        assert estimate(asked).memory.total_bytes == row["total_bytes"]


def test_an_address_holds_the_whole_question() -> None:
    jobs: list[dict[str, Any]] = [
        {"model": "gpt2"},
        {"model": "gpt2", "training": {"adapter": {"targets": ["c_attn", "c_proj"]}, "activation_checkpointing": {"every": 2}}},
        {"model": "gpt2", "training": {"adapter": {"targets": ".*c_(attn|fc)", "exclude": ["c_fc"], "modules_to_save": ["wte"]}}},
        {"model": "gpt2", "training": {"adapter": {"type": "dora", "targets": ["c_attn"], "layers": [0, 3], "bias": "all"}}},
        {"model": "llama-3-8b", "task": "serve", "hardware": {"gpu": "h100"}, "serving": {"weights": "int8", "hours": 1.5}},
        {"model": "llama-3-8b", "hardware": {"gpus": 4}, "parallelism": {"reshard_after_forward": False}},
    ]
    for job in jobs:
        whole = Job.model_validate(job)
        assert Job.model_validate(job_mapping(job_query(whole.model_dump(mode="json")).items())) == whole


def test_the_form_keeps_what_was_asked() -> None:
    page = Page(client.get(PAGES["training"]).text)
    kept = {a["name"]: a.get("value") for tag, a in page.tags if tag == "input" and a.get("value")}
    assert kept["training.tokens"] == "1e9"
    assert "bf16-true" in [a["value"] for tag, a in page.tags if tag == "option" and "selected" in a]


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ("model=lama-2-7b&on=24GB", 404, "llama-2-7b"),
        ("model=llama-2-7b&on=", 422, "give a model and the hardware"),
        ("model=%3Cscript%3Ealert(1)%3C/script%3E&on=24GB", 404, "no model is called"),
        ("model=config.json&on=24GB", 422, "files cannot be named here"),
        ("task=train&model=gpt2&training.precison=x", 422, "Did you mean 'precision'"),
        ("task=train&model=gpt2&training=5", 422, "training"),
        ("task=train&model=gpt2&training=5&training.precision=x", 422, "training"),
        ("task=dance&model=gpt2", 422, "task"),
    ],
)
def test_a_bad_question_gets_a_page_that_says_so(query: str, status: int, says: str) -> None:
    answer = client.get(f"/?{query}")
    assert answer.status_code == status
    page = Page(answer.text)
    assert says in page.text
    assert not [tag for tag, _ in page.tags if tag == "script"]


def test_problems_are_explained() -> None:
    page = Page(client.get("/problems").text)
    ids = {a.get("id") for _, a in page.tags}
    assert {"invalid-job", "not-modelled", "unknown-name", "invalid-request", "content-too-large", "internal-error"} <= ids
