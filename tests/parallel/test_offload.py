"""What is offloaded: torchao's optimizer to the byte, and DeepSpeed's parts by arithmetic that anyone can repeat.

FSDP2's offloading is judged with all other steps (test_steps.py).
"""

from __future__ import annotations

from typing import Any

import pytest

from estimator import Answer, estimate
from estimator.tape.host import pinned_bytes
from tests.jobs import TESTS, cases, content, counts, job_of

DATA = content(TESTS / "data" / "cpu_offload.yaml")
GB = 10**9
P = 8_030_261_248


@pytest.mark.parametrize("case", cases("cpu_offload"), ids=lambda case: case["name"])
def test_an_offloaded_optimizer_allocates_what_torchao_allocated(case: dict[str, Any]) -> None:
    assert counts(estimate(job_of(case))) == DATA[case["name"]]


@pytest.mark.parametrize(("nbytes", "taken"), [(0, 0), (1, 1), (512, 512), (513, 1024), (2**30 + 1, 2**31)])
def test_pinned_memory_comes_in_powers_of_two(nbytes: int, taken: int) -> None:
    assert pinned_bytes(nbytes) == taken


def answer(strategy: str, gpus: int, offload: dict[str, str], **training: Any) -> Answer:
    return estimate(
        {
            "model": "llama-3-8b",
            "hardware": {"gpu": "h200", "gpus": gpus},
            "training": {"sequence_length": 128, **training},
            "parallelism": {"strategy": strategy},
            "offload": offload,
        }
    )


LARGEST = 525_336_576
"""Elements of the largest parameter, the embedding: just under 2^30 bytes in half precision."""
CPU = {"optimizer": "cpu"}
ALL = {"optimizer": "cpu", "parameters": "cpu"}
LEDGER = [
    # strategy, GPUs, offload, bytes that the GPU keeps, bytes that one rank keeps on the host: exactly these parts
    ("zero2", 8, CPU, 2 * P + 2 * LARGEST, (2**32, 2**31, 2**30, 2**32, 8 * P // 8)),
    ("zero1", 8, CPU, 2 * P + 2 * LARGEST, (2**32, 2**31, 2**30, 2**32, 8 * P // 8)),
    ("zero3", 8, CPU, 2 * P // 8 + GB, (4 * P // 8, 2**32, 8 * P // 8, 2**31)),
]


@pytest.mark.parametrize(("strategy", "gpus", "offload", "gpu", "host"), LEDGER)
def test_the_ledger_of_deepspeed(strategy: str, gpus: int, offload: dict[str, str], gpu: int, host: tuple[int, ...]) -> None:
    """Of 1.004e9 elements per rank: float32 and its gradient 2^32 each when pinned, half precision 2^31; Adam's states as are."""
    found = answer(strategy, gpus, offload)
    assert found.memory.resident_bytes == pytest.approx(gpu, rel=2e-3)
    assert found.host is not None
    assert found.host.rank_resident_bytes == pytest.approx(sum(host), rel=2e-3)


def test_more_offloaded_leaves_less_on_the_gpu() -> None:
    peaks = [answer("zero3", 8, offload).memory.peak_bytes for offload in ({}, CPU, ALL)]
    assert peaks[0] > peaks[1] > peaks[2]


def test_accumulated_gradients_wait_on_the_host_in_stage_2() -> None:
    one, two = (answer("zero2", 8, CPU, gradient_accumulation_steps=n) for n in (1, 2))
    assert one.host is not None
    assert two.host is not None
    assert two.host.rank_resident_bytes - one.host.rank_resident_bytes >= 2 * P // 8
    assert two.memory.resident_bytes == one.memory.resident_bytes


def test_nvme_holds_what_the_host_does_not() -> None:
    on_disk = answer("zero3", 8, {"optimizer": "nvme"}).host
    assert on_disk is not None
    assert on_disk.disk_bytes["nvme"] == pytest.approx(16 * P, rel=1e-4)
    states = on_disk.rank_resident_bytes - 2**31  # gradients in half precision
    assert states == pytest.approx(4 * 4 * 1.004e9, rel=1e-3)  # four buffers of the one sub-group


def test_without_offload_the_host_keeps_no_tensors() -> None:
    plain = answer("zero3", 8, {}).host
    assert plain is not None
    assert plain.rank_peak_bytes == 0
