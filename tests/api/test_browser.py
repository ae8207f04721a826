"""The pages in Chromium: what one does with them, by mouse, keyboard and without JavaScript; nothing that axe finds, no error in
the console, and no request to another host."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

import pytest
import uvicorn

from api.app import app
from tests.api.chromium import NARROW, WIDE, assert_axe_finds_nothing, assert_sound, started
from tests.api.test_page import AXOLOTL, JOB, PAGES

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'willitfit[page]'")
pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: pip install 'willitfit[page]'")
expect = playwright.expect
LIKE_OTHERS = {
    "unnamed card",
    "no price",
    "ways that do not run",
    "cost of what",
    "no model",
    "other hardware",
    "timeline of a server",
    "no way",
    "copies of what",
    "along to axolotl",
}
"""Pages that have nothing that another page does not have."""
DESCRIPTIONS = {"for programs": "/docs", "problems": "/problems", "unknown": "/?model=mine-9b&on=24GB"}
"""Pages that answer no question."""
REFUSED = "the server responded with a status of"
"""What a console says of an answer that is refused, as its status says."""


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """A service of its own, in a thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = monotonic() + 30
    while not server.started and monotonic() < until:
        sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        chromium = started(running)
        yield chromium
        chromium.close()


Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, host: str) -> Iterator[Opened]:
    """Opens a page, and sees to it that it asks no other host and says nothing in the console."""
    contexts, said, hosts = [], [], set()

    def at(path: str, **settings: Any) -> Any:
        context = browser.new_context(**{"viewport": WIDE, "color_scheme": "light", **settings})
        context.set_default_timeout(20_000)
        contexts.append(context)
        found = context.new_page()
        found.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        found.on("pageerror", lambda error: said.append(str(error)))
        found.on("request", lambda request: hosts.add(request.url.split("/")[2] if request.url.startswith("http") else "data"))
        found.goto(host + path)
        return found

    yield at
    for context in contexts:
        context.close()
    assert [text for text in said if REFUSED not in text] == []
    assert hosts <= {host.split("/")[2], "data"}


@pytest.mark.share(3)
@pytest.mark.parametrize("name", sorted((PAGES | DESCRIPTIONS).keys() - LIKE_OTHERS))
def test_axe_finds_nothing_and_nothing_is_wider_than_a_telephone(name: str, opened: Opened) -> None:
    page = opened((PAGES | DESCRIPTIONS)[name])
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.evaluate("for (const one of document.querySelectorAll('datalist')) one.remove()")  # 700 names, which axe would weigh
    assert_sound(page)


def test_a_question_is_asked_by_keyboard_with_names_that_complete(opened: Opened) -> None:
    page = opened("/")
    model = page.get_by_role("combobox", name="Model")
    model.press_sequentially("llama 3 8b")
    expect(page.get_by_role("option", name="llama-3-8b", exact=True)).to_be_visible()
    assert_axe_finds_nothing(page)
    model.press("ArrowDown")
    expect(model).to_have_attribute("aria-activedescendant", "f-model-names-0")
    model.press("Enter")
    expect(model).to_have_value("llama-3-8b")
    expect(page.get_by_role("listbox", name="Names")).to_have_count(0)
    hardware = page.get_by_role("combobox", name="Hardware")
    hardware.press_sequentially("2x 4090")
    page.get_by_role("option", name="2x rtx-4090", exact=True).click()
    expect(hardware).to_have_value("2x rtx-4090")
    hardware.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Does llama-3-8b fit on 2x rtx-4090?")
    assert page.url.endswith("/?model=llama-3-8b&on=2x+rtx-4090"), "fields that are empty are not in the address"
    expect(page).to_have_title("Does llama-3-8b fit on 2x rtx-4090? · Will it fit?")


def test_escape_closes_the_names_and_what_was_typed_stays(opened: Opened) -> None:
    page = opened("/")
    model = page.get_by_role("combobox", name="Model")
    model.press_sequentially("qwen3")
    expect(page.get_by_role("listbox")).to_be_visible()
    model.press("Escape")
    expect(page.get_by_role("listbox")).to_have_count(0)
    expect(model).to_have_value("qwen3")
    expect(model).to_have_attribute("aria-expanded", "false")


def test_from_an_example_to_a_change_that_fits(opened: Opened) -> None:
    page = opened("/")
    page.get_by_role("link", name="Llama 3 8B on one RTX 4090").click()
    page.get_by_role("link", name="full, pure bf16").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Train llama-3-8b on rtx-4090: it does not fit")
    page.get_by_role("link", name="QLoRA: and the rest in 4 bits").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Fine-tune llama-3-8b with QLoRA on rtx-4090: it fits")
    page.get_by_role("link", name="Compare", exact=True).click()
    page.get_by_role("combobox", name="Other hardware").fill("h100")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("or fine-tune llama-3-8b with QLoRA on h100?")
    expect(page.get_by_role("img")).to_have_count(2)


def test_the_job_is_changed_in_its_form(opened: Opened) -> None:
    page = opened(f"/?{JOB}")
    page.get_by_text("Change the job").click()
    page.get_by_label("Optimizer", exact=True).select_option("sgd")
    page.get_by_role("textbox", name="Tokens per sequence").fill("512")
    page.get_by_role("button", name="Will it fit?").click()
    expect(page.get_by_text("Change the job")).to_be_visible()
    assert "training.optimizer=sgd" in page.url
    assert "training.sequence_length=512" in page.url
    assert "training.attention" not in page.url, "what is as usual is not in the address"


