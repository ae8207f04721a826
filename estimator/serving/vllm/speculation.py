"""How vLLM guesses tokens ahead, and what that takes of torch's memory in the profile run.

After config/speculative.py (`SpeculativeConfig`) and the second model runner of 0.33, v1/worker/gpu: model_runner.py
(`_dummy_run`), structured_outputs.py, spec_decode/speculator.py (`DraftModelSpeculator`), target_dependent_ar/speculator.py and
standalone_ar/speculator.py. Before the pass is sampled, what guesses runs over its tokens, too:

    hidden states + of EAGLE-3 three layers' of them, and they joined + one layer of what guesses
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Serving
from estimator.contract.job.speculation import Speculative
from estimator.families.from_config import from_mapping
from estimator.families.spec import ModelSpec
from estimator.parallel.topology import Topology
from estimator.serving.activations import widest_layer
from estimator.serving.drafts import AUXILIARY, VOCABULARY, Drafter, Kind, head_of, shipped
from estimator.serving.tensors import Held
from estimator.serving.vllm.settings import SECOND_RUNNER, release
from estimator.tape import dtypes

FIELD = "serving.speculative_config"
UNKNOWN = (
    "of which how many are right is not known: times are those of none, and their ranges reach to all "
    "(serving.speculative_acceptance)"
)
BITS = 32
"""Tokens that a number of a grammar's mask tells of."""


@dataclass(frozen=True, slots=True)
class Guessing:
    """Bytes of one rank: what is `kept` from the start, and the `peak` while what guesses runs over the pass."""

    kept: int = 0
    peak: int = 0


NOTHING = Guessing()


def drafter_of(asked: Serving, spec: ModelSpec) -> Drafter | None:
    """What guesses, of a job's settings; None where nothing does. Raises `InvalidJob` and `NotModelled`."""
    given = asked.speculative_config
    if given is None:
        return None
    tokens = given.num_speculative_tokens
    if given.method in ("ngram", "ngram_gpu"):
        return Drafter("text", tokens, 0)
    if given.method == "mtp":
        if shipped(spec) is None:
            raise NotModelled(
                f"no layers are known that a checkpoint of this {spec.language_model.model_type} model ships to predict further "
                "tokens: write method eagle3, draft_model or ngram",
                f"{FIELD}.method",
            )
        return Drafter("layers", tokens, tokens)
    if given.method == "draft_model":
        return Drafter("model", tokens, tokens, _model(given), given.quantization or "bf16")
    head = head_of(given.model, spec, f"{FIELD}.model")
    kind: Kind = "eagle" if given.method == "eagle" else "eagle3"
    return Drafter(kind, tokens, tokens, head, vocabulary=given.draft_vocab_size or VOCABULARY)


def _model(given: Speculative) -> ModelSpec:
    if not isinstance(given.model, dict):
        raise Contradiction("write the smaller model, such as llama-3.2-1b of llama-3.1-70b", f"{FIELD}.model")
    return from_mapping(given.model, f"{FIELD}.model")


def check_speculation(asked: Serving, spec: ModelSpec, place: Topology) -> None:
    """Raise `InvalidJob` or `NotModelled` for guesses that vLLM does not make, or is not modelled making."""
    given = asked.speculative_config
    if given is None:
        return
    if asked.runner == "pooling":
        raise Contradiction("vectors are not written token by token: leave it out", FIELD)
    if release(asked.engine_version) < SECOND_RUNNER:
        raise NotModelled("guessing ahead is modelled since vLLM 0.30, whose second runner does it", "serving.engine_version")
    if place.pipeline > 1:
        raise NotModelled("guessing ahead over a pipeline is not modelled", "parallelism.pipeline")
    if any(layer.kind == "cross" for layer in spec.cache_layers):
        raise NotModelled(f"guessing ahead with {spec.model_type} models is not modelled", FIELD)
    for name, methods in (("draft_vocab_size", ("eagle3",)), ("model", ("draft_model", "eagle", "eagle3"))):
        if getattr(given, name) is not None and given.method not in methods:
            raise Contradiction(f"method {given.method} has none: leave it out", f"{FIELD}.{name}")
    drafter = drafter_of(asked, spec)
    assert drafter is not None
    vocabulary = getattr(spec.language_model, "vocab_size", 0)
    if drafter.kind == "model" and getattr(drafter.spec, "vocab_size", 0) != vocabulary:
        raise Contradiction(
            f"the smaller model has {getattr(drafter.spec, 'vocab_size', 0):,} tokens and the model {vocabulary:,}: vLLM takes "
            "one with the same tokens",
            f"{FIELD}.model",
        )
    if drafter.kind == "model" and drafter.spec is not None and not drafter.spec.cache_layers:
        raise NotModelled(f"{drafter.spec.model_type} models as smaller ones are not modelled", f"{FIELD}.model")


def guessing(asked: Serving, drafter: Drafter | None, spec: ModelSpec, parts: Sequence[Held], plain: int) -> Guessing:
    """What guessing takes of a rank that holds `parts` of what guesses, in numbers of `plain` bytes.

    A place for the hidden states of a pass, masks of grammars for every guessed token, and of drawn guesses their logits stay.
    """
    given = asked.speculative_config
    if drafter is None or given is None:
        return NOTHING
    assert asked.max_num_batched_tokens
    assert asked.max_num_seqs
    text, tokens, rows = spec.language_model, asked.max_num_batched_tokens, asked.max_num_seqs
    vocabulary = int(getattr(text, "vocab_size", 0))
    kept = rows * drafter.tokens * -(-vocabulary // BITS) * dtypes.int32.itemsize
    if drafter.kind == "text":
        return Guessing(kept)
    if given.draft_sample_method == "probabilistic":
        kept += rows * drafter.tokens * vocabulary * plain
    wide = text.hidden_size * tokens * plain
    own = drafter.spec.language_model if drafter.spec is not None else text
    layer = widest_layer(own, list(parts), tokens, plain, 0)
    if drafter.kind == "model":
        return Guessing(kept, wide + layer)
    states = own.hidden_size * tokens * plain
    heard = AUXILIARY * wide if drafter.kind == "eagle3" else 0
    joining = heard + states if heard else 4 * states
    return Guessing(kept + states, wide + heard + max(joining, states + layer))


def said(asked: Serving) -> list[str]:
    """What is guessed, and how it is taken."""
    given = asked.speculative_config
    if given is None:
        return []
    what = {
        "ngram": "by what the text before has",
        "ngram_gpu": "by what the text before has",
        "draft_model": f"by a smaller model, in {given.quantization or 'bf16'}",
        "mtp": "by layers that the checkpoint ships, stored as the others are",
    }.get(given.method, "by a head")
    if given.method in ("eagle", "eagle3") and not isinstance(given.model, dict):
        named = f", {given.model}, which was not read," if given.model else ""
        what = f"by a head{named} taken for one of Llama's layers as wide as the model's"
    known = asked.speculative_acceptance
    times = f"of which each is right with {known:.0%} if those before it were" if known is not None else UNKNOWN
    return [f"{given.num_speculative_tokens} tokens are guessed ahead {what}, {times}"]
