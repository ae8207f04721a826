"""The answer to a job, as Python, the command line and REST give it. Bytes are integers; money is decimal text."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

DEFAULT = "default: "
"""How an assumption begins that names a default."""


class AnswerPart(BaseModel):
    """What all answers are made of."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KvCache(AnswerPart):
    """The cache of a served model, per GPU."""

    bytes_per_token: int
    needed_bytes: int
    available_bytes: int | None
    """What the engine would give it on this card."""
    available_tokens: int | None
    available_range_bytes: tuple[int, int] | None = None
    """Within which that lies: what vLLM takes outside torch and for CUDA graphs is not derived (serving/vllm.yaml)."""


class EngineMemory(AnswerPart):
    """What an engine logs of one rank when it starts, and what its cache then holds. Of the cache null where no GPU was given."""

    weights_bytes: int
    activation_bytes: int
    """The highest of torch's memory beside them in the pass that it profiles: one layer, or sampling."""
    non_torch_bytes: int
    """Outside torch: libraries, communicators. CUDA's context is not in it."""
    cuda_graph_bytes: int
    cache_bytes: int | None = None
    """What is left for its cache."""
    cache_blocks: int | None = None
    cache_tokens: int | None = None
    """As it logs it: those of as many requests as long as the context as the blocks hold."""
    longest_context: int | None = None
    """The longest request that the cache holds, which is the longest context that it would start with."""
    concurrency: float | None = None
    """Requests as long as the context that the cache holds at the same time."""


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
        """All of it in words."""
        if self.operation is None:
            return "nothing allocated"
        place = self.part if self.layer is None else f"{self.part}[{self.layer}] of {self.layers}"
        return f"{place}, at {self.operation}{', recomputed' if self.recomputed else ''}"


class Tensors(AnswerPart):
    """Tensors that are alike."""

    component: str
    """As in `at_peak`."""
    operation: str
    """What made them; a parameter's name."""
    part: str | None
    """The stack whose layers made them; null: none of a layer."""
    shape: list[int] | None
    dtype: str | None
    count: int
    each_bytes: int
    """Of one, rounded up as the allocator does."""
    bytes: int


class Peak(Place):
    """Where the highest peak is, and the largest of what is alive there; with `rest_bytes` they sum to `peak_bytes`."""

    phase: str
    tensors: list[Tensors]
    rest_count: int
    rest_bytes: int


class Memory(AnswerPart):
    """Per GPU, of the rank that needs most."""

    capacity_bytes: int | None
    """What the GPU offers to a process."""
    peak_bytes: int
    """Peak of allocated bytes (torch.cuda.max_memory_allocated)."""
    peak_phase: str
    """forward | backward | optimizer_step | prefill | decode."""
    reserved_bytes: int | None
    """Most that the caching allocator holds (torch.cuda.max_memory_reserved); None where an engine reserves all it may."""
    held_bytes: int | None
    """Of it, what it cannot give back when the card is full: segments with a block in use."""
    total_bytes: int
    """With the CUDA context, libraries' workspaces, communicators and cached blocks: what nvidia-smi shows. Of vLLM what its
    share of the GPU must hold, beside which the context lies."""
    range_bytes: tuple[int, int]
    """Within which `total_bytes` lies, given the spread of what was measured."""
    resident_bytes: int
    """Alive between steps."""
    forward_end_bytes: int
    """Alive when forward and loss have run."""
    phases: dict[str, int]
    """Peak of each phase."""
    phase_peaks: dict[str, Place]
    """Where each phase reaches its peak."""
    at_peak: dict[str, int]
    """What is alive at the peak; sums to `peak_bytes`."""
    peak: Peak
    overhead: dict[str, int]
    """What lies between `peak_bytes` and `total_bytes`."""
    kv_cache: KvCache | None = None
    engine: EngineMemory | None = None
    """None: not an engine's, or one that says none of it yet."""
    host_bytes: dict[str, int] = {}
    """Peak of each phase in a node's own memory, of which `host` of the answer says more. While llama.cpp serves, what it keeps
    there, by what it is."""


class HostMemory(AnswerPart):
    """A node's own memory and its disk, of a training job. Files that are mapped are left out: the system drops them for room."""

    capacity_bytes: int | None
    """What the job says that a node has."""
    phases: dict[str, int]
    """Peak of each phase."""
    peak_bytes: int
    peak_phase: str
    """load | train | save | merge."""
    range_bytes: tuple[int, int]
    """Within which `peak_bytes` lies, given the spread of what was measured."""
    at_peak: dict[str, int]
    """What is alive at the peak; sums to `peak_bytes`."""
    rank_resident_bytes: int
    """What one rank's training keeps there between steps, because the job offloads it."""
    rank_peak_bytes: int
    """The highest of that in a step."""
    disk_bytes: dict[str, int]
    """Of the whole job: what is saved, by what it is; and `nvme`, the files of one node's offloaded states."""
    scheduler: str
    """What to ask a scheduler for, per node: Slurm's --mem, whose G is GiB."""


class Parameters(AnswerPart):
    total: int
    trainable: int
    active: int


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
    """Per GPU, recomputation included."""
    tflops_per_gpu: float
    """What is done of them in a second."""
    mfu: float
    """Of the dense peak, without what is recomputed."""
    hfu: float
    """With it."""
    bottleneck: str
    """What most of the time goes to."""
    parts: list[TimePart]
    """Largest first; they sum to the step."""
    range_seconds: tuple[float, float]
    range_reason: str


