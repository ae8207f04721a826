"""A row of each listing, and the two counts of `verify`, as the command line and REST give them. Money is decimal text."""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

from estimator.contract.answer.part import IN_RAM, AnswerPart, WholeAnswer


class ModelRow(AnswerPart):
    """A model of the catalogue."""

    name: str
    parameters: int | None
    """The published count, tied weights once; where none is published, what its architecture counts."""
    architecture: str
    """The `model_type` of its config.json."""
    layers: int
    context: int | None
    """Length of sequence in tokens that the model was made for; null: nothing limits it."""
    released: str | None
    licence: str | None
    aliases: list[str]
    same_architecture: list[str]
    """Other models of this architecture and these sizes, which are answered alike."""


class FittingRow(AnswerPart):
    """A model of the catalogue that fits on some hardware, in the first of the ways that were asked for in which it does."""

    name: str
    parameters: int
    released: str | None
    way: str
    """How it is used, with the format of its weights: serve bf16, QLoRA (nf4)."""
    spread: str
    """How it is spread over the GPUs, in words."""
    verdict: Literal["fits", "tight"]
    total_bytes: int
    """What one GPU needs."""
    headroom_bytes: int | None
    """Bytes of the GPU, or of the engine's share of it, that are left."""
    tokens: int
    """Length of a sequence that was asked about: the context of a server, or a sequence in training."""
    longest_context: int | None
    """The longest context that the server would start with, of vLLM; null of others."""
    tokens_per_second: float | None
    """On all GPUs; null where the GPU's speed is not known."""
    job: dict[str, Any]
    """The complete job, which `estimate` answers in full."""


class NotAnswered(AnswerPart):
    """Models of which it is not known whether they fit, or which a library that they need does not run."""

    models: list[str]
    verdict: Literal["unknown", "does not run"]
    why: str


class Fitting(WholeAnswer):
    """The models of the catalogue that fit on some hardware, the newest first, and of one day the largest."""

    hardware: str
    task: str
    capacity_bytes: int | None
    """What one GPU offers."""
    known: int
    """Models that were asked about."""
    looked_at: int
    """How many of them, the newest, were looked at until there were rows enough."""
    rows: list[FittingRow]
    too_large: list[str]
    """Models that do not fit."""
    too_short: list[str]
    """Models that were made for shorter sequences than were asked for."""
    unknown: list[NotAnswered]
    complete: bool
    """False where the search was interrupted."""

    @property
    def in_ram(self) -> bool:
        """Whether it was asked of a machine without a GPU."""
        return any(row.spread == IN_RAM for row in self.rows)


class GpuRow(AnswerPart):
    """An accelerator of the catalogue."""

    name: str
    vendor: str
    architecture: str
    memory_bytes: int
    """What a process can allocate."""
    memory_verified: bool
    """Whether a second, independent source agrees."""
    bf16_tflops: int | float | None
    """Dense peak of bf16 products, TFLOP/s; null: the accelerator has none."""
    bandwidth_gb_per_second: int | float
    """Bandwidth of the accelerator's memory, GB/s."""
    interconnect: str | None
    """The link to accelerators of the same kind; null: only the host's links join them."""
    interconnect_gb_per_second: int | float | None
    """GB/s of one accelerator to the others of its kind, in one direction."""
    power_watts: int | float | None
    usd_per_gpu_hour: str | None
    """Lowest price per GPU-hour in the price list, USD; null: no price is known."""
    unverified: list[str]
    """Facts that no second source confirms."""
    aliases: list[str]


class NodeRow(AnswerPart):
    """A system or a cloud's instance."""

    name: str
    provider: str
    accelerator: str
    gpus: int
    interconnect: str | None
    """The link between the accelerators of the node."""
    interconnect_gb_per_second: int | float | None
    """GB/s of one accelerator to the others of the node, in one direction."""
    network: str | None
    """The network to other nodes; null: not known."""
    network_gb_per_second: int | float | None
    """GB/s of the whole node to other nodes, in one direction."""
    vcpus: int | None
    host_memory_gib: int | float | None
    unverified: list[str]
    """Facts that no second source confirms."""
    aliases: list[str]


class OfferRow(AnswerPart):
    """An offer of the price list."""

    provider: str
    instance: str
    accelerator: str
    gpus: int
    vcpus: int | None
    memory_gib: str | None
    """The host's memory, as decimal text."""
    kind: str
    region: str
    price_per_hour: str
    """Price of the whole instance, per hour in `currency`, as decimal text."""
    per_gpu: str
    """Price of the instance divided by its GPUs, per GPU-hour in `currency`, as decimal text."""
    currency: str
    as_of: date
    source: str


class Counted(WholeAnswer):
    """Bytes at the moments of a training step, as the tape predicts them and as torch counts them, by the moment's name."""

    predicted: dict[str, int]
    counted: dict[str, int]
