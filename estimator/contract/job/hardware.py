"""What a job runs on, and how the model is spread over that."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from estimator.contract.job.part import Bytes, Count, Part, Place
from estimator.contract.units import GB, parse_bytes

Kind = Literal["on-demand", "spot", "reserved-1y", "reserved-3y", "marketplace"]
"""How an instance is paid for."""
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$", description="three letters, as ISO 4217 has them: USD, EUR")]


class Rent(Part):
    """Which offers of the price list may be rented; what is left out may be anything."""

    provider: str | None = Field(None, description="aws, azure, gcp, …, as `willitfit prices` names them")
    instance: str | None = None
    region: str | None = None
    kind: Kind | None = Field(None, description="how it is paid for; without it, on demand, or else of a marketplace")
    currency: Currency | None = None


class Owned(Part):
    """GPUs that are one's own: what they cost is spread over the hours that they compute in their life."""

    purchase_price: Annotated[Decimal, Field(gt=0, le=10**9)] = Field(
        description="of one GPU with its share of the server, in `currency`"
    )
    currency: Currency
    lifetime_years: Annotated[Decimal, Field(gt=0, le=100)] = Field(description="years until it is worth nothing")
    utilisation: Annotated[Decimal, Field(gt=0, le=1)] = Field(description="share of those years in which it computes")
    electricity_price: Annotated[Decimal, Field(ge=0, le=10**6)] = Field(description="of a kWh, in `currency`")
    power_watts: Annotated[Decimal, Field(gt=0, le=10**5)] | None = Field(
        None, description="what one GPU and its share of the server draw; without it, by the GPU's thermal design power"
    )
    pue: Annotated[Decimal, Field(ge=1, le=10)] | None = Field(
        None, description="power of the site over that of its machines; without it, the average of data centres"
    )


class Network(Part):
    """What joins a node to others, where it is not what is usual for its GPUs."""

    adapters: Annotated[int, Field(ge=1, le=1024)] = Field(description="network adapters of a node that GPUs exchange over")
    gigabits: Annotated[float, Field(ge=0.1, le=10**5, allow_inf_nan=False)] = Field(
        description="Gb/s of each adapter in one direction, as adapters are sold: 100, 200, 400"
    )

    @property
    def gigabytes(self) -> float:
        """GB/s of the whole node in one direction."""
        return self.adapters * self.gigabits / 8


Schedule = Literal["1f1b", "interleaved", "gpipe", "looped-bfs", "zero-bubble", "zbv", "dualpipev", "dualpipe"]
"""In what order a pipeline's ranks run their passes (parallel/schedules.py)."""


def _as_text(name: Any) -> Any:
    """A name that YAML reads as a number: 3090."""
    return str(name) if isinstance(name, int) and not isinstance(name, bool) else name


