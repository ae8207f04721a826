"""The kernels of a served model's passes, for their time."""

from __future__ import annotations

from estimator.contract.job import Job, Serving
from estimator.families.kernels import EAGER, SERVER
from estimator.families.kv_cache import HeldCache
from estimator.families.spec import DecoderSpec
from estimator.parallel.topology import Topology, tensor_shard
from estimator.serving.engines import ENGINES, engine_of
from estimator.serving.model import built
from estimator.serving.passes import Requests, serve
from estimator.tape import dtypes
from estimator.tape.gpu import AMPERE, Gpu
from estimator.tape.tape import Tape

CHUNK = 2048
"""Tokens of prompts that vLLM takes in one pass (`max_num_batched_tokens`, default of the offline engine's V1 scheduler)."""


def trace_speed(job: Job, spec: DecoderSpec, topology: Topology, gpu: Gpu = AMPERE) -> Tape:
    """The kernels of a job that has been traced, as its engine runs them, on a new tape: a prompt in one pass (in
    transformers those of a batch), then a decoding step of answers that are half written."""
    asked, kernels = job.serving, SERVER if engine_of(job).continuous else EAGER
    prompt, output = asked.lengths
    length = min(prompt + output // 2, spec.window or asked.context)
    dtype = dtypes.BY_NAME[asked.kv_cache]
    shard = tensor_shard(spec, topology.tensor)
    build, model = built(job, shard, gpu, lambda tape: HeldCache(length, dtype, kernels is EAGER), kernels)
    serve(build, model, Requests(asked.concurrency, prompt), prompts(asked))
    return build.tape


def prompts(serving: Serving) -> int:
    """How many prompts are read at once: a server takes requests as they come, `generate` of transformers a batch of them."""
    engine = ENGINES[serving.engine]
    return 1 if engine.continuous or engine.reads_gguf else serving.concurrency
