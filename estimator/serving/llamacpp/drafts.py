"""A smaller model that guesses tokens ahead for llama.cpp's server.

After common/speculative.cpp (`common_base_params_to_speculative`, `common_speculative_get_output_limits`) and
tools/server/server-context.cpp of 2026: a second context as long as the model's, with as many sequences, a cache of its own in
float16, and a graph that gives a token of each sequence logits; the model's own graph gives them to every guess, and one more.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.contract.errors import Contradiction
from estimator.contract.job import Serving
from estimator.families.from_config import from_mapping
from estimator.families.spec import ModelSpec
from estimator.serving.llamacpp.models import check_graph
from estimator.serving.llamacpp.placement import OnGpu, Placed, placed

MOST = 3
"""Tokens that are guessed ahead at most, unasked (common/common.h, `n_max`)."""
FIELD = "serving.model_draft"


def outputs(asked: Serving) -> int | None:
    """Tokens of a pass that have logits, unasked; None where nothing is guessed."""
    return None if asked.model_draft is None else asked.concurrency * (1 + (asked.spec_draft_n_max or MOST))


def check_draft(asked: Serving, spec: ModelSpec) -> None:
    """Raise `InvalidJob` or `NotModelled` for a smaller model that llama.cpp does not take, or is not modelled taking."""
    if asked.model_draft is None:
        for name in ("weights_draft", "gpu_layers_draft", "spec_draft_n_max"):
            if getattr(asked, name) is not None:
                raise Contradiction(
                    "no smaller model guesses ahead: leave it out, or write serving.model_draft", f"serving.{name}"
                )
        return
    draft = _spec(asked)
    check_graph(draft, FIELD)
    if spec.encodes or draft.encodes:
        kind = spec.model_type if spec.encodes else draft.model_type
        raise Contradiction(f"{kind} models give vectors and write no text, of which nothing guesses ahead: leave it out", FIELD)


def with_draft(found: Placed, asked: Serving, gpus: int) -> Placed:
    """What each GPU and the host hold, with the smaller model."""
    if asked.model_draft is None:
        return found
    own = {
        "weights": asked.weights_draft or asked.weights,
        "gpu_layers": asked.gpu_layers_draft,
        "kv_cache": "fp16",
        "outputs": asked.concurrency,
        **dict.fromkeys(("values_cache", "cpu_moe", "n_cpu_moe", "override_tensor", "model_draft")),
    }
    draft = placed(asked.model_copy(update=own), _spec(asked).language_model, gpus, cuda=gpus > 0)
    both = [_together(one, other) for one, other in zip(found.gpus, draft.gpus, strict=True)]
    return Placed(tuple(both), {name: nbytes + draft.host.get(name, 0) for name, nbytes in found.host.items()})


def _spec(asked: Serving) -> ModelSpec:
    if not isinstance(asked.model_draft, dict):
        raise Contradiction("write the smaller model, such as llama-3.2-1b of llama-3.1-70b", FIELD)
    return from_mapping(asked.model_draft, FIELD)


def _together(one: OnGpu, other: OnGpu) -> OnGpu:
    return replace(one, weights=one.weights + other.weights, cache=one.cache + other.cache, compute=one.compute + other.compute)
