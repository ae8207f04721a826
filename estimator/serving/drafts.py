"""What guesses a served model's next tokens ahead: its tensors and what it caches, on one rank.

After vllm/model_executor/models of 0.33, whose shapes SGLang's layers have (sglang/srt/models of 0.5.23): llama_eagle.py and
llama_eagle3.py (heads of one of Llama's layers, the first without a norm of its input, the second with what attention reads twice
as wide, and an output layer of its own over fewer tokens), deepseek_mtp.py, glm4_moe_mtp.py, mimo_mtp.py, qwen3_next_mtp.py and
qwen3_5_mtp.py (one of the model's last layers, two norms of what it reads and one of what it gives). The embedding is the
model's, and but for EAGLE-3 the output layer is (v1/worker/gpu/spec_decode/eagle/utils.py, `load_eagle_model`). What joins a
token's embedding with hidden states is on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Serving
from estimator.facts import catalogue
from estimator.families.cache_layers import CacheLayer
from estimator.families.from_config import from_mapping
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.serving.tensors import INDEXER, Held, held

SHIPPED = Path(__file__).parent / "mtp.yaml"
VOCABULARY = 32000
"""Tokens that an EAGLE-3 head chooses from, unless it says more: those of nearly all published heads."""
JOINING = ("eh_proj", "input_proj")
"""What joins embeddings and hidden states, where it is in 16 bits."""
AUXILIARY = 3
"""Layers of the model whose hidden states an EAGLE-3 head reads."""
Kind = Literal["text", "model", "eagle", "eagle3", "layers"]


@dataclass(frozen=True, slots=True)
class Drafter:
    """What guesses `tokens` one after another for each sequence in `passes` of its own: the text before, a model, a head, or the
    checkpoint's own layers. `spec`: of a model, or of a head's layers. `weights`: how its linear layers are stored. `verified`:
    tokens of a sequence in the pass that verifies, where guesses have `branches`; 0: the guesses and one more. `divided`: whether
    an engine divides what joins embeddings and hidden states where the row in mtp.yaml says so."""

    kind: Kind
    tokens: int
    passes: int
    spec: ModelSpec | None = None
    weights: str = "bf16"
    vocabulary: int = VOCABULARY
    verified: int = 0
    branches: int = 1
    divided: bool = True

    @property
    def checked(self) -> int:
        """Tokens of a sequence in the pass that verifies."""
        return self.verified or self.tokens + 1

    def stored(self, serving: Serving) -> Serving:
        """The settings by which its weights are stored; layers of the checkpoint are as the checkpoint is."""
        if self.kind == "layers":
            return serving.model_copy(
                update={"unquantized": [*(serving.unquantized or ()), *JOINING, *(() if self.divided else ("fc",))]}
            )
        return serving.model_copy(
            update={"weights": self.weights, "weights_group": None, "unquantized": None, "mixed_weights": None}
        )


def shipped(spec: ModelSpec) -> dict[str, Any] | None:
    """The row of the layers that a model's checkpoint ships to predict further tokens; None where none are known."""
    text = spec.language_model
    for row in catalogue.shipped(SHIPPED)["models"]:
        if row["type"] == text.model_type and all(getattr(text, key, None) == v for key, v in row.get("where", {}).items()):
            found: dict[str, Any] = row
            return found
    return None


def head_of(model: Any, spec: ModelSpec, field: str) -> DecoderSpec:
    """The layers of a head: of its own config, or one as wide as the model's."""
    if isinstance(model, dict):
        head = from_mapping(model, field)
        if not isinstance(head, DecoderSpec):
            raise Contradiction(f"a head is a decoder's layer, and {head.model_type} models have none", field)
        return head
    text = spec.language_model
    if not isinstance(text, DecoderSpec) or any(layer.kind == "latent" for layer in text.cache_layers):
        raise NotModelled(
            f"a head beside {text.model_type} models is not as wide as their layers: write its config.json as {field}", field
        )
    alike = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    found = from_mapping({"model_type": "llama", "num_hidden_layers": 1, **{name: getattr(text, name) for name in alike}}, field)
    assert isinstance(found, DecoderSpec)
    return found


def draft_tensors(drafter: Drafter | None, spec: ModelSpec, tensor: int, expert_ranks: int = 0) -> tuple[Held, ...]:
    """The tensors of one of `tensor` ranks that the model has not."""
    if drafter is None or drafter.kind == "text":
        return ()
    if drafter.kind == "layers":
        return tuple(_layers(spec, tensor, expert_ranks, drafter.divided))
    assert drafter.spec is not None
    if drafter.kind == "model":
        return held(drafter.spec, tensor, expert_ranks)
    return tuple(_head(drafter, spec, tensor))


def draft_cache(drafter: Drafter | None, spec: ModelSpec) -> tuple[CacheLayer, ...]:
    """What it keeps of a sequence: a model what it always keeps, a head what its layers do, shipped layers what the model's last
    layer with attention does."""
    if drafter is None or drafter.kind == "text":
        return ()
    if drafter.spec is not None:
        return drafter.spec.cache_layers
    row = shipped(spec)
    assert row is not None
    attend = [layer for layer in spec.cache_layers if layer.kind != "state"]
    indexers = [layer for layer in attend if layer.kind == "indexer"]
    last = [layer for layer in attend if layer.kind != "indexer"][-1]
    return (last, *indexers[-1:]) * int(row["layers"])


def _head(drafter: Drafter, spec: ModelSpec, tensor: int) -> Iterator[Held]:
    """EAGLE's and EAGLE-3's."""
    assert isinstance(drafter.spec, DecoderSpec)
    hidden, third = drafter.spec.hidden_size, drafter.kind == "eagle3"
    wide = AUXILIARY * spec.language_model.hidden_size if third else 2 * hidden
    yield Held("fc", "linear", (hidden, wide), 1)
    for each in held(drafter.spec, tensor):
        if each.kind == "embedding" and "embed" in each.name:
            continue
        if each.name == "lm_head" and third:
            rows = -(-min(drafter.vocabulary, drafter.spec.vocab_size) // 64) * 64
            yield replace(each, shape=(-(-rows // tensor), hidden))
        elif each.end == "q_proj+k_proj+v_proj" and third and each.layer == 0:
            yield replace(each, shape=(each.shape[0], 2 * hidden))
        elif third or not (each.name in ("lm_head", "norm") or (each.end == "input_layernorm" and each.layer == 0)):
            yield each
    if third:
        yield Held("hidden_norm", "other", (hidden,), 1)


def _layers(spec: ModelSpec, tensor: int, expert_ranks: int, divided: bool) -> Iterator[Held]:
    """Those that the checkpoint ships."""
    row = shipped(spec)
    assert row is not None
    body = [each for each in held(spec, tensor, expert_ranks) if each.layer is not None and not each.seen]
    indexers = [each.layer or 0 for each in body if each.end in INDEXER]  # a shipped layer has one, whatever the last layer has
    last = max(indexers or (each.layer or 0 for each in body))
    hidden, count = spec.language_model.hidden_size, int(row["layers"])
    for each in body:
        if each.layer == last:
            yield replace(each, times=count, at=None)
    rows = -(-hidden // tensor) if divided and row.get("divided") else hidden
    yield Held(str(row["joins"]), "linear", (rows, 2 * hidden), count)
    yield Held("norms", "other", (3, hidden), count)
