"""The pages, which need no JavaScript: the address holds the question, the heading repeats it, what they say is the answer."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from fastapi.testclient import TestClient

import api
from api.app import app
from api.asking import ask
from api.page import PAGES as KINDS
from api.page import link, render
from api.pages.forms import FIELDS, VIEWS
from api.pages.job import changed, changes, tries
from api.pages.of_job import presets
from api.pages.pictures import components, room
from api.pages.words import words
from api.problems import problem
from api.query import job_mapping
from api.routes.pages import VIEWS as VIEWED
from api.settings import settings
from estimator import estimate
from estimator.contract.job import read_job
from estimator.timelines.picture import STACK

pytestmark = pytest.mark.slow

client = TestClient(app)
FOLDER = Path(api.__file__).parent
JOB = "task=train&model=gpt2&on=rtx-4090&training.precision=bf16-true"
PAGES = {
    "empty": "/",
    "headline": "/?model=llama-2-13b&on=2x24GB",
    "ways that do not run": "/?model=qwen2.5-7b&on=T4",
    "unnamed card": "/?model=7B&on=80GB",
    "published in few bits": "/?model=kimi-k2.5&on=8xB200",
    "no GPU": "/?model=llama-3-8b&on=64GB+RAM",
    "training": "/?task=train&model=llama-3-8b&on=8xh100&training.precision=bf16-true&training.tokens=1e9",
    "serving": "/?task=serve&model=qwen3-8b&on=rtx-4090&serving.hours=10",
    "too large": "/?task=train&model=llama-3-8b&on=rtx-4090&training.precision=bf16-true",
    "without hardware": "/?task=train&model=gpt2",
    "no price": "/?task=train&model=gpt2&on=rtx-4070&training.tokens=1e9",
    "timeline": f"/timeline?{JOB}",
    "timeline of a server": "/timeline?task=serve&model=gpt2&on=rtx-4090",
    "what if": f"/what-if?{JOB}",
    "other values": f"/what-if?{JOB}&change=training.sequence_length=128..512&change=training.optimizer=adamw,sgd",
    "other hardware": f"/what-if?{JOB}&field=hardware&values=t4,2xh100",
    "limits": f"/limit?{JOB}",
    "limit": f"/limit?{JOB}&field=training.micro_batch_size&bound=max",
    "no limit": "/limit?task=train&model=llama-2-70b&on=t4&field=training.sequence_length",
    "compare": f"/compare?{JOB}",
    "compared": f"/compare?{JOB}&b.on=h100&b.training.optimizer=sgd",
    "cost": "/cost",
    "cost of a server": "/cost?task=serve&model=gpt2&on=h100",
    "cost of a run": "/cost?model=gpt2&method=lora&training.tokens=10M&max_hours=100",
    "cost of what": f"/cost?{JOB}",
    "too little money": "/cost?model=gpt2&method=full&training.tokens=1T&max_cost=1",
    "which": "/which",
    "which card": "/which?model=gpt2&task=lora&memory=24GB..32GB",
    "models": "/models",
    "which model": "/models?on=8GB&task=serve-4bit&search=smollm",
    "no model": "/models?on=8GB&task=full-mixed&search=mixtral",
    "plan": "/plan",
    "best ways": "/plan?model=gpt2&method=lora&on=rtx-4090&training.tokens=10M",
    "no way": "/plan?model=llama-3-70b&method=full-mixed&on=rtx-4090&training.tokens=1B",
    "no price of a way": "/plan?task=train&model=gpt2&on=24GB",
    "replicas": "/replicas",
    "copies": "/replicas?model=llama-3.1-8b&requests=10&ttft=0.5&tpot=0.03&on=8xH100",
    "too slow": "/replicas?model=llama-3.1-70b&requests=1&on=rtx-4090",
    "copies of a job": "/replicas?task=serve&model=qwen3-8b&on=rtx-4090&requests=0.5",
    "copies of what": "/replicas?task=serve&model=qwen3-8b&on=rtx-4090",
    "explain": "/explain",
    "explain a job": f"/explain?{JOB}",
    "along": f"/along?{JOB}",
    "along to axolotl": "/along?task=train&model=gpt2&on=rtx-4090&training.loss=fused&to=axolotl",
    "along to a scheduler": "/along?task=serve&model=qwen3-8b&on=rtx-4090&to=slurm",
    "file": "/file",
    "words": "/words",
    "no job": "/timeline",
}
AXOLOTL = "base_model: NousResearch/Meta-Llama-3-8B\nadapter: lora\nlora_r: 16\nsequence_len: 4096\nmicro_batch_size: 4\n"


class Page(HTMLParser):
    """What a test asks of a page: its tags with their attributes, and its text."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.within: list[str] = []
        self.texts: dict[str, str] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.within and self.within.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())
        for tag in self.within if "svg" not in self.within else ():
            self.texts[tag] = self.texts.get(tag, "") + data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def links(self) -> list[str]:
        return [a["href"] or "" for tag, a in self.tags if tag == "a"]


