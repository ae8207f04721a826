"""The plugin that pytest finds where willitfit is installed: the fixture `assert_fits`. Nothing is imported before it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def assert_fits() -> Callable[..., Any]:
    """That the jobs of files fit: `assert_fits("configs/*.yaml", on="8xH100")`; see `estimator.testing.assert_fits`."""
    from estimator.testing.fits import assert_fits

    return assert_fits
