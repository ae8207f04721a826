"""Answers within a page of another origin, in Chromium: the element and the frame, by mouse and keyboard, light and dark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from api.pages.forms import TASKS
from api.settings import settings

pytestmark = pytest.mark.slow
pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'willitfit[page]'")
pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: pip install 'willitfit[page]'")

from tests.api.chromium import WIDE, assert_sound  # noqa: E402
from tests.api.test_browser import REFUSED, browser, expect, host  # noqa: E402, F401

POLICY = "default-src 'none'; script-src {0}; connect-src {0}; frame-src {0}; base-uri 'none'"
"""A strict page's policy: of the service only scripts, answers and frames, and no style that is written into a page."""

FRAMED = "frame-ancestors 'none'"
"""What the console says of a frame that the service refuses; one test asks for it."""


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, shown: dict[str, str], *arguments: Any):
        self.shown = shown
        super().__init__(*arguments)

    def do_GET(self) -> None:
        body = f'<!doctype html><html lang="en"><title>Elsewhere</title><main><h1>Elsewhere</h1>{self.shown["body"]}</main>'
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Security-Policy", POLICY.format(self.shown["service"]))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


Placed = Callable[..., Any]


@pytest.fixture
def placed(browser: Any, host: str) -> Iterator[Placed]:  # noqa: F811
    """Opens a page of another origin with something of the service in it, and sees to it that it asks these two alone."""
    shown = {"service": host}
    elsewhere = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, shown))
    threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{elsewhere.server_port}"
    contexts, said, hosts = [], [], set()

    def at(body: str, **given: Any) -> Any:
        shown["body"] = body.replace("SERVICE", host)
        context = browser.new_context(**{"viewport": WIDE, "color_scheme": "light", **given})
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") and REFUSED not in m.text else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: hosts.add("/".join(request.url.split("/")[:3])))
        page.goto(f"{address}/")
        return page

    yield at
    for context in contexts:
        context.close()
    elsewhere.shutdown()
    elsewhere.server_close()
    assert [text for text in said if "favicon" not in text and FRAMED not in text] == []
    assert hosts <= {address, host, "data:,"}


SCRIPT = '<script type="module" src="SERVICE/static/will-it-fit.js"></script>'
WAYS = f'{SCRIPT}<will-it-fit model="gpt2" on="t4"><a href="SERVICE/?model=gpt2&amp;on=t4">Does it fit?</a></will-it-fit>'
TRAIN = (
    f'{SCRIPT}<will-it-fit model="llama-3-8b" on="rtx-4090" job="task=train&amp;training.precision=bf16-true" edit></will-it-fit>'
)


def test_the_element_shows_every_usual_way(placed: Placed) -> None:
    page = placed(WAYS)
    expect(page.get_by_role("table", name="Does gpt2 fit on t4?")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(1 + len(TASKS))
    expect(page.get_by_role("textbox")).to_have_count(0)
    expect(page.get_by_role("row", name="QLoRA (nf4)")).to_contain_text("fits")
    assert page.get_by_role("link", name="The whole answer").evaluate("one => one.href").endswith("/?model=gpt2&on=t4")
    assert_sound(page)


def test_the_element_shows_one_job_and_asks_about_other_hardware_by_keyboard(placed: Placed) -> None:
    page = placed(TRAIN)
    title = page.locator("will-it-fit .title")
    expect(title).to_have_text("llama-3-8b on rtx-4090: does not fit")
    page.evaluate("window.found = []; addEventListener('will-it-fit', (event) => window.found.push(event.detail))")
    assert_sound(page)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="The whole answer")).to_be_focused()
    page.keyboard.press("Tab")
    hardware = page.get_by_role("textbox", name="Hardware")
    expect(hardware).to_be_focused()
    hardware.fill("h200")
    page.keyboard.press("Enter")
    expect(title).to_have_text("llama-3-8b on h200: fits")
    expect(page.locator("will-it-fit")).to_have_attribute("on", "h200")
    assert page.evaluate("window.found.map((one) => one.fits)") == [True]
    expect(page.locator("will-it-fit [aria-busy]")).to_have_count(0)


