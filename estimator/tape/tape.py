"""The tape: what one symbolic run allocates and frees, in order.

A storage adds its bytes to the tape when it is born and takes them off when its last reference goes. CPython drops it
at the very moment at which torch would, so a forward pass that is written like the real one has the real lifetimes.
Nothing is summed here: `replay` reads the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from estimator.tape.gpu import AMPERE, Gpu
from estimator.tape.slots import Slot

if TYPE_CHECKING:
    from estimator.tape.autocast import Autocast
    from estimator.tape.checkpoint import Hooks
    from estimator.tape.dtypes import DType
    from estimator.tape.layout import Shape
    from estimator.tape.offload import Copy
    from estimator.tape.selective import Cached, Caching
    from estimator.tape.tensor import Tensor

Form = tuple["Shape", "DType"]
"""The shape and the type of the tensor that a storage was made for."""

ALLOCATION_STEP = 512
"""Bytes; CUDA's caching allocator rounds every allocation up to a multiple (`kMinBlockSize`, CUDACachingAllocator.cpp)."""

HOST, SAVED = "host", "saved"
"""Groups of what one rank copies to and from its host's memory: while its kernels run, and between them (`save_on_cpu`)."""
ONCE = "optimizer_step"
"""The phase that counts what is exchanged once per step, wherever it is."""

# What a storage is counted as at the peak.
PARAMETER, GRADIENT, OPTIMIZER_STATE, KV_CACHE, ACTIVATION, LOSS, COMMUNICATION, OTHER_MODEL, TEMPORARY = COMPONENTS = (
    "parameters",
    "gradients",
    "optimizer_states",
    "kv_cache",
    "activations",
    "logits_and_loss",
    "communication_buffers",
    "other_models",
    "temporaries",
)


GROUPED = "grouped_mm"
"""Products of several groups, one after the other."""
PACKED = "_packed_mm"
"""Products with weights as they are stored: what follows the format's name in their operation."""
EXPERTS = "_experts"
"""All products of a layer's experts, as a server runs them: what follows the format's name, if there is one. Their form is of
the experts that are touched, the rows of all, [n, k] of all products of one together, and the experts that are held."""


class Mark(NamedTuple):
    """From event number `start` on, the run was in this slot."""

    start: int
    slot: Slot | None


class Phase(NamedTuple):
    """From event number `start` on, the run was in this phase; a phase can occur several times.

    `passes`: micro-batches that it is counted for; none where it is a further part of a pass, or where nothing is counted (None).
    `aside`: it is simulated for its kernels alone, and is not a part of the step's course.
    """

    start: int
    name: str
    passes: int | None = 1
    aside: bool = False


class Generating(NamedTuple):
    """A pass of a model that writes: of so many sequences, at whose end each cache has `length` tokens."""

    sequences: int
    length: int


class Recomputation(NamedTuple):
    """From event number `start` to `stop`, backward ran again what forward had run in this slot."""

    start: int
    stop: int
    slot: Slot | None


class Work(NamedTuple):
    """One kernel: its floating-point operations and the bytes that it reads and writes, in this phase and slot; `repeated` if
    forward had done them before, `late` if it makes a weight's gradient that a pipeline's schedule may put off.

    `form`: of a product its (count, m, n, k) and the type that it multiplies; of attention that never holds the scores
    (heads of all sequences, queries, keys, head size, whether keys behind a query are left out); else None. `source`: the
    storage of what a linear layer multiplies, 0 where that is not said.
    """

    operation: str
    flops: int
    nbytes: int
    form: Form | None
    phase: str
    slot: Slot | None
    repeated: bool
    source: int = 0
    late: bool = False


class Traffic(NamedTuple):
    """One exchange among the ranks of a group, of so many bytes (tape/collectives.py), in this phase and slot.

    `later`: not in the first occurrence of its phase. `beside`: how a product next to it may hide it, where one may
    (timing/userbuffers.py), and `at`: how many kernels the tape had then.
    """

    operation: str
    group: str
    ranks: int
    nbytes: int
    phase: str
    slot: Slot | None
    later: bool = False
    beside: str = ""
    at: int = 0