def page(path: str, status: int = 200) -> Page:
    answer = client.get(path)
    assert answer.status_code == status, answer.text[-2000:]
    assert answer.headers["content-type"].startswith("text/html")
    return Page(answer.text)


@pytest.mark.parametrize("name", PAGES)
def test_a_page(name: str) -> None:
    html = client.get(PAGES[name]).text
    found = page(PAGES[name])
    assert [a.get("src") for tag, a in found.tags if tag == "script"] == ["/static/page.js"]
    assert not re.search(r'\s(?:on[a-z]+|style)="', html.replace('name="on"', "")), "nothing that the policy forbids"
    assert "None" not in found.text
    assert len([tag for tag, _ in found.tags if tag == "h1"]) == 1
    ids = [a["id"] for _, a in found.tags if "id" in a and a["id"] not in ("t", "d")]
    assert len(ids) == len(set(ids))
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ET.fromstring(svg)
    known = {f"/{view}" for view in (*VIEWED, "file", "words", "docs")}
    paths = {urlsplit(href).path for href in found.links() if not href.startswith("#")}
    assert not {path for path in paths if path not in known and not path.startswith("/v1/")}
    for label in (a["for"] for tag, a in found.tags if tag == "label" and "for" in a):
        assert label in ids


def test_every_question_has_a_page_and_every_page_is_tried() -> None:
    assert {urlsplit(path).path.strip("/") for path in PAGES.values()} == {"words"} | {
        "" if name in ("fits", "job") else name for name in KINDS
    }
    assert {name for name, _ in VIEWS} <= {"", *KINDS}


CONFIG = """{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
"num_attention_heads": 4, "vocab_size": 99}"""


@pytest.mark.parametrize(
    "path", [*(PAGES[name] for name in ("headline", "too large", "serving")), f"/?on=t4&model={quote(CONFIG)}"]
)
def test_links_of_an_answer_are_answered(path: str) -> None:
    hrefs = {href for href in page(path).links() if urlsplit(href).path in ("/", "/v1/fit", "/v1/estimate")}
    assert len(hrefs) > 4
    for href in hrefs:
        assert client.get(href).status_code == 200, href


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("headline", "Does llama-2-13b fit on 2x24GB? 6 of 8 usual ways do."),
        ("training", "Train llama-3-8b on 8xh100: it fits"),
        ("too large", "Train llama-3-8b on rtx-4090: it does not fit"),
        ("without hardware", "Train gpt2: not known"),
        ("timeline", "Train gpt2 on rtx-4090: memory over a step"),
        ("other values", "Train gpt2 on rtx-4090: with other sequence length and optimizer"),
        ("compared", "Train gpt2 on rtx-4090, or train gpt2 on h100?"),
        ("which card", "Which GPU? Fine-tune gpt2 with LoRA"),
        ("which model", "Which models fit on 8GB? Serve them in 4 bits"),
        ("best ways", "The best ways to fine-tune gpt2 with LoRA on rtx-4090"),
        ("copies", "How many copies of llama-3.1-8b bear 10 requests a second?"),
        ("along to a scheduler", "Serve qwen3-8b in bf16 with vLLM on rtx-4090: for slurm"),
    ],
)
def test_title_and_heading_repeat_the_question(name: str, heading: str) -> None:
    found = page(PAGES[name])
    assert " ".join(found.texts["h1"].split()).startswith(heading)
    assert found.texts["title"].endswith(" · Will it fit?")
    assert found.texts["title"].startswith(heading.rpartition("?")[0] or heading)