class Course(AnswerPart):
    """The whole run, if the job says how much it processes."""

    steps: int
    """Of the optimizer."""
    tokens: int
    """That are learned from."""
    computed_tokens: int
    """Of all batches: with padding, and with what the last batches lack."""
    epochs: float | None
    hours: float | None
    """By the clock."""
    range_hours: tuple[float, float] | None
    parts: dict[str, float]
    """Hours by what they go to: training, set_up, evaluation, saving, restarts."""
    gpu_hours: float | None
    """Those hours on all GPUs."""


class TokenCost(AnswerPart):
    """What a million tokens cost, as decimal text, on hardware that is always busy."""

    million_input: str
    million_output: str
    range_million_input: tuple[str, str]
    range_million_output: tuple[str, str]
    """Of the time alone, at one price."""
    currency: str
    price_per_hour: str
    """Of all the hardware."""
    price_source: str
    price_as_of: str | None


class ServingTime(AnswerPart):
    """How fast requests are answered, each replica with as many sequences at a time as the job says."""

    prompt_tokens: int
    output_tokens: int
    sequences: int
    """At the same time, on all replicas."""
    prefill: Time
    """Reading a prompt (or those of a batch, in transformers) with nothing else running."""
    decode: Time
    """A token for each sequence, halfway through the answers."""
    time_to_first_token_seconds: float
    """Of a request that does not wait for others."""
    time_to_first_token_queued_seconds: float
    """Of the last, where as many prompts as there are sequences come at once."""
    time_per_output_token_seconds: float
    """With the prompts of other requests that are read meanwhile."""
    range_time_per_output_token_seconds: tuple[float, float]
    request_seconds: float
    range_request_seconds: tuple[float, float]
    requests_per_second: float
    input_tokens_per_second: float
    output_tokens_per_second: float
    output_tokens_per_second_per_gpu: float
    cost: TokenCost | None
    """None: no price is known."""


class Rank(AnswerPart):
    """A pipeline stage's GPUs, which hold the same."""

    stage: int
    gpus: int
    layers: tuple[int, int] | None
    """The first and the last of its first chunk; None: it has none."""
    chunks: list[tuple[int, int] | None]
    """The same of each chunk that it holds."""
    embedding: bool
    output: bool
    """Whether it has the input embedding, and the output layer and the loss."""
    micro_batches: int
    """Those whose activations it holds at once, each counted for every chunk in which it waits."""
    peak_bytes: int
    peak_phase: str
    resident_bytes: int


class Traffic(AnswerPart):
    """What a GPU takes part in to exchange, per optimizer step."""

    operation: str
    """all_gather | reduce_scatter | all_reduce | all_to_all | receive."""
    group: str
    """Whose ranks exchange: data, tensor, context, expert, expert_tensor, expert_data or pipeline."""
    ranks: int
    phase: str
    count: int
    bytes: int
    """Of all together: the whole tensors, which an all-gather makes and a reduce-scatter starts from."""


class Recomputation(AnswerPart):
    """What activation checkpointing costs and saves, per GPU."""

    flops: int
    """Operations of an optimizer step that repeat what forward did."""
    share: float
    """Of the operations that a step has without them."""
    saved_bytes: int
    """By how much the peak is lower than without."""


class Cost(AnswerPart):
    gpu_hours: float | None
    range_gpu_hours: tuple[float, float] | None
    price_per_gpu_hour: str | None
    """Of the GPUs that the job uses: an instance with more is paid for whole."""
    total: str | None
    """None: no price is known; never zero for want of one."""
    range_total: tuple[str, str] | None
    currency: str
    price_source: str
    price_as_of: str | None
    instances: int | None
    """How many are rented; None where none is."""
    parts: dict[str, str]
    """Of the total, where the GPUs are one's own: their purchase, their electricity."""


class Energy(AnswerPart):
    """What the run takes of electricity, cooling and the rest of the site included, and what generating it emits."""

    kwh: float
    range_kwh: tuple[float, float]
    co2e_kg: float
    range_co2e_kg: tuple[float, float]
    grid: str
    """Whose electricity it is."""
    grams_per_kwh: float
    source: str


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
    """Of a served model: a decoding step."""
    serving: ServingTime | None = None
    """None: a training job, or an unnamed card."""
    run: Course | None = None
    communication: list[Traffic] = []
    """Of the rank that needs most."""
    ranks: list[Rank] = []
    """Of a pipeline: the stages that differ, those that were compared to find the one that needs most; or all, where asked."""
    recomputation: Recomputation | None = None
    """None: nothing is recomputed."""
    cost: Cost | None
    energy: Energy | None
    job: dict[str, Any]
    """The job with every default filled in."""
    assumptions: list[str]
    warnings: list[str]
    suggestions: list[str]
    not_modelled: list[str]
    versions: Versions

    def to_json(self) -> str:
        """The one text form: what the command line prints and REST sends, byte for byte."""
        return as_text(self)


def as_text(part: AnswerPart) -> str:
    """The one text form: what the command line prints and REST sends, byte for byte."""
    return json.dumps(part.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