class Tape:
    """Events of one run, and the state that torch keeps per thread: gradient mode, autocast, saved-tensor hooks.

    `events` holds `+i` when storage `i` is born and `-i` when it dies; `sizes`, `components`, `operations`, `slots` and `forms`
    say how large storage `i` is (rounded up as the allocator does), what it is counted as, which operation made it and where,
    and of which shape and type (None where that is not known).
    """

    def __init__(self, gpu: Gpu = AMPERE, step: int = ALLOCATION_STEP) -> None:
        self.gpu = gpu
        self.step = step
        """Bytes that every allocation is rounded up to a multiple of."""
        self.host: Tape | None = None
        """What this rank keeps in the host's memory (tape/host.py): it goes through the same phases and slots."""
        self.events: list[int] = []
        self.sizes: list[int] = [0]  # storage 0 is nothing: events need a sign
        self.components: list[str] = [TEMPORARY]
        self.operations: list[str] = [""]
        self.slots: list[Slot | None] = [None]
        self.forms: list[Form | None] = [None]
        self.phases: list[Phase] = []
        self.marks: list[Mark] = []
        self.recomputations: list[Recomputation] = []
        self.work: list[Work] = []
        self.traffic: list[Traffic] = []
        self.slot: Slot | None = None
        self.outer: Slot | None = None
        """A slot that all others lie in, for a while."""
        self.nested: dict[Slot, Slot] = {}
        """Slots, as they lie in the outer one."""
        self.fresh = TEMPORARY
        """What a new storage is counted as."""
        self.stream = ""
        """The stream whose blocks of the caching allocator a new storage is taken from; the one that computes has no name."""
        self.streams: dict[int, str] = {}
        """Storages of streams that have a name."""
        self.late: set[str] = set()
        """Streams whose blocks another uses, as the allocator is told (`record_stream`): what is freed comes back when the GPU
        has got there, which is one block behind the program."""
        self.kept = ACTIVATION
        """What a temporary becomes when it is saved for backward."""
        self.grad_enabled = False
        self.autocast: Autocast | None = None
        self.saved_tensor_hooks: Hooks | None = None
        self.selection: Caching | Cached | None = None
        """What selective checkpointing does with the results of operations."""
        self.copies: list[Copy] = []
        """What was saved in the host's memory."""
        self.recomputing = False
        self.prefix = 0
        """Keys that every attention layer has before those of the tokens."""
        self.batch_mask = "none"
        """Whether sequences end early (`padding`), or hold several documents (`packed`): then the batch has a mask of its own."""
        self.mask_given = False
        """Whether the batch holds a mask of each sequence, as also trainers of whole sequences give it."""
        self.positions_given = False
        """Whether the batch holds the tokens' positions."""
        self.distributed = False
        """Whether what runs are DTensors: gradients of a tensor's subclass are never added in place."""
        self.evaluating = False
        """Whether models are in evaluation mode: they drop nothing out."""
        self.generating: Generating | None = None
        """The pass in which a model writes that else is trained."""
        self.rows = 1
        """How many sequences have positions of their own in the batch."""
        self.past = 0
        """Tokens of each sequence that its cache has before a pass."""
        self.caching = False
        """Whether attention layers of a model in training keep keys and values, as its output does (`use_cache`)."""
        self.states: list[tuple[Slot | None, Tensor]] | None = None
        """What the first layer got and all layers return, with their slots, where a model's output holds it
        (`output_hidden_states`)."""
        self.adapted = True
        """Whether adapters are part of the layers that they are on."""
        self.remarks: dict[str, None] = {}
        """What a caller should know of how operations ran."""
        self.backward_callbacks: list[Callable[[], None]] = []
        self.sequence = 0
        """Number of the next node of the graph."""
        self.stop: int | None = None
        """Events that count; what is freed later is only the symbolic run being cleared away."""

    def begin(self, phase: str, passes: int | None = 1, aside: bool = False) -> None:
        """Start a phase, outside every slot."""
        self.slot = None
        self.phases.append(Phase(len(self.events), phase, passes, aside))
        self.marks.append(Mark(len(self.events), None))
        if self.host is not None:
            self.host.begin(phase)

    def finish(self) -> None:
        """The run is over."""
        self.stop = len(self.events)
        if self.host is not None:
            self.host.finish()

    @contextmanager
    def counting(self, component: str) -> Iterator[None]:
        """Count what is born meanwhile as `component`, here and on the host."""
        tapes = [tape for tape in (self, self.host) if tape is not None]
        before = [tape.fresh for tape in tapes]
        for tape in tapes:
            tape.fresh = component
        try:
            yield
        finally:
            for tape, component in zip(tapes, before, strict=True):
                tape.fresh = component

    @contextmanager
    def on_stream(self, name: str, late: bool = False) -> Iterator[None]:
        """Take what is born meanwhile from the blocks of a stream of its own, which come back `late` if another uses them."""
        self.stream, before = name, self.stream
        if late:
            self.late.add(name)
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def losing(self) -> Iterator[None]:
        """Count what is born or saved meanwhile as part of logits and loss."""
        self.fresh = self.kept = LOSS
        try:
            yield
        finally:
            self.fresh, self.kept = TEMPORARY, ACTIVATION

    def enter(self, slot: Slot | None) -> Slot | None:
        """Go to a slot; gives the one that was left, to return to."""
        left = self.slot
        if self.outer is not None:
            slot = self._inside(slot)
        if slot is not left:
            self.slot = slot
            self.marks.append(Mark(len(self.events), slot))
            if self.host is not None:
                self.host.enter(slot)
        return left

    @contextmanager
    def within(self, outer: Slot) -> Iterator[None]:
        """Run something in a slot of its own, with all slots that it goes to: a micro-batch that stands for several.

        Its work counts nothing: that is counted of one micro-batch outside.
        """
        self.outer, left = outer, self.slot
        self.enter(left)
        yield
        self.outer = None
        self.nested.clear()
        self.enter(left)

    def _inside(self, slot: Slot | None) -> Slot:
        """A slot as it lies in the outer one."""
        outer = self.outer
        assert outer is not None
        if slot is None or slot.path[0] is outer:
            return slot or outer
        if slot not in self.nested:
            parent = self._inside(slot.parent)
            self.nested[slot] = Slot(slot.label, slot.repeat, parent, slot.stack, slot.start, slot.step)
        return self.nested[slot]

    @property
    def counts(self) -> bool:
        """Whether what is computed and exchanged is counted: not of what stands for several, or is simulated for its bytes
        alone."""
        return self.outer is None and self.phases[-1].passes is not None

    def passes(self, phase: str) -> int:
        """Micro-batches that a phase is counted for, all its occurrences together; at least one."""
        return max(1, sum(one.passes or 0 for one in self.phases if one.name == phase))

    def compute(
        self, operation: str, flops: int, nbytes: int = 0, form: Form | None = None, source: int = 0, late: bool = False
    ) -> None:
        """Record a kernel's floating-point operations, and the bytes that it reads and writes."""
        phase = self.phases[-1]
        if self.outer is None and phase.passes is not None:  # `counts`, which so many calls would make slow
            self.work.append(Work(operation, flops, nbytes, form, phase.name, self.slot, self.recomputing, source, late))

    def multiply(
        self,
        m: int,
        n: int,
        k: int,
        dtype: DType,
        count: int = 1,
        operation: str = "mm",
        output_bytes: int | None = None,
        source: int = 0,
        late: bool = False,
    ) -> None:
        """Record `count` matrix products [m, k] x [k, n] of operands of a type. `output_bytes`: what is read and written for each
        number of the result, if not one of the operands' type."""
        written = dtype.itemsize if output_bytes is None else output_bytes
        nbytes = count * ((m * k + k * n) * dtype.itemsize + m * n * written)
        self.compute(operation, 2 * count * m * n * k, nbytes, ((count, m, n, k), dtype), source, late)

    def communicate(
        self, operation: str, group: str, ranks: int, nbytes: int, phase: str | None = None, beside: str = ""
    ) -> None:
        """Record what the ranks of a group exchange: now, or in a `phase` that it counts in; `beside` a product, if so."""
        if self.counts:
            name = phase or self.phases[-1].name
            later = sum(one.name == name for one in self.phases) > 1
            self.traffic.append(Traffic(operation, group, ranks, nbytes, name, self.slot, later, beside, len(self.work)))

    def copy(self, operation: str, nbytes: int, group: str = HOST) -> None:
        """Record a copy `to_host` or `from_host`."""
        self.communicate(operation, group, 1, nbytes)