@pytest.mark.parametrize("name", ["best ways", "copies", "cost of a run"])
def test_a_page_is_what_its_json_says(name: str) -> None:
    found = page(PAGES[name])
    (address,) = (href for href in found.links() if href.startswith("/v1/"))
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    rows = answer.json()["rows"]
    assert rows
    hrefs = [unescape(href) for href in re.findall(r'<th scope="row"><a href="([^"]+)"', client.get(PAGES[name]).text)]
    for href, row in zip(hrefs, rows, strict=False):
        job, total = estimate(job_mapping(parse_qsl(urlsplit(href).query))), estimate(row["job"])
        assert job.memory == total.memory, href


def test_the_question_comes_first_then_the_verdict() -> None:
    for name in ("headline", "training", "serving"):
        found = page(PAGES[name])
        classes = [a.get("class") or "" for tag, a in found.tags if tag == "section"]
        assert [one.split()[0] for one in classes[:2]] == ["question", "verdict"]


def test_the_bar_is_as_long_as_its_bytes_and_ends_where_the_verdict_does() -> None:
    for name in ("training", "serving"):
        html = client.get(PAGES[name]).text
        bar = ET.fromstring(re.findall(r'<svg class="bar".*?</svg>', html, re.DOTALL)[0])
        widths = [float(rect.attrib["width"].rstrip("%")) for rect in bar.iter("rect") if "part" in rect.attrib["class"]]
        answer = estimate(job_mapping(parse_qsl(urlsplit(PAGES[name]).query)))
        edge = room(answer)
        assert edge is not None
        assert f"of {edge / 2**30:.1f} GiB" in answer.reason
        assert len(widths) == len(components(answer.memory))
        limit = float(next(bar.iter("line")).attrib["x1"].rstrip("%"))
        assert sum(widths) / limit == pytest.approx(answer.memory.total_bytes / edge, rel=0.001)


def test_each_part_has_a_colour_of_its_own() -> None:
    css = (FOLDER / "static" / "style.css").read_text()
    for name in ("training", "serving", "too large"):
        answer = estimate(job_mapping(parse_qsl(urlsplit(PAGES[name]).query)))
        parts = components(answer.memory)
        assert sum(part.bytes for part in parts) == answer.memory.total_bytes
        assert len({part.colour for part in parts}) == len(parts)
        for part in parts:
            assert f".c-{part.colour} {{ fill: var(" in css


def test_the_timeline_has_the_colours_of_the_picture() -> None:
    css = (FOLDER / "static" / "style.css").read_text()
    for name, shades in STACK.items():
        assert re.findall(rf"--{name}: (#\w+);", css) == list(shades)
        assert f".timeline .{name} {{ fill: var(--{name}); }}" in css
    svg = re.search(r'<div class="timeline">(.*?)</div>', client.get(PAGES["timeline"]).text, re.DOTALL)
    assert svg is not None
    assert "<style" not in svg[1]
    assert svg[1].count("<title>") > 100


def test_a_row_of_the_table_leads_to_the_same_bytes() -> None:
    html = client.get(PAGES["headline"]).text
    rows = client.get("/v1/fit", params={"model": "llama-2-13b", "on": "2x24GB"}).json()["rows"]
    hrefs = [unescape(href) for href in re.findall(r'<th scope="row"><a href="([^"]+)"', html)]
    assert len(hrefs) == len(rows)
    for href, row in zip(hrefs, rows, strict=True):
        asked = job_mapping(parse_qsl(urlsplit(href).query))
        assert estimate(asked).memory.total_bytes == row["total_bytes"]


@pytest.mark.parametrize(
    "asked", ["model=llama-2-13b&on=2x24GB", "model=13B&on=rtx-4090&context=16384", "model=gpt2&on=8GB&batch=64"]
)
def test_what_a_way_would_fit_with_is_a_link_to_a_job_that_fits(asked: str) -> None:
    html = client.get(f"/?{asked}").text
    rows = client.get(f"/v1/fit?{asked}").json()["rows"]
    told = [row for row in rows if row["would_fit_job"]]
    assert told
    assert all(row["would_fit_with"] and row["fits"] is False for row in told)
    links = re.findall(r'data-label="would fit with"><a href="([^"]+)">([^<]+)</a>', html)
    assert [unescape(text) for _, text in links] == [row["would_fit_with"] for row in told]
    for (href, _), row in zip(links, told, strict=True):
        answer = estimate(job_mapping(parse_qsl(urlsplit(unescape(href)).query)))
        assert answer.fits is True
        assert answer.memory == estimate(row["would_fit_job"]).memory


