"""The architecture that a GGUF file was made of, as a config.json would say it."""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import WillItFitError
from estimator.families import count, spec_class
from estimator.families.from_config import from_mapping
from estimator.families.spec import ModelSpec
from estimator.quantization.gguf_tensors import file_tensors
from estimator.weights.checkpoint import Checkpoint, Tensor
from estimator.weights.gguf_config import CONFIGS
from estimator.weights.gguf_said import Said, UnsaidError

WEIGHTS = (".weight", ".bias", ".ssm_a", ".ssm_d")
"""How the names of parameters end; scales of quantization do not."""
ROUTING = (".ffn_gate_inp.scale", ".ffn_down_exps.scale")
"""Parameters of Gemma 4's mixtures that are called scales, as those of quantization are."""
CORRECTION = "exp_probs_b"
"""What experts are chosen by beside their scores, a parameter of ERNIE alone."""
NO_PARAMETERS = ("rope_f", "rot_embd", CORRECTION, "layer_output_scale")
"""In the names of tables that are no parameters of the model: rotary frequencies, the balance of DeepSeek-V3's routers, and what
layers of Gemma 4 multiply by."""


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
    held = sum(tensor.elements for tensor in checkpoint.tensors if _parameter(tensor, spec))
    return _named(found) if parameters(spec) == held else None


def parameters(spec: ModelSpec) -> int:
    """How many parameters a model's file has: all, but of an encoder those that make vectors."""
    return sum(tensor.elements for tensor in file_tensors(spec)) if spec.encodes else count(spec)


def _parameter(tensor: Tensor, spec: ModelSpec) -> bool:
    """Whether a tensor is a parameter of the model; what guesses tokens ahead lies in layers after its last."""
    parts = tensor.name.split(".")
    after = len(parts) > 1 and parts[0] == "blk" and parts[1].isdigit() and int(parts[1]) >= spec.depth
    if spec.can.routing == "corrected" and CORRECTION in tensor.name:
        return not after
    ends = (*WEIGHTS, *ROUTING) if spec.can.graph == "gemma-4" else WEIGHTS
    return tensor.name.endswith(ends) and not after and not any(part in tensor.name for part in NO_PARAMETERS)


def _named(found: dict[str, Any]) -> dict[str, Any]:
    """The mapping under the names that the family's config.json has."""
    fields = spec_class(found["model_type"]).model_fields
    return {(fields[name].alias or name) if name in fields else name: value for name, value in found.items()}
