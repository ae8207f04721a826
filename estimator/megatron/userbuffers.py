"""Transformer Engine's userbuffers: where ranks write into each other's memory while products run (`tp_comm_overlap`).

Each product of a layer whose exchange is hidden has a buffer of its own of all tokens of a micro-batch, allocated by CUDA and not
by torch, when training begins: module/base.py (`initialize_ub`, `get_default_config`) and
common/comm_gemm_overlap/comm_gemm_overlap.cpp of Transformer Engine 2.11, megatron/training/initialize.py of Megatron-LM.
"""

from __future__ import annotations

from estimator.contract.job import Job
from estimator.contract.units import MIB
from estimator.families.spec import ModelSpec
from estimator.megatron.config import config
from estimator.parallel.topology import Topology

GATHERED = ("qkv_fprop", "qkv_dgrad", "proj_dgrad", "proj_wgrad", "fc1_fprop", "fc1_dgrad", "fc2_dgrad", "fc2_wgrad")
"""Buffers of what is gathered, in fp8 where products are."""
REDUCED = ("proj_fprop", "fc2_fprop", "qkv_wgrad", "fc1_wgrad")
"""Buffers of what is summed, in half precision."""
PAGE = 2 * MIB
"""What CUDA allocates such memory by (`cuMulticastGetGranularity`)."""


def userbuffer_bytes(job: Job, spec: ModelSpec, place: Topology) -> int:
    """Bytes of all of them on a GPU."""
    training = job.training
    numbers = training.micro_batch_size * training.sequence_length // place.context * config(spec).hidden
    gathered = 1 if training.fp8 else 2
    return len(GATHERED) * _pages(numbers * gathered) + len(REDUCED) * _pages(2 * numbers)


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
