"""torch as judge of whole training steps, to the byte: at full width on fake tensors, and of small models on real ones.

Every estimate is held against what torch counted when it was last asked about all cases (`python -m tests.judged`). Here torch is
asked anew about one case of each family, and about a part of the others.

A case that is not equal says how far off it is (`within`, of each count) and `why`.
"""

from __future__ import annotations

from typing import Any

import pytest

from estimator import estimate
from tests.jobs import cases, job_of
from tests.records import JUDGES, difference, of_every_family, records

SHARE = 32
"""One case in so many is asked about anew."""
ALL = [pytest.param(judge, case, id=f"{judge} {case['name']}") for judge in JUDGES for case in cases(judge)]
ANEW = [pytest.param(judge, case, id=f"{judge} {case['name']}") for judge in JUDGES for case in of_every_family(judge, SHARE)]


@pytest.mark.parametrize(("judge", "case"), ALL)
def test_a_step_allocates_what_torch_allocates(judge: str, case: dict[str, Any]) -> None:
    assert not difference(judge, case, estimate(job_of(case)))


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
    from tests.judged import counted  # which needs torch, as the rest does not

    assert counted(judge, case) == records()[judge][case["name"]], "run: python -m tests.judged"