class Storage:
    """Bytes on the device, from their birth to the last reference."""

    __slots__ = ("__weakref__", "form", "index", "nbytes", "tape")

    def __init__(self, tape: Tape, nbytes: int, operation: str, form: Form | None = None, filled: bool = True):
        self.tape = tape
        self.nbytes = nbytes
        self.form = form
        self.index = 0
        if filled:
            self.refill(operation)

    def __del__(self) -> None:
        if self.index:
            self.tape.events.append(-self.index)

    def release(self) -> None:
        """Give the bytes back while tensors still point here (`UntypedStorage.resize_(0)`)."""
        if self.index:
            self.tape.events.append(-self.index)
            self.index = 0

    def refill(self, operation: str) -> None:
        """Take the bytes again after `release`."""
        if not self.index:
            tape = self.tape
            self.index = index = len(tape.sizes)
            tape.sizes.append(-(-self.nbytes // tape.step) * tape.step)
            tape.components.append(tape.fresh)
            tape.operations.append(operation)
            tape.slots.append(tape.slot)
            tape.forms.append(self.form)
            if tape.stream:
                tape.streams[index] = tape.stream
            tape.events.append(index)

    def hand_over(self, other: Storage) -> None:
        """Give the bytes to another storage that has none; the tape sees nothing of it."""
        other.index, self.index = self.index, 0

    def count_as(self, component: str) -> None:
        """Say what these bytes are, for the whole of their life."""
        self.tape.components[self.index] = component
