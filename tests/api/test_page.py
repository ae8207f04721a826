"""The pages, which need no JavaScript: the address holds the question, the heading repeats it, what they say is the answer."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

import api
from api.app import app
from api.asking import ask
from api.page import PAGES as KINDS
from api.page import link, render
from api.pages.asked import asked
from api.pages.forms import EXAMPLES, FIELDS, METHODS, TASKS, VIEWS
from api.pages.job import changed, changes, job_items, title, tries
from api.pages.of_job import LIMITS, presets
from api.pages.pictures import components, room
from api.pages.spelled import meant
from api.pages.words import words
from api.problems import problem
from api.query import LISTS, NAMES, PARTS, job_mapping, job_query
from api.routes.pages import VIEWS as VIEWED
from api.settings import settings
from estimator import Job, estimate
from estimator.contract.job import read_job
from estimator.planner.ways import slugs
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
    ],
)
def test_title_and_heading_repeat_the_question(name: str, heading: str) -> None:
    found = page(PAGES[name])
    assert " ".join(found.texts["h1"].split()).startswith(heading)
    assert found.texts["title"].endswith(" · Will it fit?")
    assert found.texts["title"].startswith(heading.rpartition("?")[0] or heading)


QLORA = "task=train&" + urlencode(METHODS["qlora"])
QLORA_IN_FP16 = QLORA.replace("bf16-true", "16-true&training.autocast=true").replace("dtype=bf16", "dtype=fp32")


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("task=train&method=qlora&model=gpt2", f"{QLORA}&model=gpt2"),
        ("task=QLoRA&model=gpt2", f"{QLORA}&model=gpt2"),
        ("method=qlora&model=gpt2&rank=8", f"{QLORA.replace('rank=16', 'rank=8')}&model=gpt2"),
        ("way=qlora&model=gpt2&on=t4", f"{QLORA_IN_FP16}&model=gpt2&on=t4"),
        ("task=serve-4bit&model=gpt2", "task=serve&serving.weights=awq-int4&model=gpt2"),
        (
            "task=serve-4bit&model=gpt2&on=m4-16gb",
            "task=serve&serving.engine=llama.cpp&serving.weights=q4_k_m&model=gpt2&on=m4-16gb",
        ),
        ("model=gpt2&gpu=t4&gpus=2", "model=gpt2&on=2x t4"),
        ("model=gpt2&hardware=24GB", "model=gpt2&on=24GB"),
        ("model=gpt2&on=t4&context=8k", "model=gpt2&on=t4&context=8k"),
        ("task=serve&model=gpt2&context=1k&users=8", "task=serve&model=gpt2&serving.context=1024&serving.concurrency=8"),
        ("task=serve&model=gpt2&tp=2", "task=serve&model=gpt2&parallelism.tensor=2"),
        ("model=gpt2&on=t4&engine=ollama", "task=serve&model=gpt2&on=t4&serving.engine=ollama"),
        ("model=gpt2&on=t4&training.optimizer=sgd", "task=train&model=gpt2&on=t4&training.optimizer=sgd"),
        ("model=gpt2&task=train&sequence=512&utm_source=x", "model=gpt2&task=train&training.sequence_length=512"),
        ("model=gpt2&task=train&batch=4", "model=gpt2&task=train&training.micro_batch_size=4"),
        ("model=gpt2&task=train&nothing=1", "model=gpt2&task=train&nothing=1"),
    ],
)
def test_what_people_write_by_hand_is_read_as_it_is_meant(written: str, same: str) -> None:
    assert sorted(meant(asked(parse_qsl(written))).items) == sorted(parse_qsl(same))


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/?task=train&method=qlora&model=gpt2&on=24GB", 200, "Fine-tune gpt2 with QLoRA on 24GB: it fits"),
        ("/which?method=qlora&model=gpt2&memory=16GB", 200, "Which GPU? Fine-tune gpt2 with QLoRA"),
        ("/?model=gpt2&on=t4&context=1k&colour=red", 200, "not read: 'colour'"),
        ("/?task=finetune&model=gpt2", 422, "'finetune' is no task; write serve, serve-8bit,"),
        ("/?task=serve&method=qlora&model=gpt2", 422, "'qlora' is no way to serve"),
        ("/?task=serve-4bit&model=gpt2&on=mi300x", 422, "no AWQ for AMD"),
    ],
)
def test_a_page_says_what_was_meant(path: str, status: int, said: str) -> None:
    assert said in page(path, status).text


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


def test_every_list_of_a_job_is_read_from_an_address() -> None:
    """What an address says of a job is the job, also where a value is a list, or a list of what is no single value."""
    assert {name for name, kind in fields_of(Job) if "list[" in kind} <= {*LISTS, *NAMES, PARTS.removesuffix(".")}
    serving = {"engine": "llama.cpp", "override_tensor": ["blk.(1|2){1,3}=CPU", "exps=CPU"], "tensor_split": [3, 1]}
    lengths = [{"tokens": 512, "share": 0.5}, {"tokens": 1024, "share": 0.5}]
    for job in (
        {"model": "gpt2", "task": "serve", "serving": serving},
        {
            "model": "gpt2",
            "task": "serve",
            "serving": {"unquantized": ["lm_head"], "mixed_weights": {"fp8": ["q_proj", "k_proj"]}},
        },
        {"model": "gpt2", "training": {"lengths": lengths, "adapter": {"targets": "[qk]_proj", "layers": [0, 1]}}},
    ):
        whole = read_job(job)
        assert read_job(job_mapping(job_query(whole.model_dump(mode="json")).items())) == whole


def fields_of(part: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The fields of a job by their dotted names, with their types in words."""
    for name, field in part.model_fields.items():
        yield f"{prefix}{name}", str(field.annotation)
        for kind in (field.annotation, *get_args(field.annotation)):
            for inner in (kind, *get_args(kind)):
                if isinstance(inner, type) and issubclass(inner, BaseModel):
                    yield from fields_of(inner, f"{prefix}{name}.")


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


