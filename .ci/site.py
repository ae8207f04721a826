"""MkDocs' hook: pages that lie beside docs/ belong to the site, and links to files of the repository are told as their paths."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BESIDE = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Pages of the repository's root, and where the site has them."""
LINK = re.compile(r"(?<!!)\[(?P<text>[^\[\]]*(?:\[[^\]]*\][^\[\]]*)*)\]\((?P<to>[^()\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the repository's root."""
    from mkdocs.structure.files import File

    for name, place in BESIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        content = re.sub(r"(\]\()docs/", r"\1", text)
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link out of docs/ is a page of the root, or a path."""
    here = posixpath.dirname(page.file.src_uri)

    def told(link: re.Match[str]) -> str:
        to, _, place = link["to"].partition("#")
        if not to or ":" in to:
            return link[0]
        within = posixpath.normpath(posixpath.join("docs", here, to))
        if page.file.src_uri in BESIDE.values() and not here and not (ROOT / within).exists():
            within = posixpath.normpath(to)
        if within in BESIDE:
            target = posixpath.relpath(BESIDE[within], here or ".")
            return f"[{link['text']}]({target}{f'#{place}' if place else ''})"
        outside = not within.startswith("docs/")
        return f"{link['text']} (`{within}`)" if outside and (ROOT / within).exists() else link[0]

    return LINK.sub(told, markdown)
