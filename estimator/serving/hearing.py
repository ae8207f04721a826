"""The kernels of a served model that hears, an encoder of frames before a decoder of texts (Whisper).

After vllm/model_executor/models/whisper.py of 0.33: a prompt's pass encodes each clip, always of full length, and makes keys and
values of its frames once, for every layer of the decoder; a step reads them from the cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from estimator.contract.job import Job
from estimator.families.spec import ModelSpec
from estimator.parallel.topology import Topology
from estimator.serving.kernels import Tokens, play
from estimator.serving.speed import prompts
from estimator.serving.tensors import Held, held
from estimator.tape.gpu import Gpu
from estimator.tape.tape import Tape

ENCODER, CROSS = "encoder.", "encoder_attn"
"""In the names of what encodes, and of attention to what was encoded."""


def hears_apart(spec: ModelSpec) -> bool:
    """Whether a decoder reads what an encoder of its own made of sound."""
    return any(layer.kind == "cross" for layer in spec.cache_layers) and hasattr(spec, "max_source_positions")


def frames(spec: ModelSpec) -> int:
    """Of a clip, which is always of full length."""
    return int(getattr(spec, "max_source_positions"))  # noqa: B009 (a field of all that hear so)


def blocks(spec: ModelSpec) -> tuple[int, int]:
    """Attention and feed-forward blocks of the encoder and of the decoder, each of whose layers attends twice."""
    writing = sum(layer.kind == "cross" for layer in spec.cache_layers)
    return 2 * (spec.depth - writing), 3 * writing


def trace_hearing(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu) -> Tape:
    """A prompt with its clip in one pass, then a decoding step of answers that are half written, on a new tape."""
    tape, asked = Tape(gpu), job.serving
    encoder, decoder = _apart(held(spec, place.tensor))
    prompt, output = asked.lengths
    cross = [layer for layer in spec.cache_layers if layer.kind == "cross"]
    own = [layer for layer in spec.cache_layers if layer.kind != "cross"]
    heard = cross[:1] * spec.num_hidden_layers

    def passes(phase: str, sequences: int, each: int, length: int) -> None:
        tape.begin(phase)
        if phase == "prefill":
            clips = Tokens(sequences, frames(spec), frames(spec))
            play(tape, asked, spec, place.tensor, clips, encoder, heard)
            keys = [replace(one, shape=(one.shape[0] * 2 // 3, one.shape[1])) for one in decoder if _crosses(one)]
            play(tape, asked, spec, place.tensor, clips, keys, ())
        read = [replace(one, shape=(one.shape[0] // 3, one.shape[1])) if _crosses(one) else one for one in decoder]
        play(tape, asked, spec, place.tensor, Tokens(sequences, each, length), read, own, sequences)
        play(tape, asked, spec, place.tensor, Tokens(sequences, each, frames(spec)), (), cross)

    passes("prefill", prompts(asked), prompt, prompt)
    passes("decode", asked.concurrency, 1, min(prompt + output // 2, asked.context))
    tape.finish()
    return tape


def _crosses(one: Held) -> bool:
    """Whether it makes queries, keys and values, joined, of attention to what was encoded."""
    return one.kind == "linear" and CROSS in one.name and "k_proj" in one.name


def _apart(tensors: Iterable[Held]) -> tuple[list[Held], list[Held]]:
    """What encodes, and what writes: the encoder's layers stand before its last norm."""
    tensors = list(tensors)
    last = max(place for place, one in enumerate(tensors) if one.name.startswith(ENCODER))
    return tensors[: last + 1], tensors[last + 1 :]
