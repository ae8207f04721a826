"""NCCL's communicators: what others measured of them, and which a job makes."""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest

from estimator import estimate
from estimator.contract.units import MIB
from estimator.runtime import nccl
from estimator.runtime.nccl import Communicator, Links
from tests.measured_runs import fsdp1_runs

A100, H100, B200, PCIE = Links(12, (8, 0)), Links(18, (9, 0)), Links(18, (10, 0)), Links(0, (8, 9))
SUMS = frozenset({"all_reduce"})


@pytest.mark.parametrize(("links", "channels"), [(A100, 24), (H100, 24), (B200, 32), (PCIE, 2)])
def test_as_many_channels_as_its_logs_name(links: Links, channels: int) -> None:
    """Of A100; of H100, "Trees [0]" to "[23]" in NCCL issue 2094; of B200 as what GB200 take says; "Channel 00/02" by PCIe."""
    assert links.channels == channels


def test_two_a100_take_what_was_measured() -> None:
    """NCCL issue 964, before 2.22: two A100 take 544 MiB, the buffer for sends included, which was then made at once."""
    shared = nccl.shared_bytes(32, nccl.NVLINK_CHUNK)
    assert A100.channels * nccl.connection_bytes() + shared == 544 * MIB


def test_an_end_of_a_chain_takes_what_was_measured() -> None:
    """The same with three or four: 688 MiB on a rank that receives from two and sends to one, 6 MiB each."""
    shared = nccl.shared_bytes(32, nccl.NVLINK_CHUNK)
    assert A100.channels * 3 * nccl.connection_bytes() // 2 + shared == 688 * MIB


@pytest.mark.parametrize("way", ["foak-fast-kernels", "foak-fast-kernels-liger"])
def test_four_a100_take_as_much_more_than_two_as_nvidia_smi_showed(way: str) -> None:
    """fms-acceleration's runs under FSDP1 with NCCL 2.20: beside the replayed allocator, the mean of all ranks.

    Rings and trees of two are 12 MiB per channel; of four in a chain 24, and 18 at its ends.
    """
    beside = {}
    for gpus in (2, 4):
        run = next(run for run in fsdp1_runs() if run["name"] == f"fsdp1 liger llama-3-8b lora {way} {gpus} x 4")
        reserved = estimate(run["job"]).memory.reserved_bytes
        assert reserved is not None
        beside[gpus] = run["nvidia_smi_mib"] - reserved / MIB
    each = nccl.connection_bytes() / MIB
    assert beside[4] - beside[2] == A100.channels * (mean((2 * each, 1.5 * each)) - each)


@pytest.mark.parametrize(("channels", "mib"), [(64, 388), (1, 10)])
def test_an_idle_communicator_takes_what_was_measured(channels: int, mib: int) -> None:
    """sglang's pull request 35538: one rank alone, with all of NCCL's channels and with NCCL_MAX_NCHANNELS=1."""
    assert nccl.small_bytes(channels) == mib * MIB


@pytest.mark.parametrize(("links", "communicators", "mib"), [(B200, 1, 576), (B200, 2, 1152), (H100, 2, 958)])
def test_what_suspending_gives_back_is_what_was_measured(links: Links, communicators: int, mib: int) -> None:
    """Rings of eight and small allocations, without the communicators' own pages, which stay (`ncclMemOffload`): sglang's pull
    request 30908 on GB200 with NCCL 2.30.4, and vLLM's 46234, which says about 958."""
    group = Communicator("tensor", 8, 8, frozenset({"all_gather"}))
    assert communicators * (nccl.communicator_bytes(group, links)[0] - nccl.PER_COMMUNICATOR) == pytest.approx(
        mib * MIB, rel=0.003
    )


def test_an_all_to_all_connects_every_pair_by_as_many_channels_as_was_logged() -> None:
    """NCCL issue 1685, eight H100: buffers of 10 MiB and of 2 MiB, 32 for each of seven peers."""
    group = Communicator("expert", 8, 8, frozenset({"all_to_all"}))
    expected, least, most = nccl.communicator_bytes(group, H100)
    assert least == 7 * 32 * (10 + 2) * MIB
    assert least < expected < most


@pytest.mark.parametrize("links", [A100, H100, B200, PCIE])
@pytest.mark.parametrize("operation", ["all_gather", "all_reduce", "all_to_all", "receive"])
@pytest.mark.parametrize(("ranks", "per_node"), [(2, 2), (8, 8), (16, 8), (2, 1)])
def test_a_range_holds_what_is_expected(links: Links, operation: str, ranks: int, per_node: int) -> None:
    expected, least, most = nccl.communicator_bytes(Communicator("data", ranks, per_node, frozenset({operation})), links)
    assert 0 <= least <= expected <= most


def test_only_large_groups_with_switches_that_add_have_their_buffer() -> None:
    def sums(ranks: int, links: Links) -> int:
        return nccl.communicator_bytes(Communicator("data", ranks, ranks, SUMS), links)[0]

    assert sums(8, H100) == nccl.small_bytes(32) + 24 * nccl.connection_bytes() + 2 * 16 * 8 * MIB
    assert sums(8, A100) == nccl.small_bytes(32) + 2 * 24 * nccl.connection_bytes()
    assert sums(2, H100) == sums(2, A100) == nccl.small_bytes(32) + 24 * nccl.connection_bytes()


MEGATRON = {"implementation": "megatron", "activation_checkpointing": "none", "gradient_accumulation_steps": 4}
JOBS: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = [
    ({"gpus": 1}, {}, set()),
    ({"gpus": 8}, {"strategy": "ddp"}, {"data"}),
    ({"gpus": 8}, {"strategy": "fsdp2"}, {"data"}),
    ({"gpus": 8, "nodes": 2}, {"strategy": "hsdp"}, {"data", "replicas"}),
    ({"gpus": 8, "nodes": 2}, {"strategy": "zero3", "zero_hpz_partition_size": 8}, {"data", "secondary"}),
    ({"gpus": 8}, {"tensor": 2, "pipeline": 2}, {"data", "tensor", "pipeline", "gradient_norm"}),
    ({"gpus": 4}, {"tensor": 4}, {"tensor", "gradient_norm"}),
    ({"gpus": 4}, {"tensor": 2, "pipeline": 2}, {"tensor", "pipeline", "gradient_norm"}),
]


@pytest.mark.parametrize(("hardware", "parallelism", "groups"), JOBS)
def test_a_communicator_for_each_group_that_exchanges(
    hardware: dict[str, Any], parallelism: dict[str, Any], groups: set[str]
) -> None:
    training = {"sequence_length": 128, **(MEGATRON if "tensor" in parallelism else {})}
    job = {"model": "llama-3-8b", "hardware": {"gpu": "h100", **hardware}, "parallelism": parallelism, "training": training}
    overhead = estimate(job).memory.overhead
    assert {name.removeprefix("nccl_") for name in overhead if name.startswith("nccl_")} - {"kernels"} == groups
    assert ("nccl_kernels" in overhead) == bool(groups)


def test_ranks_of_a_server_communicate() -> None:
    """What they take for it is among what vLLM logs outside torch."""
    job = {"model": "llama-3-8b", "task": "serve", "hardware": {"gpu": "h100", "gpus": 2}}
    alone, shared = (estimate({**job, "parallelism": {"tensor": ranks, "data": 2 // ranks}}).memory.engine for ranks in (1, 2))
    assert alone is not None
    assert shared is not None
    assert shared.non_torch_bytes
    assert alone.non_torch_bytes
    assert shared.non_torch_bytes > alone.non_torch_bytes
