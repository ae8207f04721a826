"""torch is asked anew about one recorded case of each family, and about a part of the others: it counts what it did."""

from __future__ import annotations

from typing import Any

import pytest

from tests.judged import counted
from tests.records import JUDGES, of_every_family, records

SHARE = 32
"""One case in so many is asked about anew."""
ANEW = [pytest.param(judge, case, id=f"{judge} {case['name']}") for judge in JUDGES for case in of_every_family(judge, SHARE)]


@pytest.mark.share(24)
@pytest.mark.parametrize(("judge", "case"), ANEW)
def test_torch_allocates_what_it_did(judge: str, case: dict[str, Any]) -> None:
    if case.get("training", {}).get("objective"):
        pytest.importorskip("trl", reason="objectives are played by TRL's own code")
    if case.get("training", {}).get("float8") or case.get("training", {}).get("quantization", "").startswith("torchao"):
        pytest.importorskip("torchao", reason="products in fp8 are torchao's own, and so are its weights")
    if "badam" in str(case.get("training", {}).get("trainable")):
        pytest.importorskip("badam", reason="its turns are played by its own code")
    if case.get("training", {}).get("optimizer_implementation") == "llama-cookbook":
        pytest.importorskip("llama_cookbook", reason="its optimizer is played")
    if case.get("training", {}).get("quantization") == "awq-int4":
        pytest.importorskip("gptqmodel", reason="AWQ's layers are GPTQModel's")
    assert counted(judge, case) == records()[judge][case["name"]], "run: python -m tests.judged"
