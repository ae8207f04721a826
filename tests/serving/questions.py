"""Questions to an engine, and which models of the catalogue it answers for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from estimator import estimate
from estimator.contract.answer import Answer, EngineMemory
from estimator.contract.errors import WillItFitError
from estimator.facts import catalogue
from estimator.families.other import OtherSpec
from estimator.specs.published import model_folder
from estimator.specs.resolve import resolve

EMBED = {
    "bert",
    "clip",
    "distilbert",
    "electra",
    "eurobert",
    "gte",
    "jina_embeddings_v3",
    "modernbert",
    "nomic_bert",
    "roberta",
    "siglip",
    "xlm-roberta",
}
"""Types that give vectors of texts, which vLLM alone is modelled doing."""
ENCODERS = EMBED | {
    "albert",
    "bart",
    "blenderbot",
    "camembert",
    "data2vec-text",
    "deberta-v2",
    "deit",
    "dinov2",
    "dinov2_with_registers",
    "dinov3_vit",
    "ernie",
    "esm",
    "m2m_100",
    "marian",
    "mbart",
    "metaclip_2",
    "mpnet",
    "mt5",
    "parakeet_ctc",
    "pegasus",
    "roberta-prelayernorm",
    "t5",
    "t5gemma",
    "umt5",
    "vit",
    "wav2vec2",
    "hubert",
    "xlm-roberta-xl",
    "wavlm",
}
"""Types of which serving is not modelled by any engine that sizes a cache."""


def asked(of: str, model: Any, gpus: int = 1, gpu: str = "h100", **serving: Any) -> Answer:
    """The answer of an engine for a model on so many GPUs of a node."""
    hardware, parallelism = {"gpu": gpu, "gpus": gpus}, {"tensor": gpus}
    return estimate(
        {"model": model, "task": "serve", "hardware": hardware, "serving": {"engine": of, **serving}, "parallelism": parallelism}
    )


def logged(answer: Answer) -> EngineMemory:
    """What an engine logs of it."""
    assert answer.memory.engine is not None
    return answer.memory.engine


def unanswered(of: str, why: Callable[[str], str]) -> tuple[dict[str, set[str]], int]:
    """Types of families that an engine does not answer for, by `why` of the error's message; and how many models it does."""
    found, answered = defaultdict[str, set[str]](set), 0
    for name in catalogue.names(model_folder()):
        if isinstance(resolve(name).spec, OtherSpec):  # no engine answers for what no family describes
            continue
        try:
            estimate({"model": name, "task": "serve", "hardware": {"memory": "4000GB"}, "serving": {"engine": of}})
        except WillItFitError as error:
            found[why(error.message)].add(resolve(name).spec.model_type)
        else:
            answered += 1
    return dict(found), answered
