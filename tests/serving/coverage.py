"""Which engines answer for each model of the catalogue, and what the others lack: `python -m tests.serving.coverage`."""

from __future__ import annotations

from collections import Counter

from estimator import NotModelled, WillItFitError, estimate
from estimator.facts import catalogue
from estimator.families.other import OtherSpec
from estimator.serving.engines import ENGINES
from estimator.specs.published import model_folder
from estimator.specs.resolve import resolve

CARD = {"memory": "4000GB"}
"""What is asked about: bytes are worked out whether they fit or not."""
GGUF = "q4_k_m"


def missing(model: str, engine: str) -> str:
    """What an engine lacks to serve a model; nothing where there is an answer."""
    if isinstance(resolve(model).spec, OtherSpec):
        return "not modelled: no family describes its architecture"
    serving = {"engine": engine, "context": 16, "weights": GGUF if ENGINES[engine].reads_gguf else "bf16"}
    try:
        estimate({"model": model, "task": "serve", "hardware": CARD, "serving": serving})
    except NotModelled as error:
        return f"not modelled: {error}"
    except WillItFitError as error:
        return f"not run: {error}"
    return ""


def main() -> None:
    """Print a line for each model, and how many each engine answers."""
    answers: Counter[str] = Counter()
    names = catalogue.names(model_folder())
    for name in names:
        lacks = {engine: missing(name, engine) for engine in ENGINES}
        by = [engine for engine, why in lacks.items() if not why]
        answers.update(by or ["none"])
        print(f"{name} ({resolve(name).spec.model_type}): {', '.join(by) or 'none'}")
        for engine, why in lacks.items():
            if why:
                print(f"    {engine}: {why}")
    print(f"{len(names)} models; " + ", ".join(f"{engine} {answers[engine]}" for engine in (*ENGINES, "none")))


if __name__ == "__main__":
    main()
