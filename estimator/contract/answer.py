"""The answer to a job, as Python, the command line and REST give it. Bytes are integers; money is decimal text."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

DEFAULT = "default: "
"""What an assumption begins with that says which default a field has."""


class AnswerPart(BaseModel):
    """The base of every model of an answer: unknown fields are refused, and nothing can be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KvCache(AnswerPart):
    """The KV cache of a served model, bytes and tokens on one GPU."""

    bytes_per_token: int
    needed_bytes: int
    available_bytes: int | None
    """Room that the engine leaves for the cache on this GPU; null for an unnamed card."""
    available_tokens: int | None
    available_range_bytes: tuple[int, int] | None = None
    """Lowest and highest value of `available_bytes`: what vLLM takes outside torch and for CUDA graphs, and SGLang's process
    groups, are measured, not derived (facts.yaml in serving/vllm and serving/sglang); null for other engines."""


class EngineMemory(AnswerPart):
    """What an engine logs of one rank when it starts, and what its cache then holds. Of the cache null where no GPU was given.

    SGLang logs no activations and profiles none: they, CUDA graphs and what lies outside torch come out of what it leaves free.
    """

    weights_bytes: int
    activation_bytes: int | None = None
    """The highest of torch's memory beside them in the pass that it profiles: one layer, or sampling."""
    non_torch_bytes: int | None = None
    """Outside torch: libraries, communicators. CUDA's context is not in it."""
    cuda_graph_bytes: int | None = None
    cache_bytes: int | None = None
    """What is left for its cache."""
    cache_blocks: int | None = None
    cache_tokens: int | None = None
    """As it logs it: of vLLM those of as many requests as long as the context as the blocks hold; of SGLang those of layers that
    see everything (max_total_num_tokens)."""
    window_tokens: int | None = None
    """Of SGLang, those that layers with a window have room for, where they have a pool of their own (swa_layer_tokens)."""
    states: int | None = None
    """Of SGLang, sequences whose states it has room for, cached prefixes among them (max_mamba_cache_size)."""
    running_requests: int | None = None
    """Of SGLang, requests that it runs at the same time at most (max_running_requests)."""
    longest_context: int | None = None
    """The longest request that the cache holds, which of vLLM is the longest context that it would start with."""
    concurrency: float | None = None
    """Requests as long as the context that the cache holds at the same time."""


class Device(AnswerPart):
    """What llama.cpp holds of one GPU, as it logs it when it starts."""

    gpu: int
    layers: int
    """Layers that lie there, the output layer counted as one."""
    weights_bytes: int
    cache_bytes: int
    compute_bytes: int
    """The buffer of its part of the graph."""


class Place(AnswerPart):
    """What was running where a phase reaches its peak; all null where it allocates nothing above what it starts with."""

    part: str | None
    """A stack of layers; or what lies outside them: "before layers", "after layers", "head and loss", "optimizer"."""
    layer: int | None
    """Which layer of the stack, from 0."""
    layers: int | None
    """How many the stack has."""
    operation: str | None
    """The operation whose allocation makes the peak."""
    recomputed: bool
    """Whether backward was running again what forward had run."""

    @property
    def where(self) -> str:
        """The place as one phrase: "layers[3] of 32, at mul, recomputed"."""
        if self.operation is None:
            return "nothing allocated"
        place = self.part if self.layer is None else f"{self.part}[{self.layer}] of {self.layers}"
        return f"{place}, at {self.operation}{', recomputed' if self.recomputed else ''}"


class Tensors(AnswerPart):
    """Tensors that are alive at the peak and alike: made by the same operation, of the same shape and type."""

    component: str
    """What the tensors are counted as: a key of `Memory.at_peak`, such as "activations"."""
    operation: str
    """The operation that made them, or a parameter's name."""
    part: str | None
    """The stack of layers in which they were made; null: outside all layers."""
    shape: list[int] | None
    dtype: str | None
    count: int
    each_bytes: int
    """Bytes of one of the tensors, rounded up to 512 as the allocator does."""
    bytes: int


