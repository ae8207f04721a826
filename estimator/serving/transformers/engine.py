"""What transformers is, as an engine: `generate`, of a batch of prompts that begin and end together."""

from __future__ import annotations

from estimator.contract.answer import KvCache
from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Serving
from estimator.families.build import Builder
from estimator.families.kv_cache import bytes_per_token, growing
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.parallel.topology import Topology
from estimator.serving.engine import WHOLE, Engine, Logged, compute_type, stored, torch_advice
from estimator.serving.model import built
from estimator.serving.passes import Requests, serve
from estimator.tape import dtypes
from estimator.tape.gpu import Gpu
from estimator.training.quantization import BITSANDBYTES


def trace_transformers(job: Job, spec: ModelSpec, topology: Topology, gpu: Gpu, file: object = None) -> Builder:
    """Play prefill and decoding on a new tape."""
    asked = job.serving
    if topology.tensor > 1:
        raise NotModelled("tensor parallelism is modelled for engine vllm only yet", "parallelism.tensor")
    if not isinstance(spec, DecoderSpec) or not spec.cached:
        raise NotModelled(f"serving {spec.model_type} models is not modelled yet", "task")
    if dtypes.BY_NAME[asked.kv_cache] is not compute_type(asked):
        raise Contradiction(
            f"transformers keeps its cache in the model's type; write {asked.weights}, or engine vllm", "serving.kv_cache"
        )
    own = growing(spec)
    build, model = built(job, spec, gpu, lambda tape: own())
    serve(build, model, Requests(asked.concurrency, asked.context))
    return build


def cache(job: Job, spec: ModelSpec, place: Topology, card: Capacity, gpu: Gpu) -> Logged:
    """The cache that the job needs."""
    assert isinstance(spec, DecoderSpec)
    asked, kind = job.serving, dtypes.BY_NAME[job.serving.kv_cache]
    per_token = bytes_per_token(spec.num_hidden_layers, spec.num_key_value_heads, spec.head_dim, kind)
    needed = per_token * asked.context * asked.concurrency
    return None, KvCache(bytes_per_token=per_token, needed_bytes=needed, available_bytes=None, available_tokens=None)


def assumptions(asked: Serving, spec: ModelSpec) -> list[str]:
    """What is taken of a batch."""
    prompt, output = asked.lengths
    return [
        *stored(asked),
        f"time: prompts of {prompt} tokens and answers of {output}, no prompt read before, and "
        "batches that begin and end together",
    ]


TRANSFORMERS = Engine(
    name="transformers",
    title="transformers",
    settings=frozenset(),
    trace=trace_transformers,
    memory=cache,
    assumptions=assumptions,
    not_modelled=("the host's memory", "loading the checkpoint"),
    smaller_weights=lambda weights: ("int8", "nf4-double") if weights in WHOLE else (),
    advice=torch_advice,
    loads=lambda kind: kind if kind in BITSANDBYTES else None,
    allocates=True,
)
