"""What a job does with the memory of the machine around the GPUs, and with its disk."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from estimator.contract.job.part import Bytes, Part


class Host(Part):
    """The machine around a node's GPUs. Its memory is part of the verdict only where `memory` is given."""

    memory: Bytes | None = Field(None, description="memory of a node: 512GB; if it is too small, the job does not fit")
    loading: Literal["each", "first", "device"] | None = Field(
        None,
        description="who loads the weights into the host's memory: each rank (from_pretrained), the first of a node "
        "(cpu_ram_efficient_loading, ZeRO-3), or none (device_map)",
    )
    data_loader_workers: Annotated[int, Field(ge=0, le=1024)] = Field(0, description="worker processes per rank")
    prefetch_factor: Annotated[int, Field(ge=1, le=1024)] = Field(2, description="batches that each worker has ready")
    pin_memory: bool = Field(True, description="batches in pinned memory")
    save: Literal["model", "checkpoint", "sharded", "adapter", "none"] | None = Field(
        None,
        description="what is saved: the model; with its optimizer, gathered (checkpoint) or in parts (sharded); the adapter",
    )
    merge: bool = Field(False, description="merge the adapter into its model on the host, after training")
