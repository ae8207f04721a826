"""What is around the answers: memory, compression, bounds, and what browsers and whoever runs the service are told."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import app
from api.asking import _rate
from api.limits import ADDRESS_LIMIT, BATCH_LIMIT
from api.remembered import Memory, Remembered
from api.settings import Settings, read, settings
from estimator import estimate
from estimator.cli.commands import COMMANDS
from estimator.contract.errors import InvalidValue
from tests.described import request, wrong
from tests.jobs import ROOT

client = TestClient(app, raise_server_exceptions=False)
FIT = "/v1/gpus/rtx-4090"
JOB = {"model": "gpt2", "hardware": {"gpu": "t4"}}


@pytest.fixture
def set_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    settings.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    settings.cache_clear()


def test_who_has_an_answer_gets_it_not_again() -> None:
    first = client.get(FIT)
    assert first.headers["cache-control"].startswith("public")
    for tag in (first.headers["etag"], '"other", ' + first.headers["etag"], "*"):
        again = client.get(FIT, headers={"If-None-Match": tag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert client.get(FIT, headers={"If-None-Match": '"other"'}).status_code == 200


def test_every_get_has_a_head() -> None:
    for path in [FIT, "/livez", "/", "/docs", "/v1/gpus/rtx-4099", "/static/style.css"]:
        get, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (get.status_code, b""), path
        assert head.headers["content-type"] == get.headers["content-type"]
        assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize(
    ("asked", "packed"), [("gzip", True), ("br, gzip;q=0.5", True), ("identity", False), ("gzip;q=0", False)]
)
def test_what_is_long_is_compressed(asked: str, packed: bool) -> None:
    answer = client.get(FIT, headers={"Accept-Encoding": asked})
    assert (answer.headers.get("content-encoding") == "gzip") is packed
    assert answer.json()["name"] == "rtx-4090"
    assert "Accept-Encoding" in answer.headers["vary"]
    assert int(answer.headers["content-length"]) < len(answer.content) + (not packed)


def test_memory_keeps_to_its_bytes(set_to: pytest.MonkeyPatch) -> None:
    set_to.setenv("WILLITFIT_REMEMBERED", "10000")
    memory = Memory(app)
    for number in range(50):
        memory.keep((number,), Remembered(200, [], b"x" * 1000, b"", b""))
        assert memory.size == sum(one.size for one in memory.kept.values()) <= 10_000
    assert list(memory.kept) == [(n,) for n in range(44, 50)]
    memory.keep(("large",), Remembered(200, [], b"x" * 10_000, b"", b""))
    assert ("large",) not in memory.kept


def test_a_question_is_remembered_with_its_body() -> None:
    texts = [client.post("/v1/estimate", json={**JOB, "task": task}).text for task in ("train", "serve", "train", "serve")]
    assert texts[:2] == texts[2:] == [estimate({**JOB, "task": task}).to_json() for task in ("train", "serve")]


def test_pages_elsewhere_may_read() -> None:
    origin = {"Origin": "https://example.org"}
    assert client.get(FIT, headers=origin).headers["access-control-allow-origin"] == "*"
    asks = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    assert client.options("/v1/estimate", headers=asks).status_code == 200
    asks["Access-Control-Request-Method"] = "DELETE"
    assert client.options("/v1/estimate", headers=asks).status_code == 400


@pytest.mark.parametrize("path", ["/", "/docs", "/problems", "/v1/gpus/rtx-4099", "/static/style.css", "/?model=gpt2&on=t4"])
def test_browsers_are_told_to_be_careful(path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/docs", "/problems", "/?model=gpt2&on=t4"])
def test_pages_need_no_other_host_and_nothing_that_the_policy_forbids(path: str) -> None:
    html = client.get(path).text
    assert not re.search(r"<(?:script|link|img|iframe)[^>]*(?:https?:)?//", html)
    assert not re.search(r'\sstyle="|<style|<script(?![^>]*\ssrc=)', html)


@pytest.mark.parametrize(("given", "kept"), [("abc-1.2", True), ("x" * 65, False), ("a b", False), ("", False)])
def test_each_request_has_an_id_and_a_line(given: str, kept: bool, capsys: pytest.CaptureFixture[str]) -> None:
    answer = client.get(FIT, headers={"X-Request-ID": given})
    number = answer.headers["x-request-id"]
    assert (number == given) is kept
    assert re.fullmatch(r"[\w.-]{1,64}", number)
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (line["id"], line["path"], line["status"], line["method"]) == (number, FIT, 200, "GET")


def test_requests_are_counted() -> None:
    def count() -> float:
        text = client.get("/metrics").text
        found = re.search(r'^willitfit_requests_total\{method="GET",route="/livez",status="200"\} (\S+)$', text, re.MULTILINE)
        return float(found[1]) if found else 0

    before = count()
    client.get("/livez")
    assert count() == before + 1
    for number in range(5):
        client.get(f"/nothing/{number}")
    assert "/nothing" not in client.get("/metrics").text, "what strangers write is no label"


def test_one_client_may_ask_so_many_new_questions(set_to: pytest.MonkeyPatch) -> None:
    set_to.setenv("WILLITFIT_RATE", "2")
    _rate.cache_clear()
    paths = [f"/v1/gpus?search={words}" for words in ("h200", "b200 nvidia", "l40s", "h200")]
    found = [client.get(path) for path in paths]
    assert [answer.status_code for answer in found] == [200, 200, 429, 200], "what is remembered is no new question"
    assert 1 <= int(found[2].headers["retry-after"]) <= 30
    _rate.cache_clear()


def test_what_is_too_long_is_refused() -> None:
    long = client.get("/v1/models", params={"search": "x" * ADDRESS_LIMIT})
    assert (long.status_code, long.json()["type"]) == (414, "/problems#address-too-long")
    assert client.get("/v1/models", params={"search": "llama " * 40}).status_code == 422
    assert client.post("/v1/estimates", content=b"x" * (BATCH_LIMIT + 1)).status_code == 413


def test_many_jobs_are_answered_in_their_order() -> None:
    jobs: list[dict[str, Any]] = [JOB, {"model": "gtp2"}, {**JOB, "task": "serve"}]
    answer = client.post("/v1/estimates", content="\n".join(map(json.dumps, jobs)) + "\n\nno job\n")
    assert answer.headers["content-type"] == "application/x-ndjson"
    rows = [json.loads(line) for line in answer.text.splitlines()]
    for row, job in ((rows[0], jobs[0]), (rows[2], jobs[2])):
        assert row == json.loads(estimate(job).to_json())
    assert [row["status"] for row in (rows[1], rows[3])] == [404, 422]


@pytest.mark.parametrize("lines", [0, 1001])
def test_a_batch_has_its_bounds(lines: int) -> None:
    answer = client.post("/v1/estimates", content="{}\n" * lines)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert "1 to 1000" in answer.json()["detail"]


def test_the_description_names_each_operation_once() -> None:
    document = client.get("/openapi.json").json()
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))
    assert {tag for operation in operations for tag in operation["tags"]} == {tag["name"] for tag in document["tags"]}
    assert not [name for name in document["components"]["schemas"] if "__" in name], "two schemas of one name"
    html = client.get("/docs").text
    for path in document["paths"]:
        assert f" {path}</code>" in html


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("WORKERS", "many", "workers"),
        ("SECONDS", "0", "seconds"),
        ("MEMORY", "much", "memory"),
        ("ROOT_PATH", "fit/", "root_path"),
    ],
)
def test_settings_are_read_strictly(name: str, text: str, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        read({f"WILLITFIT_{name}": text})
    assert read({}) == read({f"WILLITFIT_{name}": ""}) == Settings()


def test_the_documents_name_every_setting_route_command_and_tool() -> None:
    """One table says where each capability is; nothing is missing from it, and nothing in it does not exist."""
    text = (ROOT / "docs" / "rest.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `WILLITFIT_(\w+)`", text, re.MULTILINE)) == {name.upper() for name in Settings.model_fields}
    table = text.partition("## The same everywhere")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")][1:]
    commands = {name for _, command, *_ in rows for name in re.findall(r"`willitfit ([\w-]+)", command)} - {"MODEL"}
    assert commands == set(COMMANDS)
    routes = {route for *_, routes, _ in rows for route in re.findall(r"`((?:GET|POST) [^`]+)`", routes)}
    paths = client.get("/openapi.json").json()["paths"]
    described = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert routes - described == {"GET /schema/{name}.json"}
    assert described <= routes
    for _, _, python, *_ in rows:
        for name in re.findall(r"`([\w.]+)`", python):
            module, _, attribute = f"estimator.{name}".rpartition(".")
            if not module.startswith("estimator.verify"):
                assert hasattr(import_module(module), attribute), name


COSTLY = re.compile("/v1/(plan|which|fitting|replicas|limit|budget|sweep|what-if|fix|diff)")


@pytest.mark.parametrize("seed", range(12))
def test_drawn_requests_are_answered_as_the_document_says(seed: int) -> None:
    rng = random.Random(seed)
    (method, at, query, body), path = request(rng)
    while COSTLY.match(path):
        (method, at, query, body), path = request(rng)
    answer = client.request(method, at, params=query, content=body)
    assert not wrong(path, method, answer.status_code, answer.headers.get("content-type", ""), answer.content)


@pytest.mark.parametrize(
    ("status", "media", "content", "says"),
    [
        (200, "application/json", b'{"status": "ok"}', ""),
        (500, "application/json", b"{}", "no 500"),
        (200, "text/html", b"", "with text/html"),
        (200, "application/json", b"NaN", "no JSON"),
        (200, "application/json", b'{"status": 1}', "is not of type"),
    ],
)
def test_an_answer_that_is_not_as_the_document_says_is_told(status: int, media: str, content: bytes, says: str) -> None:
    found = wrong("/livez", "GET", status, media, content)
    assert says in found if says else not found