def test_the_timeline_says_what_is_alive(opened: Opened) -> None:
    page = opened(f"/timeline?{JOB}")
    picture = page.locator(".timeline svg")
    box = picture.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    readout = page.locator(".readout")
    expect(readout).to_contain_text("GiB alive")
    before = readout.text_content()
    page.get_by_role("region", name="Memory over a step").focus()
    page.keyboard.press("PageUp")
    expect(readout).not_to_have_text(before)
    expect(page.locator(".strip.at")).to_have_count(1)


def test_other_values_are_tried_with_a_click_and_by_hand(opened: Opened) -> None:
    page = opened(f"/what-if?{JOB}")
    page.get_by_role("link", name="with and without checkpointing").click()
    expect(page.get_by_role("row")).to_have_count(3)
    page.get_by_label("Another field").select_option("Sequences per GPU")
    page.get_by_label("Its values").fill("1,2,4,8")
    page.get_by_role("button", name="Try them").click()
    expect(page.get_by_role("row")).to_have_count(5)
    page.get_by_role("row").nth(3).get_by_role("link").click()
    assert "training.micro_batch_size=4" in page.url


DROP = """([form, text, name]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([text], name));
    for (const kind of ["dragover", "drop"]) {
        form.dispatchEvent(new DragEvent(kind, {dataTransfer: transfer, bubbles: true, cancelable: true}));
    }
}"""


def test_a_file_is_dropped(opened: Opened) -> None:
    page = opened("/file")
    page.evaluate(DROP, [page.locator("form.drop").element_handle(), AXOLOTL, "axolotl.yaml"])
    expect(page.locator("textarea")).to_have_value(AXOLOTL)
    page.get_by_role("combobox", name="Hardware, if it names none").fill("rtx-4090")
    page.get_by_role("button", name="Will it fit?").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("with LoRA on rtx-4090 (a file of axolotl): it does not fit")
    page.get_by_role("link", name="This job as a link").click()
    assert "training.adapter.rank=16" in page.url
    expect(page.get_by_role("heading", level=1)).to_contain_text("it does not fit")


def test_a_message_is_explained_for_the_file_that_was_dropped(opened: Opened) -> None:
    page = opened("/explain", viewport=NARROW)
    page.evaluate(DROP, [page.locator("#f-text").element_handle(), AXOLOTL, "axolotl.yaml"])
    expect(page.locator("#f-text")).to_have_value(AXOLOTL)
    expect(page.locator("#f-measured")).to_have_value("")
    page.get_by_label("What was measured").fill(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB"
    )
    page.get_by_role("combobox", name="Hardware, if the file names none").fill("rtx-4090")
    page.keyboard.press("Tab")
    page.get_by_role("button", name="What explains it?").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("with LoRA on rtx-4090: explained")
    assert_sound(page)
    page.get_by_role("link", name="Answer", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("it does not fit")


def test_from_the_best_way_to_train_to_its_file(opened: Opened) -> None:
    page = opened("/plan")
    page.get_by_role("combobox", name="Model").fill("gpt2")
    page.get_by_role("combobox", name="Hardware").fill("rtx-4090")
    page.get_by_label("How it is trained").select_option("lora")
    page.get_by_role("textbox", name="Tokens in all").fill("10M")
    page.get_by_role("button", name="How to train it?").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("The best ways to fine-tune gpt2 with LoRA on rtx-4090")
    page.get_by_role("table").get_by_role("link", name="1 × rtx-4090").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Fine-tune gpt2 with LoRA on rtx-4090: it fits")
    page.get_by_role("link", name="Take it along").click()
    page.get_by_role("link", name="slurm").click()
    expect(page.get_by_role("region", name="For slurm")).to_contain_text("#SBATCH --nodes=1")
    host = page.url.partition("/along")[0]
    expect(page.get_by_role("region", name="A badge")).to_contain_text(f"({host}/badge.svg?task=train")


def test_a_file_that_is_none_of_settings_is_not_sent(opened: Opened) -> None:
    page = opened("/file")
    page.evaluate(DROP, [page.locator("form.drop").element_handle(), "x" * 300_000, "model.bin"])
    expect(page.locator("textarea")).to_have_value("")
    assert "has 293 KiB" in page.locator("textarea").evaluate("one => one.validationMessage")


def test_without_javascript(opened: Opened) -> None:
    page = opened("/", java_script_enabled=False, viewport=NARROW)
    page.get_by_label("Model", exact=True).fill("llama-3.2-1b")
    page.get_by_label("Hardware", exact=True).fill("rtx-4090")
    page.get_by_role("button", name="Will it fit?").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Does llama-3.2-1b fit on rtx-4090?")
    page.get_by_role("link", name="full, pure bf16").click()
    page.get_by_role("link", name="Memory over a step").click()
    expect(page.locator(".timeline svg")).to_be_visible()
    expect(page.get_by_text("arrow keys")).to_be_hidden()
    page.get_by_role("link", name="Read my file").click()
    page.get_by_label("What the file says").fill(AXOLOTL)
    page.get_by_label("Hardware, if it names none").fill("h100")
    page.get_by_role("button", name="Will it fit?").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("(a file of axolotl): it")


def test_the_keyboard_comes_to_the_answer_at_once(opened: Opened) -> None:
    page = opened(f"/?{JOB}")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the answer")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Answer", exact=True)).to_be_focused()
