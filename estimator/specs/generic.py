"""A sane architecture for a bare size: "13B" or "8x7B" and nothing more."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.contract.errors import InvalidValue
from estimator.families.llama import LlamaSpec
from estimator.families.spec import ModelSpec

VOCABULARY = 32000
HEAD_DIM = 128
WIDTH_PER_LAYER = (64, 256)
"""Hidden size over number of layers: published decoders lie between (GPT-2 64, Llama-2-70B 102, Falcon-180B 185)."""
PREFERRED_WIDTH = 128
GROUPED_FROM = 30.0
"""Billions of parameters from which decoders of the Llama kind share eight key/value heads (CodeLlama-34B, Llama-2-70B)."""
GROUPS = 8
PER_TOKEN = 2
"""Experts that a token is sent to (Mixtral 8x7B and 8x22B)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder's sizes; `feed_forward` is the width of its SwiGLU."""

    layers: int
    hidden: int
    keys: int
    feed_forward: int

    @property
    def parameters(self) -> int:
        """Parameters of a dense decoder of these sizes with untied embeddings."""
        hidden, keys = self.hidden, self.keys * HEAD_DIM
        layer = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * self.feed_forward + 2 * hidden
        return self.layers * layer + 2 * VOCABULARY * hidden + hidden

    @property
    def fields(self) -> dict[str, int]:
        """The sizes under the names of a spec."""
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.hidden // HEAD_DIM,
            "num_key_value_heads": self.keys,
            "head_dim": HEAD_DIM,
            "vocab_size": VOCABULARY,
        }

    def __str__(self) -> str:
        return (
            f"{self.layers} layers of {self.hidden}, {self.hidden // HEAD_DIM} heads ({self.keys} for keys and values), "
            f"feed-forward {self.feed_forward}, vocabulary {VOCABULARY}"
        )


def generic(billions: float, text: str) -> tuple[ModelSpec, str]:
    """The Llama-like decoder whose parameter count comes nearest to a size, and a sentence that says what it is.

    Heads of 128, a SwiGLU of 8/3 the width (rounded up to 256), untied embeddings of 32,000 tokens.
    """
    shape = _nearest(billions, text, billions >= GROUPED_FROM, (8, 3))
    spec = LlamaSpec.model_validate({"model_type": "llama", "max_position_embeddings": 4096, **shape.fields})
    return spec, f"{text} taken as a decoder of the Llama kind: {shape}: {shape.parameters:,} parameters"


def generic_mixture(experts: int, billions: float, text: str) -> tuple[ModelSpec, str]:
    """The Mixtral-like decoder of `experts` that would have so many billions of parameters with one, and a sentence about it.

    As `generic`, but a SwiGLU of 7/2 the width in each expert, and eight key/value heads, as Mixtral 8x7B and 8x22B have.
    """
    if not PER_TOKEN <= experts <= 1024:
        raise InvalidValue(f"{text!r} has {experts} experts; give {PER_TOKEN} to 1024, or a name", "model")
    from estimator.families.mixtral import MixtralSpec

    shape = _nearest(billions, text, True, (7, 2))
    spec = MixtralSpec.model_validate(
        {"model_type": "mixtral", "num_experts": experts, "num_experts_per_tok": PER_TOKEN, **shape.fields}
    )
    others = shape.layers * (3 * shape.hidden * shape.feed_forward * (experts - 1) + experts * shape.hidden)
    return spec, (
        f"{text} taken as a mixture of the Mixtral kind, {experts} experts of which {PER_TOKEN} work on a token: {shape}: "
        f"{shape.parameters + others:,} parameters"
    )


def _nearest(billions: float, text: str, grouped: bool, ratio: tuple[int, int]) -> Shape:
    """The shape that meets a size best, feed-forward `ratio` times as wide as the model."""
    if not 0.02 <= billions <= 2000:
        raise InvalidValue(f"{text!r} is not a size that a generic decoder can have; give 0.02B to 2000B, or a name", "model")
    target, step = billions * 1e9, GROUPS if grouped and billions >= 2 else 1
    found = []
    for width in range(max(step, 2), 400, step):
        hidden = width * HEAD_DIM
        keys = GROUPS if grouped and width % GROUPS == 0 else width
        feed_forward = -(-ratio[0] * hidden // ratio[1] // 256) * 256
        outside = Shape(0, hidden, keys, feed_forward).parameters
        depth = int((target - outside) / (Shape(1, hidden, keys, feed_forward).parameters - outside))
        depths = [d for d in (depth, depth + 1) if d > 0 and WIDTH_PER_LAYER[0] <= hidden / d <= WIDTH_PER_LAYER[1]]
        found += [Shape(d, hidden, keys, feed_forward) for d in depths]
    return min(
        found,
        key=lambda s: (abs(s.parameters - target) / target > 0.02, abs(s.hidden / s.layers / PREFERRED_WIDTH - 1)),
    )
