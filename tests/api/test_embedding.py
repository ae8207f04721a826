"""Answers within other pages: the badge, shields.io's document, oEmbed, the frame and the element."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient

from api.app import app
from api.pages.asked import asked
from api.pages.badge import COLOURS, LABEL, MARGIN, OTHERWISE, drawn, width
from api.pages.summary import summary
from api.problems import problem
from api.settings import settings
from estimator import estimate, fit
from tests.api.test_page import FOLDER, JOB, Page
from tests.jobs import TODAY
from tests.schemas import of_route

client = TestClient(app)
SVG = "{http://www.w3.org/2000/svg}"
QUESTIONS = [
    ({"model": "llama-3-8b", "on": "rtx-4090", "way": "qlora"}, "fits", "fits · 10.4 of 23.6 GiB"),
    ({"model": "llama-3-8b", "on": "rtx-4090", "way": "full"}, "does not fit", "does not fit"),
    ({"model": "gpt2", "on": "t4"}, "tight", "6 of 8 usual ways fit"),
    ({"task": "train", "model": "gpt2", "on": "rtx-4090", "training.precision": "bf16-true"}, "fits", "fits · 2.2 of 23.6 GiB"),
    ({"task": "train", "model": "gpt2"}, "unknown", "unknown · 3.1 GiB"),
    (
        {"way": "qlora", "model": "gpt2", "gpu": "rtx-4090", "training.micro_batch_size": "64"},
        "does not fit",
        "does not fit · 39.3 of 23.6 GiB",
    ),
    ({"task": "train", "way": "qlora", "model": "gpt2", "on": "rtx-4090"}, "fits", "fits · 1.4 of 23.6 GiB"),
    ({"model": "qwen2.5-7b", "on": "T4", "way": "serve-8bit"}, "unknown", "unknown"),
]
"""What is asked, the verdict that a badge has the colour of, and what it says."""


@pytest.fixture
def set_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    settings.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    settings.cache_clear()


@pytest.mark.parametrize(("fields", "verdict", "said"), QUESTIONS, ids=lambda value: str(value)[:60])
def test_a_badge_says_the_verdict_as_a_picture_and_as_a_document(fields: dict[str, str], verdict: str, said: str) -> None:
    document = client.get("/badge.json", params=fields)
    of_route("GET", "/badge.json").validate(document.json())
    colour = COLOURS.get(verdict, OTHERWISE)
    assert (document.json()["message"], document.json()["color"]) == (said, colour.lstrip("#"))
    answer = client.get("/badge.svg", params=fields)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")
    picture = ET.fromstring(answer.text)
    label, message = (text.text for text in picture.iter(f"{SVG}text"))
    assert (label, message) == (document.json()["label"], said)
    assert picture.attrib["role"] == "img"
    assert picture.attrib["aria-label"] == f"{label}: {said}"
    title = picture.find(f"{SVG}title")
    assert title is not None
    assert title.text is not None
    assert re.search(r"\nwillitfit [\d.]+, data of \d{4}-\d\d-\d\d$", title.text)
    assert {path.attrib["fill"] for path in picture.iter(f"{SVG}path")} == {colour}


def test_a_way_is_the_row_of_the_headline() -> None:
    rows = {row.way: row for row in fit("llama-2-13b", "2x24GB").rows}
    for way, title in (("serve", "serve bf16"), ("qlora", "QLoRA (nf4)"), ("lora", "LoRA (bf16)")):
        found = summary(asked([("model", "llama-2-13b"), ("on", "2x24GB"), ("way", way)]))
        assert (found.verdict, found.total_bytes) == (rows[title].verdict, rows[title].total_bytes)
        assert summary(asked(found.items)).total_bytes == found.total_bytes, "the link asks the same"


def test_a_badge_of_a_question_that_cannot_be_read_says_so() -> None:
    for fields, says in (
        ({"model": "lama-3-8b", "on": "t4"}, "unknown name"),
        ({"model": "gpt2"}, "invalid job"),
        ({"model": "gpt2", "on": "t4", "way": "prayer"}, "invalid job"),
        ({"model": "/etc/passwd.json", "on": "t4"}, "invalid job"),
    ):
        found = client.get("/badge.json", params=fields).json()
        assert (found["message"], found["isError"], found["color"]) == (says, True, OTHERWISE.lstrip("#"))
    title = ET.fromstring(client.get("/badge.svg?model=lama-3-8b&on=t4").text).findtext(f"{SVG}title") or ""
    assert "llama-3-8b" in title, "what to write instead"


def test_a_badge_of_a_busy_service_is_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*_: Any, **__: Any) -> Any:
        return problem(503, "busy", "more questions wait than this service takes on", {"Retry-After": "5"})

    monkeypatch.setattr("api.routes.embedding.ask", busy)
    answer = client.get("/badge.svg?model=gpt2&on=t4&label=never-asked")
    assert (answer.status_code, answer.headers["retry-after"], answer.headers["content-type"]) == (503, "5", "image/svg+xml")
    assert "more questions wait" in answer.text
    assert client.get("/badge.json?model=gpt2&on=t4&label=never-asked").json()["status"] == 503


@pytest.mark.parametrize("label", ["</text><script>alert(1)</script>", '"onload="x', "a\x00\x1bb", "\ud7ff￿", "ü" * 500, "  "])
def test_what_a_stranger_writes_on_a_badge_is_text(label: str) -> None:
    answer = client.get(f"/badge.svg?{urlencode({'model': 'gpt2', 'on': 't4', 'way': 'lora', 'label': label})}")
    picture = ET.fromstring(answer.text)
    assert {element.tag.removeprefix(SVG) for element in picture.iter()} == {"svg", "title", "rect", "path", "g", "text"}
    assert set(picture.attrib) == {"width", "height", "role", "aria-label"}
    assert int(picture.attrib["width"]) < 700


def test_both_halves_of_a_badge_are_as_wide_as_their_texts_and_can_be_read() -> None:
    picture = ET.fromstring(drawn("left", "right, wider", COLOURS["fits"], "title", "svg"))
    places = [(int(text.attrib["x"]), int(text.attrib["textLength"])) for text in picture.iter(f"{SVG}text")]
    assert [length for _, length in places] == [width("left"), width("right, wider")]
    assert places[1][0] == places[0][0] + places[0][1] + 2 * MARGIN
    assert int(picture.attrib["width"]) == places[1][0] + places[1][1] + MARGIN
    for colour in (*COLOURS.values(), OTHERWISE, LABEL):
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminance = sum(part * share for part, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))
        assert 1.05 / (luminance + 0.05) > 4.5, f"white on {colour} (WCAG 2.2, 1.4.3)"


def _link(path: str) -> str:
    found = [
        a["href"] for tag, a in Page(client.get(path).text).tags if tag == "link" and a.get("type") == "application/json+oembed"
    ]
    return str(found[0]) if found else ""


@pytest.mark.parametrize("path", ["/?model=gpt2&on=t4", f"/?{JOB}"])
def test_oembed_is_found_on_the_page_and_gives_its_frame(path: str) -> None:
    answer = client.get(_link(path))
    found = answer.json()
    of_route("GET", "/oembed").validate(found)
    assert (found["version"], found["type"], found["provider_url"]) == ("1.0", "rich", "http://testserver/")
    frame = next(a for tag, a in Page(found["html"]).tags if tag == "iframe")
    assert frame["title"] == found["title"]
    assert (frame["width"], frame["height"]) == (str(found["width"]), str(found["height"]))
    shown = Page(client.get(str(frame["src"]).removeprefix("http://testserver")).text)
    headings = Page(client.get(path).text).texts["h1"]
    assert shown.texts["h1"].endswith("usual ways fit" if "task" not in path else "fits · 2.2 of 23.6 GiB")
    assert "gpt2" in headings
    assert client.get(_link(path) + "&maxwidth=300&maxheight=100").json()["width"] == 300


def test_only_answers_of_this_service_are_embedded() -> None:
    for url in (
        "http://elsewhere/?model=gpt2&on=t4",
        "http://testserver/docs",
        "http://testserver/timeline?model=gpt2&on=t4",
        "http://testserver/",
        "http://testserver/?on=t4",
        "http://[",
        "javascript:alert(1)",
        "http://testserver/?" + "&".join(f"a{i}=1" for i in range(200)),
    ):
        assert client.get("/oembed", params={"url": url}).status_code == 404, url
    assert client.get("/oembed", params={"url": "/?model=gpt2&on=t4", "format": "xml"}).status_code == 501
    hostile = client.get("/oembed", params={"url": '/?model="><script>&on=t4'}).json()["html"]
    assert [tag for tag, _ in Page(hostile).tags] == ["iframe"]
    assert not _link("/?model=lama-2-7b&on=t4".replace("lama", "nothing"))
    assert not _link("/which")


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ("*", "*"),
        ("none", "'none'"),
        ("self", "'self'"),
        ("https://a.example,https://*.b.example:8443", "https://a.example https://*.b.example:8443"),
    ],
)
def test_who_may_frame_an_answer_is_a_setting(given: str, policy: str, set_to: pytest.MonkeyPatch) -> None:
    set_to.setenv("WILLITFIT_FRAMES", given)
    answer = client.get("/embed", params={"model": "gpt2", "on": "t4", "way": "lora", "label": given})
    said = answer.headers["content-security-policy"]
    assert answer.headers.get_list("content-security-policy") == [said]
    assert said.endswith(f"frame-ancestors {policy}")
    assert "default-src 'none'" in said
    assert client.get("/?model=gpt2&on=t4").headers["content-security-policy"].endswith("frame-ancestors 'self'")


def test_the_address_of_a_question_in_words_is_that_of_what_it_means() -> None:
    found = client.get("/oembed", params={"url": "/?model=will+gpt2+fit+on+t4"}).json()
    assert "/embed?model=gpt2&amp;on=t4" in found["html"]
    assert client.get("/oembed", params={"url": "/?model=which+gpu+for+gpt2"}).status_code == 404


def test_the_public_address_is_a_setting(set_to: pytest.MonkeyPatch) -> None:
    set_to.setenv("WILLITFIT_ADDRESS", "https://fit.example.org")
    set_to.setenv("WILLITFIT_ROOT_PATH", "/tools")
    where = "https://fit.example.org/tools/?model=gpt2&on=t4"
    found = client.get("/oembed", params={"url": where}).json()
    assert 'src="https://fit.example.org/tools/embed?model=gpt2&amp;on=t4"' in found["html"]
    assert client.get("/oembed", params={"url": "http://testserver/?model=gpt2&on=t4"}).status_code == 404


def test_a_frame_says_what_was_wrong_and_escapes_it() -> None:
    answer = client.get("/embed?model=%3Cscript%3E&on=t4")
    assert answer.status_code == 404
    assert "no model is called" in Page(answer.text).text
    assert "script" not in {tag for tag, _ in Page(answer.text).tags}


def test_the_element_is_small_and_asks_nobody_else() -> None:
    text = (FOLDER / "static" / "will-it-fit.js").read_text(encoding="utf-8")
    assert len(text.encode()) < 10_000
    assert set(re.findall(r"https?://[^\"]*", text)) == {"http://www.w3.org/2000/svg"}, "a name, which nobody asks"
    assert not re.search(r"innerHTML|^import |require\(", text, re.MULTILINE)
    answer = client.get("/static/will-it-fit.js", headers={"Origin": "https://elsewhere.example"})
    assert (answer.headers["content-type"], answer.headers["access-control-allow-origin"]) == (
        "text/javascript; charset=utf-8",
        "*",
    )


def test_an_unknown_is_no_no() -> None:
    assert estimate({"model": "gpt2"}, today=TODAY).fits is None
    assert json.loads(client.get("/badge.json?task=train&model=gpt2").text)["color"] == OTHERWISE.lstrip("#")