class Peak(Place):
    """Where the highest peak is, and the largest of what is alive there; with `rest_bytes` they sum to `peak_bytes`."""

    phase: str
    tensors: list[Tensors]
    rest_count: int
    rest_bytes: int


class Memory(AnswerPart):
    """Memory of one GPU in bytes: that of the rank that needs most."""

    capacity_bytes: int | None
    """Bytes that a process can allocate on the GPU; null where no hardware was named."""
    peak_bytes: int
    """Peak of allocated bytes (torch.cuda.max_memory_allocated)."""
    peak_phase: str
    """forward | backward | optimizer_step | prefill | decode."""
    reserved_bytes: int | None
    """Most bytes that the caching allocator holds (torch.cuda.max_memory_reserved); null where an engine reserves all it may."""
    held_bytes: int | None
    """The part of `reserved_bytes` that the allocator cannot give back when the card is full: segments with a block in use."""
    total_bytes: int
    """`peak_bytes` with cached blocks, the CUDA context, libraries' workspaces and communicators: what nvidia-smi shows. For
    vLLM what its share of the GPU must hold, beside which the context lies."""
    range_bytes: tuple[int, int]
    """Lowest and highest value of `total_bytes`, given the spread of the measured constants."""
    resident_bytes: int
    """Bytes that are alive between two steps."""
    forward_end_bytes: int
    """Bytes that are alive when forward pass and loss have run."""
    phases: dict[str, int]
    """Highest allocated bytes of each phase."""
    phase_peaks: dict[str, Place]
    """Where in the model each phase reaches its peak."""
    at_peak: dict[str, int]
    """Bytes that are alive at the peak, by what they are (parameters, activations, …); they sum to `peak_bytes`."""
    peak: Peak
    overhead: dict[str, int]
    """Bytes between `peak_bytes` and `total_bytes`, by what takes them."""
    kv_cache: KvCache | None = None
    engine: EngineMemory | None = None
    """None: not an engine's, or one that says none of it yet."""
    devices: list[Device] = []
    """llama.cpp: each GPU. The peak is that of the one that holds most."""
    host_bytes: dict[str, int] = {}
    """Training: highest bytes of each phase in a node's own memory, of which `Answer.host` says more. llama.cpp: the bytes
    that it keeps there while it serves, by what they are."""


class HostMemory(AnswerPart):
    """A node's own memory and its disk, of a training job. Files that are mapped are left out: the system drops them for room."""

    capacity_bytes: int | None
    """Memory of a node in bytes, where the job gives it."""
    phases: dict[str, int]
    """Highest bytes of each phase, in one node's memory."""
    peak_bytes: int
    peak_phase: str
    """load | train | save | merge."""
    range_bytes: tuple[int, int]
    """Lowest and highest value of `peak_bytes`, given the spread of the measured constants."""
    at_peak: dict[str, int]
    """Bytes in use at the peak, by what they are; they sum to `peak_bytes`."""
    rank_resident_bytes: int
    """Bytes of states, parameters or activations that the job offloads and one rank keeps in the node's memory between steps."""
    rank_peak_bytes: int
    """Highest bytes that one rank's offloading takes of the node's memory at any moment of a step."""
    disk_bytes: dict[str, int]
    """Bytes on disk, by what they are: what the whole job saves, all ranks together; and `nvme`, the files of one node's
    offloaded states."""
    scheduler: str
    """The memory to request from a scheduler for each node: Slurm's --mem, whose G is GiB."""


class Parameters(AnswerPart):
    total: int
    trainable: int
    active: int | None
    """Those that one token uses; null of a mixture that no family here describes."""


class TimePart(AnswerPart):
    """What a part of a step's time goes to: a kind of kernel, an exchange that nothing hides, the pipeline's bubble. Without it a
    step would be so much shorter."""

    name: str
    seconds: float
    share: float


