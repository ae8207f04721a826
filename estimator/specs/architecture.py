"""The architecture that a GGUF file was made of, as a config.json would say it."""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import WillItFitError
from estimator.families import count, spec_class
from estimator.families.from_config import from_mapping
from estimator.weights.checkpoint import Checkpoint
from estimator.weights.gguf_config import CONFIGS
from estimator.weights.gguf_said import Said, UnsaidError

WEIGHTS = (".weight", ".bias", ".ssm_a", ".ssm_d")
"""How the names of parameters end; scales of quantization do not."""
NO_PARAMETERS = ("rope_f", "rot_embd", "exp_probs_b")
"""In the names of tables that are no parameters of the model: rotary frequencies, and the balance of DeepSeek-V3's routers."""


def architecture(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """`model_type` and config.json's keys of a GGUF checkpoint; None for one of no family here, or if it does not say enough.

    The vocabulary is what the token embedding's shape says, and embeddings are tied where there is no output.weight. The mapping
    is given only where the model that it describes has exactly as many parameters as the file: a variant with more or fewer
    weights than its architecture's name says, extra layers or missing parts are better not answered than answered wrongly.
    """
    kind = checkpoint.metadata.get("general.architecture")
    if checkpoint.format != "gguf" or checkpoint.missing or not isinstance(kind, str) or kind not in CONFIGS:
        return None
    try:
        found = CONFIGS[kind](Said(checkpoint))
        spec = from_mapping(found, checkpoint.path)
    except (UnsaidError, WillItFitError):
        return None
    held = sum(tensor.elements for tensor in checkpoint.tensors if _parameter(tensor.name))
    return _named(found) if count(spec) == held else None


def _parameter(name: str) -> bool:
    return name.endswith(WEIGHTS) and not any(part in name for part in NO_PARAMETERS)


def _named(found: dict[str, Any]) -> dict[str, Any]:
    """The mapping under the names that the family's config.json has."""
    fields = spec_class(found["model_type"]).model_fields
    return {(fields[name].alias or name) if name in fields else name: value for name, value in found.items()}