def test_an_unknown_is_shown_as_unknown(placed: Placed) -> None:
    page = placed(f'{SCRIPT}<will-it-fit model="gpt2" job="task=train"></will-it-fit>')
    expect(page.locator("will-it-fit .title")).to_have_text("gpt2: unknown")
    assert page.locator("b").get_attribute("class") == "", "neither green nor red"


def test_the_theme_is_the_readers_or_the_pages(placed: Placed) -> None:
    page = placed(WAYS, color_scheme="dark")
    expect(page.get_by_role("table")).to_be_visible()
    ground = "getComputedStyle(document.querySelector('will-it-fit').shadowRoot.querySelector('.box')).backgroundColor"
    dark = page.evaluate(ground)
    page.evaluate("document.querySelector('will-it-fit').setAttribute('theme', 'light')")
    light = page.evaluate(ground)
    assert light == "rgb(255, 255, 255)" != dark
    page.evaluate("document.querySelector('will-it-fit').removeAttribute('theme')")
    page.emulate_media(color_scheme="light")
    expect(page.locator("will-it-fit .box")).to_have_css("background-color", light)  # what the reader prefers arrives by itself


def test_what_is_refused_is_said_and_what_was_within_is_shown(placed: Placed) -> None:
    page = placed(WAYS.replace('model="gpt2"', 'model="lama-3-8b&lt;img>"'))
    expect(page.get_by_text("no model is called")).to_be_visible()
    expect(page.get_by_role("link", name="Does it fit?")).to_be_visible()
    expect(page.locator("img")).to_have_count(0)
    page.evaluate("document.querySelector('will-it-fit').model = 0")  # no attribute: nothing is asked again
    page.evaluate("document.querySelector('will-it-fit').setAttribute('model', 'gpt2')")
    expect(page.get_by_role("table", name="Does gpt2 fit on t4?")).to_be_visible()


def test_without_the_script_what_is_within_is_all(placed: Placed) -> None:
    page = placed(WAYS, java_script_enabled=False)
    expect(page.get_by_role("link", name="Does it fit?")).to_be_visible()


ADDRESS = "SERVICE/embed?model=llama-3-8b&amp;on=rtx-4090&amp;way=qlora"
FRAME = f'<iframe src="{ADDRESS}" title="Does it fit?" width="100%" height="260"></iframe>'


def test_an_answer_in_a_frame(placed: Placed) -> None:
    page = placed(FRAME)
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("heading", level=1)).to_contain_text("Fine-tune llama-3-8b with QLoRA on rtx-4090: fits")
    expect(frame.get_by_role("link", name="The whole answer")).to_have_attribute("target", "_blank")
    sides = frame.locator("html").evaluate("one => [one.scrollHeight, one.clientHeight]")
    assert sides[0] <= sides[1], "nothing is cut off"
    page.goto(page.frames[1].url)  # axe does not look into frames of another origin
    assert_sound(page)


def test_an_answer_is_in_no_frame_that_the_service_does_not_allow(placed: Placed, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.cache_clear()
    monkeypatch.setenv("WILLITFIT_FRAMES", "none")
    try:
        page = placed(FRAME.replace("way=qlora", "way=lora"))
        assert not page.frames[1].url.startswith("http"), "Chromium shows its own error in its place"
    finally:
        monkeypatch.undo()
        settings.cache_clear()


def test_the_badge_is_a_picture_with_a_name(placed: Placed) -> None:
    page = placed(SCRIPT)
    page.goto(page.locator("script").get_attribute("src").replace("static/will-it-fit.js", "badge.svg?model=gpt2&on=t4&way=lora"))
    expect(page.get_by_role("img", name="Fine-tune gpt2 with LoRA on t4: fits")).to_be_visible()
    boxes = page.evaluate("[...document.querySelectorAll('text')].map((one) => one.getBBox()).map((box) => [box.x, box.width])")
    assert boxes[0][0] + boxes[0][1] < boxes[1][0]
