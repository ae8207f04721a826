"""The bundle for browsers: made once, asked in Node and in Chromium, where the page asks for nothing but its own files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from api.browser import packages
from api.browser.bundle import _check, bundle
from api.browser.packages import Missing, NoSnapshot
from api.browser.typescript import declarations
from estimator.cli.main import main
from estimator.specs.resolve import SEND
from tests.api.chromium import BOTH, WIDE, assert_axe_finds_nothing, assert_no_wider_than_the_window, started
from tests.bundled import differences, in_node, jobs, made_at

MADE = "WILLITFIT_BUNDLE"
"""An environment variable that names the folder of a bundle to try, which is made where there is none."""
FEW = 8
"""Jobs that are asked here; `python -m tests.bundled` asks more."""
REFUSED = {"model": "nope"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return made_at(Path(os.environ.get(MADE) or tmp_path_factory.mktemp("made") / "bundle"))
    except NoSnapshot:
        raise  # what was installed does not run
    except Missing as missing:
        pytest.skip(f"no bundle can be made: {missing}")


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["bundle", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err == "willitfit: no command node: install Node.js 18 or later, which brings node and npm\n"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("said", "version"), [("Node 18 or later is needed to take the snapshot; /node is v16.1.0", "v16.1.0\n")]
)
def test_a_node_that_is_too_old_is_refused(said: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/{name}")
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, version, ""))
    with pytest.raises(Missing, match=said):
        packages.node()


def test_a_registry_that_cannot_be_reached_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/{name}")
    refused = "npm error network request failed\n"
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", refused))
    with pytest.raises(Missing, match=r"npm cannot fetch pyodide [\d.]+: npm error network request failed"):
        packages.pyodide(tmp_path)
    with pytest.raises(Missing, match="pip cannot fetch the packages for WebAssembly: npm error"):
        packages.python_packages(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine", encoding="utf-8")
    with pytest.raises(Missing, match="has other files in it: name a folder that is not there, is empty, or has a bundle"):
        bundle(tmp_path)
    with pytest.raises(Missing, match=r"thesis.tex is a file: name a folder"):
        bundle(tmp_path / "thesis.tex")
    old = tmp_path / "old"
    (old / "engine").mkdir(parents=True)
    for text, ours in (('{"name": "willitfit"}', True), ('{"name": "other"}', False), ("[]", False), ("{", False)):
        (old / "engine" / "package.json").write_text(text, encoding="utf-8")
        with nullcontext() if ours else pytest.raises(Missing, match="has other files in it"):
            _check(old)


def test_every_type_that_is_named_is_declared() -> None:
    text = declarations()
    declared = set(re.findall(r"^export type (\w+) =", text, re.MULTILINE))
    named = set(re.findall(r"\b(?:Job|Answer|Fit)[A-Z]\w+", re.sub(r"/\*\*.*?\*/|\"[^\"]*\"", "", text)))
    assert {"Job", "Answer", "Fit"} <= declared
    assert named <= declared


@pytest.mark.slow
def test_node_says_what_is_said_natively(made: Path) -> None:
    asked = [*jobs(FEW), REFUSED]
    assert differences(asked, in_node(made, asked)) == []


EXAMPLE = """
const { WillItFitError, close, estimate, fit } = await import(process.argv[1]);
const answer = await estimate({ model: "gpt2", hardware: { gpu: "t4" } });
const usual = await fit({ model: "gpt2", on: "24GB" });
const refused = await estimate({ model: "nope" }).catch((error) => error);
const { message, problem } = refused;
console.log(JSON.stringify([answer.fits, usual.rows.length, refused instanceof WillItFitError, message, problem.code]));
"""


@pytest.mark.slow
def test_the_package_is_used_as_its_page_shows(made: Path) -> None:
    command = [packages.node(), "--input-type=module", "-e", EXAMPLE, (made / "engine" / "index.mjs").resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True)  # and ends by itself
    assert done.returncode == 0, done.stderr[-2000:]
    said = f"no model is called 'nope'. `willitfit models` lists them. {SEND}"
    assert json.loads(done.stdout) == [True, 8, True, said, "unknown-model"]
    package = json.loads((made / "engine" / "package.json").read_text(encoding="utf-8"))
    assert all((made / "engine" / path).is_file() for path in (package["main"], package["types"]))


@pytest.fixture(scope="module")
def host(made: Path) -> Iterator[tuple[str, list[str]]]:
    """A server of files, and the addresses that it was asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(made)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def page(host: tuple[str, list[str]]) -> Iterator[Any]:
    """The bundle's page in Chromium, which asks no other host and says nothing in the console."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'willitfit[page]'")
    said, hosts = [], set()
    with playwright.sync_playwright() as running:
        chromium = started(running)
        context = chromium.new_context(viewport=WIDE, color_scheme="light")
        context.set_default_timeout(120_000)
        context.on("request", lambda request: hosts.add(request.url.split("/")[2] if "//" in request.url else "data"))
        found = context.new_page()
        found.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        found.on("pageerror", lambda error: said.append(str(error)))
        found.goto(host[0])
        yield found
        chromium.close()
    assert said == []
    assert hosts <= {host[0].split("/")[2], "data"}


def _heading(page: Any) -> Any:
    return page.get_by_role("heading", level=1)


def _says(page: Any, text: str) -> None:
    from playwright.sync_api import expect

    expect(_heading(page)).to_contain_text(text, timeout=120_000)


@pytest.mark.slow
def test_the_page_asks_and_answers(page: Any) -> None:
    model = page.get_by_role("combobox", name="Model")
    model.press_sequentially("llama 3 8b")
    page.get_by_role("option", name="llama-3-8b", exact=True).click()
    page.get_by_role("combobox", name="Hardware").fill("rtx-4090")
    page.get_by_role("button", name="Will it fit?").click()
    _says(page, "Does llama-3-8b fit on rtx-4090?")
    assert page.url.endswith("/?model=llama-3-8b&on=rtx-4090"), "fields that are empty are not in the address"
    assert page.title() == "Does llama-3-8b fit on rtx-4090? · Will it fit?"


@pytest.mark.slow
def test_links_of_an_answer_are_followed_and_one_goes_back(page: Any) -> None:
    page.goto(page.url.partition("?")[0] + "?model=llama-3-8b&on=rtx-4090")
    _says(page, "Does llama-3-8b fit on rtx-4090?")
    page.get_by_role("link", name="full, pure bf16").click()
    _says(page, "Train llama-3-8b on rtx-4090: it does not fit")
    page.get_by_role("link", name="Memory over a step").click()
    _says(page, "memory over a step")
    page.mouse.move(*(page.locator(".timeline svg").bounding_box()[side] + 300 for side in ("x", "y")))
    page.go_back()
    _says(page, "it does not fit")
    page.get_by_role("link", name="This answer as JSON").click()
    page.locator("pre").wait_for()
    assert json.loads(page.locator("pre").text_content())["fits"] is False


@pytest.mark.slow
def test_a_file_is_read_and_a_mistake_is_said(page: Any) -> None:
    page.goto(page.url.partition("?")[0])
    page.get_by_role("link", name="Read my file").click()
    page.get_by_label("What the file says").fill("base_model: nope/nope\nadapter: lora\n")
    page.get_by_role("button", name="Will it fit?").click()
    _says(page, "That could not be read")
    page.get_by_role("link", name="For programs").click()
    _says(page, "For programs")
    page.get_by_role("link", name="Words explained").click()
    _says(page, "Words")


@pytest.mark.slow
def test_chromium_says_what_is_said_natively(page: Any, host: tuple[str, list[str]]) -> None:
    asked = [*jobs(FEW), REFUSED]
    ask = """async ([index, jobs]) => {
        const { Engine } = await import(index);
        const engine = new Engine();
        const said = [];
        for (const job of jobs) said.push(new TextDecoder().decode((await engine.ask("estimate", { job })).body));
        await engine.close();
        return said;
    }"""
    said = page.evaluate(ask, [f"{host[0]}/engine/index.mjs", [json.dumps(job) for job in asked]])
    assert differences(asked, [json.loads(text) for text in said]) == []


@pytest.mark.slow
def test_the_second_visit_asks_no_server_for_anything(page: Any, host: tuple[str, list[str]]) -> None:
    page.goto(host[0])
    page.wait_for_function("navigator.serviceWorker.controller !== null && caches.keys().then((names) => names.length > 0)")
    page.evaluate("navigator.serviceWorker.ready.then(() => 0)")
    before = len(host[1])
    page.goto(f"{host[0]}/?task=serve&model=gpt2&on=t4")
    _says(page, "Serve gpt2 in bf16 with vLLM on t4: it fits")
    assert [path for path in host[1][before:] if path != "/sw.js"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "size"), BOTH)
def test_axe_finds_nothing_and_nothing_is_wider_than_a_telephone(
    page: Any, host: tuple[str, list[str]], scheme: str, size: dict[str, int]
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(size)
    for address in ("/", "/?view=docs"):
        page.goto(host[0] + address)
        _says(page, "programs" if "docs" in address else "Will it fit?")
        page.evaluate("for (const one of document.querySelectorAll('datalist')) one.remove()")
        assert_axe_finds_nothing(page)
        assert_no_wider_than_the_window(page)
