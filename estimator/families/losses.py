"""The loss of a causal language model, as different releases and kernels compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from estimator.tape import dtypes, fused
from estimator.tape.loss import cross_entropy
from estimator.tape.pointwise import to
from estimator.tape.tensor import Tensor, alias, empty
from estimator.tape.views import contiguous, narrow, reshape


@dataclass(frozen=True, slots=True)
class CausalLoss:
    """Cross-entropy of logits [batch, tokens, vocabulary] against the next tokens.

    transformers 5 shifts the labels (loss/loss_utils.py, `ForCausalLMLoss`); 4.46 to 4.49 copied the logits without their
    last token instead (`shifts_logits`), as trainers with a loss of their own do, and as the models did before, which also
    kept no other logits than those in float32 (`upcasts_first`). `entropy` computes the loss of [tokens, vocabulary].
    """

    shifts_logits: bool = False
    upcasts_first: bool = False
    widens: bool = True
    """Whether it is computed in float32, whatever the logits' type."""
    in_chunks: bool = False
    """Whether it is computed in chunks of tokens, and so are the logits."""
    entropy: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    fused: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    """Computes it from hidden states, the output layer's weight and labels, without ever having all logits."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        vocabulary = logits.shape[-1]
        wide = to(logits, dtypes.float32) if self.widens else logits
        if not self.shifts_logits:
            _padded, shifted = _moved(labels)
            return self.entropy(reshape(wide, (-1, vocabulary)), reshape(shifted, (-1,)))
        kept = contiguous(narrow(wide, 1, wide.shape[1] - 1))  # of several sequences a copy, beside `wide`, which has a name, too
        shifted = _without_first(labels)
        return self.entropy(reshape(kept, (-1, vocabulary)), reshape(shifted, (-1,)))


def _moved(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Labels padded by one at the end, and what is left of them when the first are cut off. Both have a name in the original."""
    batch, tokens = labels.shape
    padded = empty(labels.tape, (batch, tokens + 1), dtypes.int64, "constant_pad_nd")
    if batch == 1:
        return padded, alias(padded, (batch, tokens))
    return padded, empty(labels.tape, (batch, tokens), dtypes.int64, "clone")


def _without_first(labels: Tensor) -> Tensor:
    batch, tokens = labels.shape
    return alias(labels, (1, tokens - 1)) if batch == 1 else empty(labels.tape, (batch, tokens - 1), dtypes.int64, "clone")


def liger_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Liger's `LigerForCausalLMLoss`."""
    _padded, shifted = _moved(labels)
    return fused.linear_cross_entropy(reshape(hidden, (-1, hidden.shape[-1])), weight, reshape(shifted, (-1,)), in_float32=False)


def fast_linear_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """fms-acceleration's `lce_forward`: hidden states without their last token, of several sequences a copy."""
    kept = contiguous(narrow(hidden, 1, hidden.shape[1] - 1))
    shifted = _without_first(labels)
    return fused.linear_cross_entropy(reshape(kept, (-1, kept.shape[-1])), weight, reshape(shifted, (-1,)), in_float32=True)
