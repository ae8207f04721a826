"""The plugin that pytest finds where willitfit is installed: the fixture `assert_fits`. Nothing is imported before it is used."""

from __future__ import annotations

from collections.abc import Callable
from os.path import relpath
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def assert_fits(pytestconfig: pytest.Config) -> Callable[..., Any]:
    """That the jobs of files fit: `assert_fits("configs/*.yaml", on="8xH100")`, from pytest's root directory on; see
    `estimator.testing.assert_fits`."""
    from estimator.testing.fits import assert_fits

    def asserted(*patterns: str | Path, **asked: Any) -> Any:
        __tracebackhide__ = True
        return assert_fits(*(relpath(pytestconfig.rootpath / pattern) for pattern in patterns), **asked)

    return asserted
