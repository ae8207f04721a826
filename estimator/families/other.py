"""An architecture that no family here describes: its config as it is, which torch counts by transformers' own classes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from estimator.families.spec import ModelSpec

INSTALL = "pip install 'willitfit[torch]'"
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "emb_dim")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers")
"""What configs call the width and the number of layers."""
UNREAD = frozenset(
    {
        *("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "quantization_config", "use_cache"),
        *("_name_or_path", "_attn_implementation_autoset", "_commit_hash", "id2label", "label2id", "num_labels", "problem_type"),
        *("output_hidden_states", "output_attentions", "return_dict", "finetuning_task", "task_specific_params", "torchscript"),
    }
)
"""What a config says of its checkpoint, or of what a job decides; `auto_map` names remote code, which is never run."""
SEEING = ("vision_config", "vit_config", "vision_model_config")
"""What the configs of models that see images call the tower's."""
HEADS = {
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
    "ForPreTraining": "masked-lm",
    "ForConditionalGeneration": "seq2seq-lm",
    "ForSequenceClassification": "sequence-classification",
}
"""The head of a job, by how the name of a checkpoint's class ends."""


class OtherSpec(ModelSpec):
    """A config.json of a `model_type` that no family knows, or that has what its family has no model of. Nothing is derived of
    it; `config_text` is all of it, as JSON.

    `hidden_size` and `num_hidden_layers` are 1 where the config has no such setting under a name that is known.
    """

    runs: ClassVar[bool] = False
    attentions: ClassVar[tuple[str, ...]] = ("sdpa", "eager")

    hidden_size: int = 1
    num_hidden_layers: int = 1
    vocab_size: int = 1
    config_text: str
    head: str = "causal-lm"
    """The usual head: what the config's `architectures` says."""
    remote: bool = False
    """Whether the config names code of its own (`auto_map`)."""
    countable: bool = True
    """Whether torch may be asked to count it here. A service runs torch for nobody."""
    kept: tuple[int, ...] | None = None
    """Layers that are built, where not all are."""
    why: str = ""
    """What its family has no model of, where one has its type."""

    @property
    def refusal(self) -> str:
        """Why nothing of it is derived."""
        return self.why or f"no family here has {self.model_type!r}"

    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.config_text)
        return found

    @property
    def mixture(self) -> bool:
        """Whether it has experts, so that a token may use a part of its parameters."""
        return any("expert" in key or "moe" in key for part in _parts(self.config()) for key in part)


def other(given: Mapping[str, Any], why: str = "") -> OtherSpec:
    """The spec of a config that no family reads, and `why`, where one has its type. What is said of a checkpoint only is left
    out."""
    config = {name: value for name, value in given.items() if name not in UNREAD}
    positions = _size(config, ("max_position_embeddings", "n_positions", "max_seq_len"))
    return OtherSpec(
        model_type=str(given["model_type"]),
        hidden_size=_size(config, HIDDEN) or 1,
        num_hidden_layers=_size(config, LAYERS) or 1,
        vocab_size=_size(config, ("vocab_size",)) or 1,
        max_position_embeddings=positions,
        config_text=json.dumps(config, sort_keys=True, default=str),
        head=_head(config, given.get("architectures")),
        remote=bool(given.get("auto_map")),
        why=why,
    )


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A config and the configs of its parts, that of its text first."""
    inner = [value for value in config.values() if isinstance(value, Mapping)]
    text = config.get("text_config")
    yield config
    yield from sorted(inner, key=lambda part: part is not text)


def _size(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    found = (part.get(name) for part in _parts(config) for name in names)
    return next((value for value in found if isinstance(value, int) and 0 < value < 2**31), None)


def _head(config: Mapping[str, Any], architectures: Any) -> str:
    named = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    found = next((head for end, head in HEADS.items() if named.endswith(end)), None)
    sees = found in (None, "seq2seq-lm") and any(config.get(name) for name in SEEING)
    return "image-text-to-text" if sees else found or "causal-lm"
