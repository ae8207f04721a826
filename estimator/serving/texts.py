"""The kernels of a pass over texts of which vectors are made: an encoder's, or a decoder's without its output layer."""

from __future__ import annotations

from estimator.contract.job import Job
from estimator.families.cache_layers import CacheLayer
from estimator.families.spec import ModelSpec
from estimator.families.windows import FULL, SLIDING
from estimator.parallel.topology import Topology
from estimator.serving.engine import texts_at_once
from estimator.serving.engines import engine_of
from estimator.serving.kernels import Tokens, play
from estimator.serving.tensors import held
from estimator.tape.gpu import Gpu
from estimator.tape.tape import Tape

POOLING = "pooling"
"""The phase of a pass that makes vectors."""


def makes_vectors(job: Job, spec: ModelSpec) -> bool:
    """Whether a server makes vectors of texts, and writes none."""
    return job.task == "serve" and engine_of(job).continuous and (job.serving.runner == "pooling" or spec.encodes)


def trace_texts(job: Job, spec: ModelSpec, place: Topology, gpu: Gpu) -> Tape:
    """One pass, on a new tape."""
    tape, asked = Tape(gpu), job.serving
    tensors = [each for each in held(spec, place.tensor, headless=True) if not each.seen]
    tape.begin(POOLING)
    play(tape, asked, spec, place.tensor, Tokens(texts_at_once(asked), asked.context, asked.context), tensors, attending(spec))
    tape.finish()
    return tape


def attending(spec: ModelSpec) -> tuple[CacheLayer, ...]:
    """What its layers of attention would cache; an encoder caches nothing, but its tokens see as many keys."""
    if not spec.encodes:
        return spec.cache_layers
    heads = int(getattr(spec, "num_attention_heads"))  # noqa: B009 (a field of all that attend)
    size = int(getattr(spec, "head_dim", None) or spec.hidden_size // heads)
    keys = int(getattr(spec, "num_key_value_heads", heads))
    around = getattr(spec, "local_attention", None) or getattr(spec, "sliding_window", None)
    whole, near = CacheLayer("full", keys, size, size), CacheLayer("window", keys, size, size, around)
    return tuple([near if kind == SLIDING else whole for kind in getattr(spec, "kinds", (FULL,) * spec.depth)])