class Time(AnswerPart):
    """One optimizer step; or of a served model, one token of each sequence (decode) or the reading of prompts (prefill)."""

    step_seconds: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    flops_per_step: int
    """Floating-point operations of one GPU in a step, recomputation included."""
    tflops_per_gpu: float
    """TFLOP/s of one GPU, recomputation included."""
    mfu: float
    """Model FLOPs utilisation, 0 to 1: FLOP/s without what is recomputed, over the GPU's dense peak."""
    hfu: float
    """Hardware FLOPs utilisation, 0 to 1: FLOP/s with what is recomputed, over the GPU's dense peak."""
    bottleneck: str
    """The name of the largest of `parts`."""
    parts: list[TimePart]
    """What the time goes to, largest first; the seconds sum to `step_seconds`."""
    range_seconds: tuple[float, float]
    range_reason: str


class Course(AnswerPart):
    """The whole run, if the job says how much it processes."""

    steps: int
    """Optimizer steps of the whole run."""
    tokens: int
    """Tokens of the data that the run learns from, each epoch counted, padding left out."""
    computed_tokens: int
    """Tokens that all batches have room for: `tokens`, padding, and what the last batch of an epoch lacks."""
    epochs: float | None
    hours: float | None
    """Duration of the whole run in hours, everything in `parts` included; null where the time of a step is not known."""
    range_hours: tuple[float, float] | None
    parts: dict[str, float]
    """Hours by what they go to: training, set_up, evaluation, saving, restarts."""
    gpu_hours: float | None
    """`hours` times the number of GPUs."""


class TokenCost(AnswerPart):
    """What a million tokens cost, as decimal text, on hardware that is always busy."""

    million_input: str
    million_output: str
    range_million_input: tuple[str, str]
    range_million_output: tuple[str, str]
    """Lowest and highest cost of a million output tokens over the range of the time, at the one hourly price."""
    currency: str
    price_per_hour: str
    """Price of all instances for an hour, as decimal text in `currency`."""
    price_source: str
    price_as_of: str | None


class ServingTime(AnswerPart):
    """How fast requests are answered, each replica with as many sequences at a time as the job says."""

    prompt_tokens: int
    output_tokens: int
    sequences: int
    """Sequences that are served at the same time, on all replicas together."""
    prefill: Time
    """Reading a prompt (or those of a batch, in transformers) with nothing else running."""
    decode: Time
    """A decoding step, one token for each sequence, when half of each answer is written."""
    time_to_first_token_seconds: float
    """Seconds to the first token of a request that arrives while nothing else runs."""
    time_to_first_token_queued_seconds: float
    """Seconds to the first token of the request that is read last, where as many as are served at a time arrive at once."""
    time_per_output_token_seconds: float
    """Seconds from one output token to the next on average, with the prompts of other requests that are read meanwhile."""
    range_time_per_output_token_seconds: tuple[float, float]
    request_seconds: float
    range_request_seconds: tuple[float, float]
    requests_per_second: float
    input_tokens_per_second: float
    output_tokens_per_second: float
    output_tokens_per_second_per_gpu: float
    cost: TokenCost | None
    """What tokens cost; null where no price is known."""


class Rank(AnswerPart):
    """The GPUs of one pipeline stage, which all hold the same layers."""

    stage: int
    gpus: int
    layers: tuple[int, int] | None
    """The first and the last layer of the stage's first chunk; null where that has none."""
    chunks: list[tuple[int, int] | None]
    """The first and the last layer of each chunk of the model that the stage holds; null for a chunk without layers."""
    embedding: bool
    output: bool
    """Whether the stage has the output layer and the loss; `embedding`: whether it has the input embedding."""
    micro_batches: int
    """Micro-batches whose activations the stage holds at once, each counted for every chunk in which it waits."""
    peak_bytes: int
    peak_phase: str
    resident_bytes: int


