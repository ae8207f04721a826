"""The kernels of a served model's passes, read from the tensors that its layers hold and what they cache.

For models whose forward pass is not played with a cache: mixtures, sliding windows, latent attention, compressed keys, states. A
server runs a product for each of the joined layers, all experts of a layer in one kernel for what goes up and one for what comes
down (vllm/model_executor/layers/fused_moe), and a norm, a rotation, an activation in a kernel each. Where tokens are guessed
ahead, a decoding step is the passes of what guesses, one after another, and one that verifies a sequence's guesses and one token
more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from estimator.contract.job import Job, Serving
from estimator.families.cache_layers import CacheLayer, indexer_bytes
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.parallel.topology import Topology
from estimator.quantization.formats import parts
from estimator.serving.activations import HEADS
from estimator.serving.drafts import Drafter, draft_cache, draft_tensors
from estimator.serving.engine import compute_type
from estimator.serving.engines import drafter_of
from estimator.serving.speed import prompts
from estimator.serving.tensors import ATTENTION, COMPRESSOR, Held, held
from estimator.serving.weights import format_of, group_of
from estimator.tape import dtypes
from estimator.tape.gpu import Gpu
from estimator.tape.slots import Slot
from estimator.tape.tape import EXPERTS, PACKED, Tape

FLOAT32 = 4
STATES = 5
"""How often each channel of a token is read or written as a prompt goes through a layer that keeps a state: by the convolution in
and out, by the scan in, out and as its gate."""
BLACKWELL = (10, 0)


@dataclass(frozen=True, slots=True)
class Tokens:
    """A pass: sequences, tokens of each that are new, and how many each has in the cache at its end."""

    sequences: int
    each: int
    length: int

    @property
    def all(self) -> int:
        return self.sequences * self.each


def play(
    tape: Tape,
    asked: Serving,
    spec: ModelSpec,
    ranks: int,
    tokens: Tokens,
    tensors: Iterable[Held],
    cached: Iterable[CacheLayer],
    logits: int = 0,
) -> None:
    """Record the kernels of one pass, of one rank that holds `tensors`; `logits`: tokens that have them."""
    _Pass(tape, asked, spec, ranks, tokens, logits).play(tensors, cached)


def trace_kernels(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu) -> Tape:
    """A prompt in one pass, then a decoding step of answers that are half written, on a new tape."""
    tape, asked, drafter = Tape(gpu), job.serving, drafter_of(job, spec)
    experts = place.tensor * asked.enable_expert_parallel
    tensors = [each for each in held(spec, place.tensor, experts) if not each.seen]
    prompt, output = asked.lengths
    length = min(prompt + output // 2, asked.context)
    read = Tokens(prompts(asked), prompt, prompt)
    step = Tokens(asked.concurrency, drafter.checked if drafter else 1, length)
    for phase, tokens in (("prefill", read), ("decode", step)):
        tape.begin(phase)
        logits = step.all if phase == "decode" else tokens.sequences
        play(tape, asked, spec, place.tensor, tokens, tensors, spec.cache_layers, logits)
        if drafter is not None and drafter.passes:
            guessed, passes = (
                (read, 1) if phase == "prefill" else (Tokens(asked.concurrency, drafter.branches, length), drafter.passes)
            )
            _guess(tape, asked, spec, place.tensor, drafter, guessed, passes, tensors)
    tape.finish()
    return tape


def _guess(
    tape: Tape,
    asked: Serving,
    spec: ModelSpec,
    ranks: int,
    drafter: Drafter,
    tokens: Tokens,
    passes: int,
    tensors: Iterable[Held],
) -> None:
    """The passes of what guesses; without an output layer of its own it has the model's."""
    parts = list(draft_tensors(drafter, spec, ranks, ranks * asked.enable_expert_parallel))
    if not any(each.kind == "embedding" for each in parts):
        parts += [each for each in tensors if each.kind == "embedding" and len(each.shape) == 2][-1:]
    assert isinstance(spec, DecoderSpec)
    own = drafter.spec.language_model if drafter.spec is not None else spec
    one = _Pass(tape, drafter.stored(asked), own, ranks, tokens, tokens.sequences, passes)
    one.play([each for each in parts if not each.seen], draft_cache(drafter, spec))