@pytest.mark.parametrize("on", ["rtx-4090", "2x24GB"])
def test_a_suggestion_that_is_followed_needs_what_it_said(on: str) -> None:
    items = [("task", "train"), ("model", "llama-3.2-1b"), ("on", on), ("training.micro_batch_size", "16")]
    found = [one for one in changes(estimate(job_mapping(items)), items) if " would need " in one.text]
    assert found
    for change in found:
        assert change.items is not None, change.text
        answer = estimate(job_mapping(change.items))
        least = answer.memory.total_bytes - answer.memory.overhead["cached_blocks"]
        needs = [f"would need {answer.memory.total_bytes / 2**30:.1f} GiB", f"would need at least {least / 2**30:.1f} GiB"]
        assert needs["at least" in change.text] in change.text
        assert answer.fits is change.fits


@pytest.mark.parametrize("job", ["task=serve&model=llama-3-8b&on=t4", JOB, "task=train&model=llama-3-8b&on=t4"])
def test_what_may_be_tried_are_jobs(job: str) -> None:
    items = parse_qsl(job)
    answer = estimate(job_mapping(items))
    for text, fields in tries(answer.job, answer.fits):
        other = read_job(job_mapping(changed(items, fields)))
        assert other != read_job(job_mapping(items)), text
    for text, change in presets(read_job(job_mapping(items))):
        name, _, values = change.partition("=")
        assert name
        assert values, text


@pytest.mark.parametrize("view", ["", "which"])
def test_a_page_says_when_the_service_is_busy(view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*_: Any, **__: Any) -> Any:
        return problem(503, "busy", "more questions wait than this service takes on", {"Retry-After": "5"})

    monkeypatch.setattr("api.routes.pages.ask", busy)
    answer = client.get(f"/{view}?model=gpt2&on=t4&never={view}")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.headers["content-type"].startswith("text/html")
    assert "more questions wait" in Page(answer.text).text
    assert ask is not busy


@pytest.fixture
def rooted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.cache_clear()
    monkeypatch.setenv("WILLITFIT_ROOT_PATH", "/tools/fit")
    yield
    monkeypatch.undo()
    settings.cache_clear()


@pytest.mark.usefixtures("rooted")
def test_behind_a_path_every_link_has_it() -> None:
    for view, items in (("", ""), ("", "model=gpt2&on=t4"), ("", JOB), ("timeline", JOB), ("which", ""), ("file", "")):
        _, html = render(parse_qsl(items), view)
        links = re.findall(r'\s(?:href|src|action)="([^"#]+)', html)
        assert len(links) > 10
        assert not [one for one in links if not one.startswith(("/tools/fit/", "data:"))]
    assert link("v1/fit", [("model", "a b")]) == "/tools/fit/v1/fit?model=a+b"


def test_words_are_explained_and_each_is_used() -> None:
    found = page("/words")
    assert set(words()) <= {a.get("id") for _, a in found.tags}
    said = "".join(path.read_text() for path in (FOLDER / "templates").glob("*.html"))
    asked = set(re.findall(r'(?:explained|tip|text)\("(?:[\w.]+", "[^"]*", "[^"]*", ")?([\w-]+)"', said))
    fields = {field.word for each in FIELDS.values() for field in each if field.word}
    assert fields <= set(words())
    for key, word in words().items():
        assert word.text.endswith((".", ")")), key
        assert len(word.text) < 300
    assert {"parameters", "kv_cache", "lora", "peak"} <= asked | fields


@pytest.mark.parametrize(("name", "kind"), [("style.css", "text/css"), ("page.js", "text/javascript")])
def test_the_look_and_the_script_are_small(name: str, kind: str) -> None:
    answer = client.get(f"/static/{name}", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-type"].startswith(kind)
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < 5000
    assert not re.search(r"https?://|@import|url\(", answer.text), "nothing from another host"
    assert client.get("/static/../app.py").status_code == client.get("/static/..%2Fapp.py").status_code == 404