class Traffic(AnswerPart):
    """Collectives and transfers of one kind that a GPU takes part in during an optimizer step."""

    operation: str
    """all_gather | reduce_scatter | all_reduce | all_to_all | receive."""
    group: str
    """The group of ranks that exchange: data, tensor, context, expert, expert_tensor, expert_data or pipeline."""
    ranks: int
    phase: str
    count: int
    bytes: int
    """Bytes of all `count` exchanges together: of the whole tensors, which an all-gather makes and a reduce-scatter starts
    from."""


class Recomputation(AnswerPart):
    """What activation checkpointing costs and saves, per GPU."""

    flops: int
    """Operations of an optimizer step that repeat what forward did."""
    share: float
    """`flops` over the operations that a step has without recomputation."""
    saved_bytes: int
    """Bytes by which the peak is lower than without recomputation; negative if it is higher."""


class Cost(AnswerPart):
    gpu_hours: float | None
    range_gpu_hours: tuple[float, float] | None
    price_per_gpu_hour: str | None
    """Price of a GPU-hour, decimal text: all rented instances over the GPUs that the job uses, so that unused ones are paid
    for."""
    total: str | None
    """Money for the whole run, as decimal text; null where no price is known, never zero for want of one."""
    range_total: tuple[str, str] | None
    currency: str
    price_source: str
    price_as_of: str | None
    instances: int | None
    """How many instances are rented; null where none is."""
    parts: dict[str, str]
    """What `total` consists of where the GPUs are one's own: purchase and electricity, as decimal text; else empty."""


class Energy(AnswerPart):
    """What the run takes of electricity, cooling and the rest of the site included, and what generating it emits."""

    kwh: float
    range_kwh: tuple[float, float]
    co2e_kg: float
    range_co2e_kg: tuple[float, float]
    grid: str
    """The electricity grid that supplies the site."""
    grams_per_kwh: float
    source: str


class Note(AnswerPart):
    """A sentence beside the numbers."""

    kind: Literal["assumption", "default", "warning", "suggestion", "not modelled"]
    slug: str
    """What it stands for, by which a program knows it: "what-stays"."""
    about: str | None
    """The field of the job that it is about; null of no single one."""
    text: str


class Versions(AnswerPart):
    software: str
    data: str


class Answer(AnswerPart):
    """fits: None where the honest answer is "unknown", with the reason in `verdict`."""

    fits: bool | None
    verdict: Literal["fits", "tight", "does not fit", "unknown"]
    reason: str
    memory: Memory
    host: HostMemory | None
    parameters: Parameters
    time: Time | None
    """An optimizer step, or of a served model a decoding step; null where no time is known."""
    serving: ServingTime | None = None
    """Throughput and latency of a served model; null for a training job or an unnamed card."""
    run: Course | None = None
    communication: list[Traffic] = []
    """What the rank that needs most memory exchanges with others in an optimizer step."""
    ranks: list[Rank] = []
    """Pipeline stages that differ, as compared to find the one that needs most memory, or all stages where they were
    requested; empty without a pipeline."""
    recomputation: Recomputation | None = None
    """What activation checkpointing costs and saves; null where nothing is recomputed."""
    cost: Cost | None
    energy: Energy | None
    job: dict[str, Any]
    """The job with every default filled in."""
    assumptions: list[str]
    warnings: list[str]
    suggestions: list[str]
    not_modelled: list[str]
    notes: list[Note]
    """The sentences of the four lists above as values, in the same order; a default's text is there without its prefix."""
    versions: Versions

    def to_json(self) -> str:
        """The one text form: what the command line prints and REST sends, byte for byte."""
        return as_text(self)


def as_text(part: AnswerPart) -> str:
    """The one text form: what the command line prints and REST sends, byte for byte."""
    return json.dumps(part.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