class _Pass:
    """Records the kernels of one pass, or of `passes` that are alike; `logits`: tokens that have them."""

    def __init__(self, tape: Tape, asked: Serving, spec: ModelSpec, ranks: int, tokens: Tokens, logits: int, passes: int = 1):
        self.tape, self.asked, self.spec, self.ranks, self.tokens = tape, asked, spec, ranks, tokens
        self.logits, self.passes, self.dtype = logits, passes, compute_type(asked)
        self.matrices: list[Held] = []
        self.beside = 0
        self.streams = int(getattr(spec, "hc_mult", 0))
        self.queries = int(getattr(spec, "num_attention_heads", 0))
        self.keys = int(getattr(spec, "num_key_value_heads", self.queries))

    def play(self, tensors: Iterable[Held], cached: Iterable[CacheLayer]) -> None:
        """Every tensor's kernel, in the order in which the model holds them, then attention of each layer."""
        tensors = list(tensors)
        tables = [each for each in tensors if each.kind == "embedding" and len(each.shape) == 2]
        for each in tensors:
            self.tape.slot = Slot(each.name, each.times * self.passes)
            if each.kind == "linear" and each.end == "kv_b_proj" and self.tokens.each != self.tokens.length:
                self.absorbed(each)
            elif each.kind == "linear":
                self.product(each, 1, self.tokens.all)
            elif each.kind == "experts" and len(each.shape) == 3:
                self.experts(each)
            elif each.name.endswith("_hc.fn"):
                self.mixed(each)
            elif "norm" in each.name.lower() and len(each.shape) == 1 and each.end != "bias":
                self.normed(each)
        self.tape.slot = Slot("logits", self.passes) if self.passes > 1 else None
        if tables and self.logits:
            self.product(tables[-1], 1, self.logits)
            self.moved(self.logits * tables[-1].shape[0] * (1 + FLOAT32 // self.dtype.itemsize), "_to_copy")
        for layer, times in Counter(self.joined(tuple(cached))).items():
            self.tape.slot = Slot(layer.kind, times * self.passes)
            self.attention(layer)
        self.tape.slot = None

    def joined(self, cached: tuple[CacheLayer, ...]) -> list[CacheLayer]:
        """With the window that a layer of compressed keys sees beside them, since one kernel reads both."""
        windows = [each for each in cached if each.kind == "window"]
        own = [each for each in cached if each.kind == "compressed"]
        if not own:
            return list(cached)
        self.beside = windows[0].tokens or 0
        return windows[len(own) :] + [each for each in cached if each.kind != "window"]

    def moved(self, numbers: float, operation: str) -> None:
        """A kernel that does little but read and write so many numbers."""
        self.tape.compute(operation, 0, round(numbers * self.dtype.itemsize))

    def mixed(self, each: Held) -> None:
        """Streams in the place of one residual: what a block gave is spread over them and they are mixed, with the products that
        say how the next block collapses them; then they are, with its norm (vllm/model_executor/layers/mhc.py,
        `MHCFusedPostPreOp`)."""
        rows, size, streams = self.tokens.all, self.spec.hidden_size, self.streams
        weights = each.numel * FLOAT32 // self.dtype.itemsize
        self.moved(rows * (2 * streams + 1) * size + weights, "mix_streams")
        self.moved(rows * (streams + 1) * size, "collapse_streams")

    def normed(self, each: Held) -> None:
        """Of hidden states with the addition before it, of queries or keys by their heads; what mixes several streams, or
        compresses keys, does so itself."""
        mixed = self.streams and each.layer is not None and each.shape[0] == self.spec.hidden_size
        if mixed or COMPRESSOR in each.name:
            return
        width, heads = each.shape[0], self.queries if "q_norm" in each.name else self.keys
        by_heads = width == getattr(self.spec, "head_dim", None) and each.name.endswith(("q_norm", "k_norm"))
        numbers = 5 * width if width == self.spec.hidden_size else 2 * width * (max(1, heads // self.ranks) if by_heads else 1)
        self.moved(self.tokens.all * numbers, "rms_norm")

    def product(self, each: Held, count: int, rows: int, share: float = 1.0) -> None:
        """`count` products of so many rows with a matrix each, of which `share` of the bytes are read."""
        outputs, inputs = each.shape[-2:]
        nbytes = share * self.bytes_of(each) + count * rows * (inputs + outputs) * self.dtype.itemsize
        form = (count, rows, outputs, inputs), self.dtype
        stored = format_of(each, self.asked)
        name = f"{stored}{PACKED}" if stored else "mm"
        self.tape.compute(name, 2 * count * rows * outputs * inputs, round(nbytes), form)
        if "gate_proj" in each.end or "gate_up" in each.end:
            self.moved(1.5 * count * rows * outputs, "silu_mul")
        elif (self.spec.encodes or each.end == "fc1") and outputs > inputs and not ATTENTION.search(each.name):
            self.moved((1.5 if each.end == "Wi" else 2) * rows * outputs, "gelu")
        if "shared_expert" in each.name and each.end == "down_proj":
            self.moved(3 * rows * outputs, "add_shared")

    def absorbed(self, each: Held) -> None:
        """What makes keys and values of a latent, in a decoding step: queries are multiplied into the latent's space, and what
        attention gives out of it, by heads, in the type that is computed in (vLLM's MLACommonImpl, `W_UK_T` and `W_UV`)."""
        size, rows, count = self.dtype.itemsize, self.tokens.all, max(1, self.queries // self.ranks)
        latent, width = each.shape[-1], each.shape[-2] // count
        values = min(width, int(getattr(self.spec, "v_head_dim", width // 2)))
        for outputs, inputs in ((latent, width - values), (values, latent)):
            nbytes = count * size * (outputs * inputs + rows * (inputs + outputs))
            self.tape.compute("mm", 2 * count * rows * outputs * inputs, nbytes, ((count, rows, outputs, inputs), self.dtype))

    def experts(self, each: Held) -> None:
        """The experts that some token of the pass has chosen, if each chooses as any other would."""
        here, used = each.shape[0], each.used
        every = here * self.ranks if self.asked.enable_expert_parallel else here
        rows = -(-self.tokens.all * used * here // every)
        many = max(1, min(rows, round(here * (1 - (1 - used / every) ** self.tokens.all))))
        self.matrices.append(each)
        if not each.end.startswith("down"):
            return
        held, self.matrices = self.matrices, []
        width, columns = each.shape[-2], sum(one.numel for one in held) // (here * each.shape[-2])
        stored = format_of(each, self.asked) or ""
        nbytes = sum(map(self.bytes_of, held)) * many / here
        form = (many, rows, columns, width, here), self.dtype
        self.tape.compute(f"{stored}{EXPERTS}", 2 * rows * columns * width, round(nbytes), form)
        self.moved(rows, "topk")

    def bytes_of(self, each: Held) -> int:
        """Bytes of the stored tensors that stand for one."""
        name = format_of(each, self.asked)
        if name is None:
            return each.numel * self.dtype.itemsize
        count, sizes = (each.shape[0] if each.kind == "experts" else 1), (each.shape[-2], each.shape[-1])
        return count * sum(part.nbytes for part in parts(name, sizes, group_of(name, self.asked)))

    def attention(self, layer: CacheLayer) -> None:
        """One layer's, of one rank: over the tokens that it sees, or its states."""
        tokens, heads = self.tokens, max(1, (self.queries or layer.heads) // self.ranks)
        if layer.kind == "state":
            self.moved(2 * tokens.sequences * layer.state / self.ranks, "state")
            if tokens.each == tokens.length:
                self.moved(STATES * tokens.all * layer.channels / self.ranks, "scan")
            return
        if layer.kind == "partial":
            kept = tokens.all * layer.key_size * FLOAT32 // self.dtype.itemsize
            self.moved(kept, "keep_partial")  # then of each `rate` one is made, normalised, turned and kept
            self.moved(kept * (layer.tokens or 0) / layer.rate, "compress")
            return
        seen, size = self.seen(layer), layer.key_size
        stored = dtypes.BY_NAME[self.asked.kv_cache].itemsize
        if layer.kind == "indexer":
            self.chosen(layer)
            return
        mine = 1 if layer.kind == "latent" else max(1, layer.heads // self.ranks)
        if not self.spec.learned_positions and layer.kind != "cross":
            self.moved(2 * tokens.all * (heads + mine) * size, "rotate")
        cached = tokens.sequences * seen * mine * (layer.key_size + layer.value_size) * stored
        wide = layer.value_size or size
        whole = tokens.each == tokens.length
        heads = self.filled_up(layer, heads) if whole else heads
        flops = 2 * tokens.all * heads * seen * (size + wide)
        causal = int(tokens.each > 1 and whole and seen == tokens.length and not self.spec.encodes and layer.kind != "cross")
        queries = tokens.each if whole else 1  # those of one sequence read its cache once
        form = (heads * tokens.sequences, queries, seen, size, causal), self.dtype
        name = "cudnn_attention" if self.tape.gpu.prefers_cudnn else "flash_attention"
        self.tape.compute(name, flops, round(cached + 2 * tokens.all * heads * size * self.dtype.itemsize), form)

    def filled_up(self, layer: CacheLayer, heads: int) -> int:
        """Heads of a kernel that reads a prompt: FlashMLA's come in multiples, for compressed keys and the window beside them
        and, on Hopper, for the keys that an indexer picks (vllm/v1/attention/backends/mla/flashmla_sparse.py, `prefill_padding`;
        sglang/srt/layers/attention/dsa_backend.py, `required_padding`). On Blackwell those are read by TensorRT-LLM's kernels,
        and with no more tokens than are picked by those that read all."""
        picked = layer.kind == "latent" and layer.tokens and self.tokens.length > layer.tokens
        if self.beside or (picked and not self.tape.gpu.at_least(BLACKWELL)):
            return -(-heads // HEADS) * HEADS
        return heads

    def seen(self, layer: CacheLayer) -> int:
        """Keys that a token sees of a layer's cache: of compressed ones, of which there are more and more as a prompt is read, in
        the mean, with the window beside them."""
        length = self.tokens.length
        if layer.kind != "compressed":
            return min(length, layer.tokens or length)
        entries = length / layer.rate
        most = min(entries, layer.tokens or entries)
        if self.tokens.each == length:
            most -= most * most / (2 * entries)
        return round(most) + min(length, self.beside)

    def chosen(self, layer: CacheLayer) -> None:
        """An indexer's, which every rank has whole: its heads' products with the keys of all tokens, or of what stands for
        several, in FP8, and the best of their sums."""
        tokens = self.tokens
        entries = max(1, tokens.length // layer.rate)
        heads, nbytes = int(getattr(self.spec, "index_n_heads", 1)), tokens.sequences * entries * indexer_bytes(layer)
        whole = tokens.each == tokens.length
        flops = 2 * tokens.all * heads * entries * layer.key_size // (2 if whole else 1)
        form = (tokens.sequences, tokens.each * heads, entries, layer.key_size), dtypes.float8_e4m3fn
        self.tape.compute("mm", flops, nbytes + tokens.all * heads * layer.key_size, form)
        self.moved(2 * tokens.all * entries * FLOAT32 // self.dtype.itemsize, "topk")