class Hardware(Part):
    """What a job runs on. Without a GPU or an amount of memory the answer has bytes, but no verdict."""

    gpu: Annotated[str | None, BeforeValidator(_as_text, json_schema_input_type=str | int | None)] = Field(
        None, description="catalogue name or alias of the accelerator"
    )
    memory: str | None = Field(None, description="memory of an unnamed card, as it is sold: 24GB")
    ram: str | None = Field(
        None,
        description="RAM of a node: 64GB. What llama.cpp leaves there, or a training keeps there, is held against it; without "
        "gpu and memory it is a machine without a GPU, from whose RAM llama.cpp serves",
    )
    in_use: Bytes | None = Field(None, description="memory of each GPU that other processes hold: 2GiB; without it, none")
    gpus: Count = Field(1, description="GPUs in a node")
    nodes: Count = Field(1, description="nodes")
    network: Network | None = Field(
        None, description="what joins the nodes; without it, the network of the usual node of such GPUs"
    )
    rent: Rent = Field(Rent(), description="which offers count for the cost")
    owned: Owned | None = Field(None, description="what the GPUs cost that are not rented")
    grid: str | None = Field(
        None, description="whose electricity it is, for the emissions: us, de, eu, …; without it, the world's"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Hardware:
        for name in ("gpu", "memory", "ram", "grid"):
            if (given := getattr(self, name)) is not None and not given.strip():
                raise ValueError(f"{name} is empty: say it, or leave it out")
        if self.gpu and self.memory:
            raise ValueError("gpu and memory exclude each other: name the card, or say how large it is")
        if self.without_gpu and self.gpus * self.nodes > 1:
            raise ValueError("ram alone is one machine without a GPU: leave gpus and nodes out, or name a gpu")
        if self.owned and self.rent != Rent():
            raise ValueError("owned and rent exclude each other: GPUs that are one's own are not rented")
        for name, given, has in (("memory", self.memory, "a card"), ("ram", self.ram, "a machine")):
            if given and not GB <= parse_bytes(given) <= 2**44:
                raise ValueError(f"{name} {given} is not what {has} has: write 1GB to 16TB")
        return self

    @property
    def without_gpu(self) -> bool:
        """Whether it is a machine of which the RAM is given, and no GPU."""
        return self.ram is not None and self.gpu is None and self.memory is None


class Parallelism(Part):
    """How the model is spread over GPUs. Degrees multiply to the number of GPUs; `data` fills what the others leave."""

    strategy: Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp1", "fsdp2", "hsdp"] | None = None
    data: Count | None = None
    tensor: Count = 1
    pipeline: Count = 1
    context: Count = 1
    expert: Count = Field(1, description="ranks over which experts are spread; they are among those of data, context and tensor")
    expert_tensor: Count | None = Field(
        None, description="ranks that share each expert; without it, as many as tensor, as Megatron-Core has it"
    )
    context_exchange: Literal["p2p", "a2a", "all_gather", "a2a+p2p"] | None = Field(
        None,
        description="how context-parallel ranks attend to each other's tokens (--cp-comm-type): p2p, keys and values in a ring, "
        "or a2a, heads for tokens; without it p2p",
    )
    sequence: bool | None = Field(
        None,
        description="sequence parallelism among tensor-parallel ranks (--sequence-parallel); without it, where there are any",
    )
    tp_comm_overlap: bool = Field(
        False,
        description="exchanges of tensor-parallel ranks are hidden beside products, in Transformer Engine's userbuffers "
        "(--tp-comm-overlap)",
    )
    overlap_grad_reduce: bool = Field(
        False,
        description="gradients are reduced while the last micro-batch's backward pass runs (--overlap-grad-reduce)",
    )
    overlap_param_gather: bool = Field(
        False,
        description="of zero1: weights are gathered while the next step's first forward pass runs (--overlap-param-gather)",
    )
    pipeline_schedule: Schedule | None = Field(
        None,
        description="the order of a pipeline's passes; without it 1f1b, or interleaved where a rank has several chunks",
    )
    model_chunks: Count | None = Field(
        None, description="parts of the model on each pipeline rank (virtual stages); without it, as many as its schedule needs"
    )
    micro_batch_group: Count | None = Field(
        None,
        description="of interleaved: micro-batches that go through a chunk before the next "
        "(--microbatch-group-size-per-virtual-pipeline-stage); without it, as many as pipeline ranks",
    )
    pipeline_layers: Annotated[tuple[Annotated[int, Field(ge=0, le=2**16)], ...], Field(max_length=2**12)] | None = Field(
        None,
        description="layers of each pipeline stage, those of further chunks after the last rank's; without it, as many on each",
    )
    reshard_after_forward: bool = True
    backward_prefetch: bool = Field(
        True,
        description="whether FSDP1 gathers the next layer's parameters before it runs a layer's backward pass (BACKWARD_PRE)",
    )
    gradient_as_bucket_view: bool = False
    replicas: Count | None = Field(
        None, description="of hsdp: groups of GPUs that each hold the whole model in shards; without it, one in each node"
    )
    gradient_sync: bool = Field(
        True,
        description="of fsdp2 and hsdp: gradients are reduced after every micro-step; false: they stay whole until the last "
        "(set_requires_gradient_sync)",
    )
    zero_reduce_bucket_size: Annotated[int, Field(ge=1, le=10**11)] | None = Field(
        None,
        description="of zero1, zero2, zero3: elements of the bucket in which gradients are reduced (DeepSpeed's "
        "reduce_bucket_size; auto in a Trainer's file is the hidden size squared); without it, 500,000,000",
    )
    zero_overlap_comm: bool = Field(
        False, description="of zero1 and zero2: a second bucket fills while the first is reduced (overlap_comm)"
    )
    zero_hpz_partition_size: Count | None = Field(
        None, description="of zero3: ranks, those of a node, that keep a second copy of the parameters in parts (ZeRO++, hpZ)"
    )
    zero_quantized_weights: bool = Field(False, description="of zero3: parameters are gathered in int8 (ZeRO++, qwZ)")
    zero_quantized_gradients: bool = Field(
        False,
        description="of zero3: gradients are reduced in int4 by two all-to-alls, where there are several nodes (ZeRO++, qgZ)",
    )


class Offload(Part):
    """What is kept outside the GPU: in the host's memory, or on NVMe."""

    optimizer: Place = "none"
    parameters: Place = "none"
    gradients: Place = "none"
    activations: Place = "none"
