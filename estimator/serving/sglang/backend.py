"""Models that SGLang has no implementation of and runs as transformers' modules, with its own attention and embeddings.

After sglang/srt/models/transformers.py (`recursive_replace`, `_create_attention_instances`, `replace_vocab_embed_class`),
model_loader/utils.py and managers/scheduler.py (`init_chunked_prefill`) of 0.5.23. Layers that read the same stay apart; what
transformers' plan of tensor parallelism does not name, such as what sees images, is on every rank; there
are no tables of rotations.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Serving
from estimator.families.cache_layers import CacheLayer
from estimator.families.spec import ModelSpec
from estimator.serving.sglang.ranks import Ranks
from estimator.serving.sglang.settings import NEWEST, multimodal, release
from estimator.serving.tensors import Held, divided, held, whole_tensors

MOST_PROMPT = 16384
"""Tokens of prompts that are read at once where none is cut (`max_prefill_tokens`); a longer prompt is read alone."""


def runs_modules(spec: ModelSpec) -> bool:
    """Whether SGLang runs transformers' modules of this model."""
    return spec.in_sglang == "transformers"


def held_by_sglang(spec: ModelSpec, ranks: Ranks) -> tuple[Held, ...]:
    """The tensors of one rank."""
    tensor = ranks.tensor
    if spec.whole_ears_in_sglang and tensor > 1:
        rest = [each for each in _shared(spec, ranks) if not each.heard]
        return (*rest, *[each for each in held(spec, stage=ranks.stage) if each.heard])
    return _shared(spec, ranks)


def _shared(spec: ModelSpec, ranks: Ranks) -> tuple[Held, ...]:
    tensor = ranks.tensor
    if not runs_modules(spec):
        return tuple(
            _with_keys(each, spec, tensor)
            for each in held(
                spec, tensor, ranks.experts if ranks.experts > 1 else 0, spec.pooled_in_sglang, ranks.stage, ranks.spread
            )
            if not (each.seen and spec.images_in_sglang == "left out")
        )
    keys, whole = CacheLayer("full", tensor), spec.language_model.unplanned
    return tuple(
        each if each.seen or any(part in each.name for part in whole) else divided(each, tensor, keys, 0)
        for each in whole_tensors(spec)
    )


def _with_keys(each: Held, spec: ModelSpec, tensor: int) -> Held:
    """With what would make keys and values in layers that take those of others, where SGLang has it."""
    if not spec.idle_in_sglang or each.end != "q_proj":
        return each
    keys = spec.cache_layers[0]
    more = max(1, keys.heads // tensor) * (keys.key_size + keys.value_size)
    return replace(each, shape=(each.shape[0] + more, each.shape[1]))


def tokens_at_once(serving: Serving, spec: ModelSpec) -> int:
    """Tokens of prompts of a pass, of each part of the ranks that has attention of its own: with images none is cut."""
    if runs_modules(spec) and multimodal(spec):
        return max(MOST_PROMPT, serving.context)
    return (serving.chunked_prefill_size or serving.context) // (serving.attn_dp_size or 1)


def check_backend(job: Job, spec: ModelSpec) -> None:
    """Raise `InvalidJob` or `NotModelled` for models that SGLang does not run, or not so."""
    if spec.in_sglang == "own":
        return
    kind, ranks = spec.model_type, job.parallelism.tensor
    if spec.in_sglang == "none":
        raise NotModelled(
            f"SGLang runs no {kind} models: it has no implementation of its own, and {spec.why_not_sglang}: write engine vllm",
            "serving.engine",
        )
    if spec.in_sglang == "not read":
        raise NotModelled(
            f"whether SGLang runs {kind} models is not known: it has no implementation of its own, and how it runs transformers' "
            "modules of them was not read: write engine vllm",
            "serving.engine",
        )
    if release(job.serving.engine_version) < NEWEST:
        newest = ".".join(map(str, NEWEST))
        raise NotModelled(f"transformers' modules are modelled as SGLang {newest} runs them", "serving.engine_version")
    heads = {layer.heads for layer in spec.cache_layers}
    if any(count % ranks for count in heads):
        raise Contradiction(
            f"SGLang divides {' and '.join(map(str, sorted(heads)))} key heads of transformers' modules evenly: write a divisor",
            "parallelism.tensor",
        )
