"""A sane architecture for a bare size: "13B" and nothing more."""

from __future__ import annotations

from estimator.errors import InvalidJob
from estimator.families.llama import LlamaSpec

VOCABULARY = 32000
HEAD_DIM = 128
WIDTH_PER_LAYER = (64, 256)
"""Hidden size over number of layers: published decoders lie between (GPT-2 64, Llama-2-70B 102, Falcon-180B 185)."""
PREFERRED_WIDTH = 128
GROUPED_FROM = 30.0
"""Billions of parameters from which decoders of the Llama kind share eight key/value heads (CodeLlama-34B, Llama-2-70B)."""


def generic(billions: float, text: str) -> tuple[LlamaSpec, str]:
    """The Llama-like decoder whose parameter count comes nearest to a size, and a sentence that says what it is.

    Heads of 128, a SwiGLU of 8/3 the width (rounded up to 256), untied embeddings of 32,000 tokens.
    """
    if not 0.02 <= billions <= 2000:
        raise InvalidJob(f"{text!r} is not a size that a generic decoder can have; give 0.02B to 2000B, or a name", "model")
    target = billions * 1e9
    step = 8 if billions >= GROUPED_FROM else 1
    best = min(
        (
            _spec(layers, width * HEAD_DIM, billions)
            for width in range(max(step, 2), 400, step)
            for layers in _depths(width * HEAD_DIM, target, billions)
        ),
        key=lambda spec: (
            abs(_count(spec) - target) / target > 0.02,
            abs(spec.hidden_size / spec.num_hidden_layers / PREFERRED_WIDTH - 1),
        ),
    )
    count = _count(best)
    return best, (
        f"{text} taken as a decoder of the Llama kind: {best.num_hidden_layers} layers of {best.hidden_size}, "
        f"{best.num_attention_heads} heads ({best.num_key_value_heads} for keys and values), "
        f"feed-forward {best.intermediate_size}, vocabulary {VOCABULARY}: {count:,} parameters"
    )


def _depths(hidden: int, target: float, billions: float) -> list[int]:
    """The two depths between which a width meets the target, if the shape is sane."""
    one = _spec(1, hidden, billions)
    per_layer = _count(one) - (outside := 2 * VOCABULARY * hidden + hidden)
    depth = int((target - outside) / per_layer)
    return [d for d in (depth, depth + 1) if d > 0 and WIDTH_PER_LAYER[0] <= hidden / d <= WIDTH_PER_LAYER[1]]


def _spec(layers: int, hidden: int, billions: float) -> LlamaSpec:
    heads = hidden // HEAD_DIM
    keys = 8 if billions >= GROUPED_FROM else heads
    return LlamaSpec.model_construct(
        model_type="llama",
        hidden_size=hidden,
        intermediate_size=-(-8 * hidden // 3 // 256) * 256,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        head_dim=HEAD_DIM,
        vocab_size=VOCABULARY,
        max_position_embeddings=4096,
    )


def _count(spec: LlamaSpec) -> int:
    hidden, keys = spec.hidden_size, spec.num_key_value_heads * spec.head_dim
    layer = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * spec.intermediate_size + 2 * hidden
    return spec.num_hidden_layers * layer + 2 * spec.vocab_size * hidden + hidden
