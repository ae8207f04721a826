"""What llama.cpp and its fork logged of caches and weights (tests/data/llamacpp_starts.yaml); models that are held out apart."""

from __future__ import annotations

from statistics import median

import pytest

from tests.serving.llamacpp_starts import errors

BOUNDS = {
    # Logs have two decimals, of 73 MiB at least; a file that calls itself Q4_K_M or Q5_K_S may have other types in some tensors,
    # as two of those that are held out have.
    ("kv_mib", False): (0.0001, 0.0001),
    ("kv_mib", True): (0.0001, 0.0001),
    ("weights_mib", False): (0.0001, 0.001),
    ("weights_mib", True): (0.01, 0.03),
}
"""By what is logged, and whether it is held out: of the median and of the worst row."""


@pytest.mark.slow
@pytest.mark.parametrize(("field", "aside"), BOUNDS)
def test_an_answer_is_as_near_to_the_logs_as_is_said(field: str, aside: bool) -> None:
    found = [abs(error) for _, error in errors(field, aside)]
    assert len(found) >= 3
    middle, worst = BOUNDS[field, aside]
    assert median(found) <= middle
    assert max(found) <= worst
