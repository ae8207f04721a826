"""What vLLM holds of a model that gives vectors of texts: its pooling runner, with a cache or, of an encoder, without one.

After v1/engine/core.py (`_initialize_kv_caches`: without layers that cache nothing is profiled, and no cache is made),
v1/worker/gpu/pool/pooling_runner.py (`dummy_pooler_run`), model_executor/layers/pooler (`TokenEmbeddingPoolerHead`,
`EmbeddingPoolerHead`: vectors in float32), model_executor/models/bert.py, roberta.py, modernbert.py and siglip.py of 0.33, which
load no output layer; of electra, distilbert and eurobert models/transformers/pooling.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Serving
from estimator.families.spec import ModelSpec
from estimator.parallel.topology import Topology
from estimator.serving.activations import widest_layer
from estimator.serving.tensors import Held
from estimator.serving.vllm.profile import Pass
from estimator.serving.vllm.settings import ENCODERS, release
from estimator.tape import dtypes

GATED = ("Wi", "gate_proj+up_proj")
"""Layers half of whose outputs are multiplied with the other half."""
VECTORS = 2 * dtypes.float32.itemsize
"""Bytes of a number of the vectors: in float32, and normalized."""


def check_runner(asked: Serving, spec: ModelSpec, place: Topology) -> None:
    """Raise `InvalidJob` or `NotModelled` for a runner that a model does not go with."""
    if spec.encodes and asked.runner == "generate":
        raise Contradiction(f"{spec.model_type} models write no text: leave it out, or write pooling", "serving.runner")
    if spec.encodes and release(asked.engine_version) < ENCODERS:
        raise NotModelled("vLLM with encoders is modelled since 0.11", "serving.engine_version")
    if asked.runner == "pooling" and not spec.encodes and any(each.kind == "cross" for each in spec.cache_layers):
        raise Contradiction(f"vLLM makes no vectors with {spec.model_type} models: write generate", "serving.runner")
    if asked.runner == "pooling" and place.pipeline > 1:
        raise NotModelled("vLLM's pooling runner over a pipeline is not modelled", "parallelism.pipeline")
    if spec.encodes and asked.max_num_batched_tokens and asked.max_num_batched_tokens < asked.context:
        raise Contradiction(
            f"vLLM reads a text of an encoder in one pass: {asked.max_num_batched_tokens} tokens are less than the context of "
            f"{asked.context}",
            "serving.max_num_batched_tokens",
        )


def pooled_bytes(spec: ModelSpec, run: Pass, parts: Sequence[Held]) -> int:
    """The highest of torch's memory beside the weights: one layer, or the vectors of all tokens, of a rank that holds `parts`.

    Vectors of all tokens are what the profile run makes; an encoder is not profiled, and makes one for each text.
    """
    text = spec.language_model
    hidden = run.tokens * text.hidden_size
    if not spec.encodes:
        layer = widest_layer(text, [each for each in parts if not each.seen], run.tokens, run.plain, 0)
        return run.workspace + max(layer, hidden * (run.plain + VECTORS))
    return run.workspace + max(_layer(parts, run), hidden * run.plain + run.rows * text.hidden_size * VECTORS)


def _layer(parts: Sequence[Held], run: Pass) -> int:
    """The widest layer of an encoder where its feed-forward part is activated: the residual, what the first product gives, and
    what the activation makes of it."""
    widest = 0
    for each in parts:
        if each.kind == "linear" and each.layer is not None:
            outputs, inputs = each.shape
            made = outputs // 2 if each.end in GATED else outputs
            widest = max(widest, inputs + outputs + made if outputs > inputs else 0)
    return widest * run.tokens * run.plain
