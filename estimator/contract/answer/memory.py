"""Memory in an answer: of one GPU and of a node, where it is highest, and what an engine makes of it. Bytes are integers."""

from __future__ import annotations

from estimator.contract.answer.part import AnswerPart


class KvCache(AnswerPart):
    """The KV cache of a served model, bytes and tokens on one GPU."""

    bytes_per_token: int
    needed_bytes: int
    available_bytes: int | None
    """Room that the engine leaves for the cache on this GPU; null for an unnamed card."""
    available_tokens: int | None
    available_range_bytes: tuple[int, int] | None = None
    """Lowest and highest value of `available_bytes`: what vLLM and TensorRT-LLM take outside torch and for CUDA graphs, and
    SGLang's process groups, are measured, not derived (facts.yaml in serving/); null for other engines."""


class EngineMemory(AnswerPart):
    """What an engine logs of one rank when it starts, and what its cache then holds. Of the cache null where no GPU was given.

    SGLang logs no activations and profiles none: they, CUDA graphs and what lies outside torch come out of what it leaves free.
    """

    weights_bytes: int
    draft_bytes: int | None = None
    """Of the weights, those of what guesses tokens ahead; null where nothing does."""
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
    see everything (max_total_num_tokens); of TensorRT-LLM those of all its blocks."""
    window_tokens: int | None = None
    """Of SGLang, those that layers with a window have room for, where they have a pool of their own (swa_layer_tokens)."""
    states: int | None = None
    """Of SGLang, sequences whose states it has room for, cached prefixes among them (max_mamba_cache_size)."""
    running_requests: int | None = None
    """Requests that run at the same time at most: of SGLang max_running_requests, of TensorRT-LLM max_batch_size."""
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
    """Most bytes that the caching allocator holds (torch.cuda.max_memory_reserved): on a card that is too small for all its
    cached blocks, what it gets by with, or would need; null where an engine reserves all it may."""
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
