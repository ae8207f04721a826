"""Odds-ratio preference optimization: pairs of answers, told apart by the model alone while it is trained on the chosen ones.

After TRL 1.16's experimental/orpo/orpo_trainer.py, `get_batch_loss_metrics` and `concatenated_forward`, with its defaults. All
logits are made. What it logs is there until all of it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from estimator.families.heads import Batch, CausalLM
from estimator.tape import dtypes
from estimator.tape.autocast import autocast
from estimator.tape.autograd import attach, record
from estimator.tape.dtypes import DType
from estimator.tape.logprobs import log_probs_of_logits, log_sigmoid
from estimator.tape.loss import cross_entropy
from estimator.tape.pointwise import div, exp, mul, mul_scalar, neg, sub, to
from estimator.tape.reduction import mean, sum_dim
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, binary, empty, output, unary
from estimator.tape.views import cat, clone, contiguous, narrow, reshape


@dataclass(frozen=True, slots=True)
class Orpo:
    """A batch of n pairs is joined to one of 2 n sequences: the chosen ones, then the rejected ones."""

    model: CausalLM
    autocast: DType | None
    prompt: int

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Token ids, attention's mask and labels of the chosen sequences, then of the rejected ones; ids and mask of their
        prompts. All int64."""
        names = ("input_ids", "attention_mask", "labels")
        shape, prompt = (batch.sequences, batch.tokens), (batch.sequences, self.prompt)
        made = [empty(tape, shape, dtypes.int64, f"{kind}_{name}") for kind in ("chosen", "rejected") for name in names]
        return *made, *[empty(tape, prompt, dtypes.int64, f"prompt_{name}") for name in names[:2]]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss."""
        tape, pairs = inputs[0].tape, inputs[0].shape[0]
        logits, likelihood, each = self._joined(inputs[:3], inputs[3:6])
        with tape.losing():
            losses, *logged = _odds_ratio_loss(narrow(each, 0, pairs), narrow(each, 0, pairs))
            loss = sub(likelihood, mean(losses, 0))
            metrics = _metrics(logits, likelihood, each, logged)
            del losses, logged, metrics
            return loss, ()

    def _joined(self, chosen: Sequence[Tensor], rejected: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """All logits, the loss of the chosen, and the mean log-probability of each answer (`concatenated_forward`)."""
        tape, pairs = chosen[0].tape, chosen[0].shape[0]
        with tape.losing():
            ids, mask, labels = [cat(pair, 0) for pair in zip(chosen, rejected, strict=True)]
        logits = self._logits(ids)
        with tape.losing():
            targets = _where_attended(clone(ids), mask)
            likelihood = _mean_loss(narrow(logits, 0, pairs), narrow(targets, 0, pairs))
            return logits, likelihood, _mean_log_probs(logits, labels)

    def _logits(self, ids: Tensor) -> Tensor:
        """All of them; accelerate widens what a model in autocast returns."""
        with autocast(ids.tape, self.autocast):
            hidden = self.model.body.forward(ids)
            with ids.tape.losing():
                logits = self.model.logits(hidden)
                del hidden
        with ids.tape.losing():
            return to(logits, dtypes.float32) if self.autocast else logits


def _odds_ratio_loss(chosen: Tensor, rejected: Tensor) -> tuple[Tensor, ...]:
    """The loss of each pair; to be logged, what chosen and rejected ones earn, and the means of both odds (`odds_ratio_loss`)."""
    chosen, rejected = to(chosen, dtypes.float32), to(rejected, dtypes.float32)
    odds = sub(sub(chosen, rejected), sub(_log_of_rest(chosen), _log_of_rest(rejected)))
    ratio = log_sigmoid(odds)
    losses = mul_scalar(ratio)
    return losses, unary("mul", chosen), unary("mul", rejected), _mean(ratio), _mean(odds)


def _metrics(logits: Tensor, likelihood: Tensor, each: Tensor, logged: Sequence[Tensor]) -> object:
    """The numbers that are logged, in the order in which `get_batch_loss_metrics` makes them; all live until the last is made."""
    chosen, rejected, *odds = logged
    won = unary("_to_copy", unary("gt", chosen, dtypes.bool_), dtypes.float32)
    made = [_mean(x) for x in (chosen, rejected, won)]
    made.append(_mean(binary("sub", chosen, rejected)))
    made += [_mean(each) for _ in range(2)]
    made += [_mean(_mean(logits)) for _ in range(2)]
    made += [_mean(x) for x in (likelihood, *odds)]
    return won, made


def _mean(x: Tensor) -> Tensor:
    """The mean of all numbers, of which no gradient is wanted."""
    return output("mean", (x,), (), x.dtype)


def _where_attended(labels: Tensor, mask: Tensor) -> Tensor:
    attended = unary("eq", mask, dtypes.bool_)
    return binary("where", attended, labels, labels.dtype)


def _mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The usual loss of logits [sequences, tokens, vocabulary], on shifted copies."""
    tokens = logits.shape[1] - 1
    logits = contiguous(narrow(logits, 1, tokens))
    labels = contiguous(narrow(labels, 1, tokens))
    return cross_entropy(reshape(logits, (-1, logits.shape[2])), reshape(labels, (-1,)))


def _mean_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean log-probability of each sequence's answer (`get_batch_logps`)."""
    tokens = logits.shape[1] - 1
    labels = clone(narrow(labels, 1, tokens))
    logits = narrow(logits, 1, tokens)
    scored = unary("ne", labels, dtypes.bool_)
    unscored = unary("eq", labels, dtypes.bool_)
    labels = binary("where", unscored, labels, labels.dtype)
    del unscored
    found = log_probs_of_logits(logits, labels)
    return div(sum_dim(mul(found, scored), 1), empty(scored.tape, scored.shape[:1], dtypes.int64, "sum"))


def _log_of_rest(x: Tensor) -> Tensor:
    """log(1 - exp(x)), both ways of computing it, and of each place one."""
    small = unary("lt", x, dtypes.bool_)
    return _either(small, _of_input("log1p", neg(exp(x))), _of_input("log", neg(_expm1(x))))


def _of_input(name: str, x: Tensor) -> Tensor:
    """A function whose gradient is divided by what the function got. Saves x."""
    return attach(record(name, (x,), (x,), lambda g, x: binary("div", g, x)), unary(name, x))


def _expm1(x: Tensor) -> Tensor:
    """e ** x - 1. Saves its result."""
    return attach(record("Expm1Backward", (x,), (), lambda g, y: binary("mul", g, y)), unary("expm1", x), save=True)


def _either(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a where the condition holds, else b. Saves the condition."""
    node = record("WhereBackward", (a, b), (condition,), lambda g, _: (unary("where", g), unary("where", g)))
    return attach(node, binary("where", a, b))