def test_an_address_holds_the_whole_question() -> None:
    jobs: list[dict[str, Any]] = [
        {"model": "gpt2"},
        {"model": "gpt2", "training": {"adapter": {"targets": ["c_attn", "c_proj"]}, "activation_checkpointing": {"every": 2}}},
        {"model": "gpt2", "training": {"adapter": {"targets": ".*c_(attn|fc)", "exclude": ["c_fc"], "modules_to_save": ["wte"]}}},
        {"model": "gpt2", "training": {"adapter": {"type": "dora", "targets": ["c_attn"], "layers": [0, 3], "bias": "all"}}},
        {"model": "llama-3-8b", "task": "serve", "hardware": {"gpu": "h100"}, "serving": {"weights": "int8", "hours": 1.5}},
        {"model": "llama-3-8b", "hardware": {"gpus": 4}, "parallelism": {"reshard_after_forward": False}},
        {"model": "llama-3-8b", "hardware": {"gpu": "h100", "gpus": 4, "nodes": 2}},
        {"model": "llama-3-8b", "hardware": {"gpu": "h100", "gpus": 4}},
    ]
    for job in jobs:
        whole = Job.model_validate(job)
        assert Job.model_validate(job_mapping(job_query(whole.model_dump(mode="json")).items())) == whole
        assert read_job(job_mapping(job_items(job))) == whole


def test_the_form_keeps_what_was_asked() -> None:
    found = page(PAGES["training"] + "&training.loss=fused")
    kept = {a["name"]: a.get("value") for tag, a in found.tags if tag == "input" and a.get("value") and "name" in a}
    assert kept["training.tokens"] == "1e9"
    assert kept["training.loss"] == "fused"
    assert "bf16-true" in [a["value"] for tag, a in found.tags if tag == "option" and "selected" in a]


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/?model=lama-2-7b&on=24GB", 404, "llama-2-7b"),
        ("/?model=llama-2-7b&on=", 422, "give the hardware, such as rtx-4090"),
        ("/?on=24GB", 422, "give a model, such as"),
        ("/?model=gpt2&on=24GB&context=many", 422, "write one such as 4096"),
        ("/?model=gpt2&on=24GB&context=٤", 422, "write one such as 4096"),
        ("/?model=%3Cscript%3Ealert(1)%3C/script%3E&on=24GB", 404, "no model is called"),
        ("/?model=config.json&on=24GB", 422, "files cannot be named here"),
        ("/?task=train&model=gpt2&training.precison=x", 422, "Did you mean 'precision'"),
        ("/?task=train&model=gpt2&training=5", 422, "training"),
        ("/?task=train&model=gpt2&training=5&training.precision=x", 422, "training"),
        ("/?task=dance&model=gpt2", 422, "task"),
        ("/timeline?on=t4", 422, "give a model, such as"),
        (f"/what-if?{JOB}&change=1k", 422, "write training.sequence_length=1k..128k"),
        (f"/what-if?{JOB}&change=training.sequence_length=1..1000:1", 422, "more than 48"),
        (f"/limit?{JOB}&field=training.precision", 422, "training.precision"),
        (f"/limit?{JOB}&field=training.micro_batch_size&bound=most", 422, "neither max nor min"),
        ("/cost?model=gpt2&method=prayer", 422, "write qlora"),
        ("/cost?model=gpt2&method=lora&training.tokens=10M&max_cost=much", 422, "write a number such as 500"),
        ("/cost?model=gpt2&method=lora&training.tokens=10M&max_cost=nan", 422, "write a number such as 500"),
        ("/which?model=gpt2&task=dance", 422, "write serve"),
        ("/which?model=gpt2&within=soon", 422, "write 24h"),
        ("/models?task=serve", 422, "give the hardware"),
        (f"/compare?{JOB}&b.on=nothing", 404, "nothing"),
        ("/?model=mine-9b&on=24GB", 404, "It goes into the field Model"),
        ("/?model=gpt2&on=rtx4900", 404, "can be given by its memory"),
        ("/?model={&on=24GB", 422, "model: is not JSON"),
    ],
)
def test_a_bad_question_gets_a_page_that_says_what_to_write(path: str, status: int, says: str) -> None:
    found = page(path, status)
    assert says in found.text
    assert "That could not be read" in found.texts["title"]
    assert [a.get("src") for tag, a in found.tags if tag == "script"] == ["/static/page.js"]


