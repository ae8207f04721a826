"""The documents as a site, built strictly: no link is dead, every page is in its navigation, nothing comes from another host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.jobs import ROOT

pytestmark = pytest.mark.slow
pytest.importorskip("material", reason="no mkdocs-material: pip install 'willitfit[docs]'")
LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?([^\"'\s>]+)|<link\b([^>]*)>")


def _build(config: Path, to: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(to)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = _build(ROOT / "mkdocs.yml", folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix("") / "index.html").exists(), page
    assert "<h1" in (site / "index.html").read_text(encoding="utf-8")
    assert (site / "CONTRIBUTING" / "index.html").exists()


def test_nothing_comes_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        for source, link in LOADED.findall(page.read_text(encoding="utf-8")):
            wanted = (
                re.findall(r"href=[\"']?([^\"'\s>]+)", link) if not re.search(r"rel=[\"']?(?:canonical|prev|next)", link) else []
            )
            for address in filter(None, [source, *wanted]):
                assert not re.match(r"(?:https?:)?//", address), (page, address)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_what_is_searched_for_is_found(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    texts: dict[str, Any] = {entry["location"]: entry["text"] for entry in index["docs"]}
    assert "axolotl" in texts["tutorials/read_my_axolotl_file/"]
    assert len(texts) > 300


LINKS = {
    "other.md": False,
    "other.md#there": False,
    "../pyproject.toml": False,
    "../CHANGELOG.md": False,
    "missing.md": True,
    "other.md#nowhere": True,
    "../missing.toml": True,
}
"""Whether a link is dead."""


def test_a_dead_link_fails(tmp_path: Path) -> None:
    """Of a small site with the same settings; the changelog's links lead to pages that it does not have."""
    docs = tmp_path / "docs"
    docs.mkdir()
    pages = {f"page{number}.md": link for number, link in enumerate(LINKS)}
    for page, link in pages.items():
        (docs / page).write_text(f"# Page\n\nSee [this]({link}).\n")
    (docs / "other.md").write_text("# Other\n\n## There\n")
    whole = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    small = {name: whole[name] for name in ("site_name", "strict", "validation")} | {
        "docs_dir": str(docs),
        "hooks": [str(ROOT / ".ci" / "site.py")],
        "theme": {"name": "mkdocs", "highlightjs": False},
        "plugins": [],
        "nav": [*pages, "other.md", {"Begin": "CHANGELOG.md"}],
        "validation": {**whole["validation"], "nav": {"omitted_files": "ignore"}},
    }
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(small))
    built = _build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert {link: f"Doc file '{page}'" in built.stderr for page, link in pages.items()} == LINKS, built.stderr
    assert built.returncode == 1
