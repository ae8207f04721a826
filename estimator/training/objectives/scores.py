"""What a causal language model makes of given tokens, without ever having all logits (TRL 1.16, trl/trainer/utils.py,
`add_fused_lm_head`): per token its log-probability, and `metrics` for the log."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.families.heads import CausalLM
from estimator.tape import dtypes
from estimator.tape.autocast import autocast
from estimator.tape.autograd import attach, record
from estimator.tape.dtypes import DType
from estimator.tape.layout import normalized
from estimator.tape.logprobs import Head, Metrics, log_probs, masked_scatter
from estimator.tape.pointwise import div, neg
from estimator.tape.tensor import Tensor, alias, empty, unary
from estimator.tape.views import cat, index, narrow


@dataclass(frozen=True, slots=True)
class Scorer:
    """A model whose forward pass, and nothing else, runs in autocast to a type, as accelerate prepares it."""

    model: CausalLM
    autocast: DType | None
    metrics: Metrics = ()

    def __call__(self, ids: Tensor, labels: Tensor, prompt: int) -> Scores:
        """Scores of `ids` [sequences, tokens]: of all but the first `prompt` tokens, and never of the very first."""
        with autocast(ids.tape, self.autocast):
            return self._scores(ids, labels, prompt)

    def _scores(self, ids: Tensor, labels: Tensor, prompt: int) -> Scores:
        sequences, tokens = ids.shape
        count = sequences * (tokens - max(1, prompt))
        hidden = self.model.body.forward(ids)
        with ids.tape.losing():
            states = narrow(hidden, 1, tokens - 1)
            mask = empty(ids.tape, (sequences, tokens - 1), dtypes.bool_, "ne")
            head = Head(self.model.lm_head.weight, self.model.lm_head.bias, self.autocast or hidden.dtype)
            found = log_probs(
                index(states, (mask,), (count, hidden.shape[-1])),
                head,
                empty(ids.tape, (count,), dtypes.int64, "index"),
                self.metrics,
            )
            spread = [masked_scatter(each, mask) for each in found]
            del found
            return Scores(spread[0], spread[1:], mask, _mean_loss(spread[0], mask))


@dataclass(frozen=True, slots=True)
class Scores:
    """`log_probs` [sequences, tokens - 1]; what else the model's output holds."""

    log_probs: Tensor
    metrics: list[Tensor]
    mask: Tensor
    loss: Tensor

    def of_answers(self, tokens: int) -> list[Tensor]:
        """Log-probabilities and entropies of the last so many tokens, each [sequences, tokens], copied."""
        parts = [last(each, tokens) for each in (self.log_probs, self.metrics[0])]
        return [cat((part,), 0) for part in parts]

    def of_sequences(self) -> Tensor:
        """The log-probabilities of whole sequences, [sequences]: a sum over the last so many tokens, which are all."""
        return summed(self.log_probs)


def labels_of(ids: Tensor) -> Tensor:
    """The ids of what is scored, and a number that is no id elsewhere: `input_ids.masked_fill(completion_mask == 0, -100)`."""
    masked = unary("eq", ids, dtypes.bool_)
    labels = unary("masked_fill", ids)
    del masked
    return labels


def _mean_loss(log_probs: Tensor, mask: Tensor) -> Tensor:
    """-log_probs.sum() / mask.sum().clamp(min=1), which the model's output has though no trainer asks for it."""
    total = neg(total_of(log_probs))
    return div(total, unary("clamp", empty(mask.tape, (), dtypes.int64, "sum")))


def total_of(x: Tensor) -> Tensor:
    """`x.sum()`. Saves nothing; the gradient is a view."""
    shape = x.shape
    node = record("SumBackward", (x,), (), lambda g: alias(g, shape, (0,) * len(shape)))
    return attach(node, empty(x.tape, (), x.dtype, "sum"))


def last(x: Tensor, count: int) -> Tensor:
    """`x[:, -count:]`: a view, which Python's indexing takes for a part though it be all, since it begins at -count."""
    shape = x.shape
    node = record("SliceBackward", (x,), (), lambda g: empty(g.tape, shape, g.dtype, "slice_backward"))
    part = shape[0], count, *shape[2:]
    return attach(node, alias(x, part, normalized(part, x.element_strides())))


def summed(x: Tensor) -> Tensor:
    """`x[:, -tokens:].sum(dim=1)`, where that is all of x."""
    x, shape = last(x, x.shape[1]), x.shape
    node = record("SumBackward", (x,), (), lambda g: alias(g, shape, (1, 0)))
    return attach(node, empty(x.tape, shape[:1], x.dtype, "sum"))