def test_a_file_is_read_and_answered() -> None:
    sent = {"text": AXOLOTL, "on": "rtx-4090", "model": ""}
    answer = client.post("/file", content=urlencode(sent))
    found = Page(answer.text)
    assert answer.status_code == 200
    assert found.texts["h1"].endswith(" with LoRA on rtx-4090 (a file of axolotl): it does not fit")
    assert "micro_batch_size: 4" in found.texts["textarea"]
    read = client.post("/v1/import", params={"on": "rtx-4090"}, content=AXOLOTL).json()["job"]
    same = [href for href in found.links() if urlsplit(href).path == "/timeline"]
    assert estimate(job_mapping(parse_qsl(urlsplit(same[0]).query))).memory == estimate(read).memory


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({"text": "", "model": "gpt2"}, "paste what your file says"),
        ({}, "Read my file"),
        ({"text": "adapter: qlora\nmicro_batch_size: 2\n"}, "model"),
        ({"text": "{"}, "That could not be read"),
        ({"text": '{"hidden_size": 8, "model_type": "llama"}'}, "paste it into the field Model"),
        ({"text": AXOLOTL, "on": "rtx-4099"}, "rtx-4090"),
        ({"text": "\x00\ud800"}, "That could not be read"),
    ],
)
def test_what_is_no_file_is_refused_with_what_to_write(sent: dict[str, str], says: str) -> None:
    answer = client.post("/file", content=urlencode(sent, errors="surrogatepass"))
    assert answer.status_code == (200 if not sent else 422 if "on" not in sent else 404)
    assert says in answer.text


def test_a_form_of_too_many_fields_is_refused() -> None:
    answer = client.post("/file", content=urlencode([(f"a{i}", "1") for i in range(500)]))
    assert answer.status_code == 422
    assert "100 fields at most" in answer.text


def test_edits_of_a_file_are_shown_when_they_are_asked_for() -> None:
    text = "model: gpt2\nhardware: {gpu: rtx-4090}\ntraining:\n  micro_batch_size: 256\n"
    answer = client.post("/file", content=urlencode({"text": text, "do": "fix"}))
    assert "What to edit" in answer.text
    assert "-  micro_batch_size: 256" in answer.text


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


def test_what_the_forms_offer_is_known() -> None:
    assert set(TASKS) == set(slugs())
    assert set(METHODS) <= set(TASKS)
    for fields in METHODS.values():
        read_job(job_mapping([("model", "gpt2"), *fields.items()]))
    for task, each in FIELDS.items():
        for field in each:
            for option in filter(None, field.options):
                read_job(job_mapping([("model", "gpt2"), ("task", task), ("training.adapter.rank", "8"), (field.name, option)]))
    assert set(LIMITS) == set(FIELDS)
    for name, _, given in EXAMPLES:
        assert name in {"", *KINDS}
        assert given


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"model": "gpt2"}, "Train gpt2"),
        ({"model": {"model_type": "llama"}, "training": {"adapter": {"type": "dora"}}}, "Fine-tune llama with DORA"),
        ({"model": "a", "training": {"adapter": {"rank": 1}, "quantization": "nf4"}}, "Fine-tune a with QLoRA"),
        ({"model": "a", "task": "serve", "serving": {"weights": "fp8", "engine": "vllm"}}, "Serve a in fp8 with vLLM"),
        ({"model": "a", "hardware": {"gpu": "h100", "gpus": 8, "nodes": 2}}, "Train a on 2 nodes of 8 × h100"),
        ({"model": "a", "hardware": {"memory": "24GB"}}, "Train a on 24GB"),
    ],
)
def test_a_question_in_words(job: dict[str, Any], said: str) -> None:
    assert title(job) == said
