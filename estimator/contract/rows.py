"""A row of each listing, and the two counts of `verify`, as the command line and REST give them. Money is decimal text."""

from __future__ import annotations

from datetime import date

from estimator.contract.answer import AnswerPart


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


class Counted(AnswerPart):
    """Bytes at the moments of a training step, as the tape predicts them and as torch counts them, by the moment's name."""

    predicted: dict[str, int]
    counted: dict[str, int]
