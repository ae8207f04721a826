"""Chromium for tests of pages: found, started, and asked what is wrong with a page."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
NARROW, WIDE = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
BOTH = (("light", WIDE), ("dark", NARROW))
"""Schemes of colours, and a size for each, with which a page is looked at."""


def started(running: Any) -> Any:
    """Chromium, by Playwright; the test is skipped where there is none."""
    if CHROMIUM is None and not Path(running.chromium.executable_path).exists():
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is installed, nor playwright's own")
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return running.chromium.launch(executable_path=CHROMIUM, args=arguments)


def assert_axe_finds_nothing(page: Any) -> None:
    """Nothing that keeps someone from using the page as it is shown now."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: pip install 'willitfit[page]'")
    found = axe.Axe().run(page, options={"resultTypes": ["violations"]})
    assert found.violations_count == 0, found.generate_report()


def assert_no_wider_than_the_window(page: Any) -> None:
    wide = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide[0] <= wide[1]


def assert_sound(page: Any) -> None:
    """Nothing that axe finds, light and wide, dark and narrow; and then no wider than a telephone."""
    for scheme, size in BOTH:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        assert_axe_finds_nothing(page)
    assert_no_wider_than_the_window(page)
