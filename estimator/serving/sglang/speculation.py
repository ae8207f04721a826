"""How SGLang guesses tokens ahead, by its own settings.

After sglang/srt/arg_groups/speculative_hook.py (`_handle_eagle_family`, `_handle_ngram`, `_auto_choose_speculative_params`),
speculative/eagle_worker_v2.py and model_executor/pool_configurator.py of 0.5.23. The model's pool is sized as if each layer of
what guesses kept as much of a token as one of its own.
"""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Serving
from estimator.families.from_config import from_mapping
from estimator.families.spec import ModelSpec
from estimator.hardware.capacity import Capacity
from estimator.serving.drafts import Drafter, draft_cache, head_of, shipped
from estimator.serving.engine import Default
from estimator.serving.sglang.settings import NEWEST

ALGORITHM, MODEL = "serving.speculative_algorithm", "serving.speculative_draft_model_path"
SETTINGS = frozenset(
    {
        "speculative_algorithm",
        "speculative_draft_model_path",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "speculative_acceptance",
    }
)
CHAIN, TREE = (3, 1, 4), (5, 4, 8)
"""Passes of what guesses, tokens that each branches into, and tokens that are verified, unasked: TREE beside Llama's models,
but CHAIN where a smaller model guesses."""
TEXT = 12
"""Tokens that are verified where the text before guesses, unasked."""
RUNNING = 48
"""`max_running_requests` unasked, where tokens are guessed ahead."""


def _unasked(serving: Serving, spec: ModelSpec, at: int) -> int | None:
    """Of the three settings the one `at`; None where nothing is guessed."""
    if serving.speculative_algorithm is None:
        return None
    steps, branches, verified = TREE if spec.model_type == "llama" and serving.speculative_algorithm != "STANDALONE" else CHAIN
    if serving.speculative_algorithm == "NGRAM":
        return (None, None, TEXT)[at]
    steps = serving.speculative_num_steps or steps
    branches = serving.speculative_eagle_topk or branches
    return (steps, branches, steps + 1 if branches == 1 else verified)[at]


def _default(field: str, at: int) -> Default:
    def value(job: Job, spec: ModelSpec, card: Capacity) -> Any:
        return _unasked(job.serving, spec, at)

    return Default(field, value, "SGLang's own for the model")


DEFAULTS = (
    _default("speculative_num_steps", 0),
    _default("speculative_eagle_topk", 1),
    _default("speculative_num_draft_tokens", 2),
    Default(
        "max_running_requests",
        lambda job, spec, card: RUNNING if job.serving.speculative_algorithm else None,
        "SGLang's own where tokens are guessed ahead",
    ),
)


def drafter_of(asked: Serving, spec: ModelSpec) -> Drafter | None:
    """What guesses, of a job's settings; None where nothing does. Raises `InvalidJob` and `NotModelled`."""
    algorithm, path = asked.speculative_algorithm, asked.speculative_draft_model_path
    if algorithm is None:
        return None
    verified = asked.speculative_num_draft_tokens or TEXT
    if algorithm == "NGRAM":
        return Drafter("text", verified - 1, 0, verified=verified)
    steps, branches = asked.speculative_num_steps or CHAIN[0], asked.speculative_eagle_topk or CHAIN[1]
    given: dict[str, Any] = {"verified": verified, "branches": branches, "divided": False}
    if algorithm == "STANDALONE":
        if not isinstance(path, dict):
            raise Contradiction("STANDALONE is a smaller model that guesses: write it, such as llama-3.2-1b", MODEL)
        return Drafter("model", steps, steps, from_mapping(path, MODEL), **given)
    if algorithm == "NEXTN" or (algorithm == "EAGLE" and path is None and shipped(spec) is not None):
        if shipped(spec) is None:
            raise NotModelled(
                f"no layers are known that a checkpoint of this {spec.language_model.model_type} model ships to predict further "
                "tokens: write EAGLE3, STANDALONE or NGRAM",
                ALGORITHM,
            )
        return Drafter("layers", steps, steps, **given)
    return Drafter("eagle" if algorithm == "EAGLE" else "eagle3", steps, steps, head_of(path, spec, MODEL), **given)


def check_speculation(asked: Serving, spec: ModelSpec) -> None:
    """Raise `InvalidJob` or `NotModelled` for guesses that SGLang does not make, or is not modelled making."""
    if asked.speculative_algorithm is None:
        for name in sorted(SETTINGS - {"speculative_algorithm", "speculative_acceptance"}):
            if getattr(asked, name) is not None:
                raise Contradiction(
                    "nothing is guessed ahead: leave it out, or write serving.speculative_algorithm", f"serving.{name}"
                )
        return
    if asked.engine_version is not None and not asked.engine_version.startswith(".".join(map(str, NEWEST))):
        raise NotModelled("guessing ahead is modelled as SGLang 0.5.23 does it", "serving.engine_version")
    if any(layer.kind in ("state", "cross") for layer in spec.cache_layers):
        raise NotModelled(f"SGLang guessing ahead with {spec.model_type} models is not modelled: write engine vllm", ALGORITHM)
    drafter_of(asked, spec)
    if (asked.speculative_eagle_topk or 1) == 1 and asked.speculative_algorithm != "NGRAM":
        steps, verified = asked.speculative_num_steps, asked.speculative_num_draft_tokens
        if steps and verified and verified != steps + 1:
            raise Contradiction(
                f"SGLang verifies {steps + 1} tokens after {steps} steps of one guess each: write {steps + 1}",
                "serving.speculative_num_draft_tokens",
            )


def draft_layers(asked: Serving, spec: ModelSpec) -> int:
    """Layers of what guesses, for each of which the pool has room as for one of the model's."""
    return sum(layer.kind != "indexer" for layer in draft_cache(drafter_of(asked, spec), spec))


def said(asked: Serving) -> list[str]:
    """What is guessed, and how it is taken."""
    if asked.speculative_algorithm is None:
        return []
    known = asked.speculative_acceptance
    times = (
        f"a guess is right with {known:.0%} if those before it were"
        if known is not None
        else "how many are right is not known: times are those of none, and their ranges reach to all "
        "(serving.speculative_acceptance)"
    )
    return [
        f"{asked.speculative_algorithm} verifies {asked.speculative_num_draft_tokens} tokens of a sequence in a pass; {times}; a "
        "head without a config is taken for one of Llama's layers as wide as the model's"
    ]
