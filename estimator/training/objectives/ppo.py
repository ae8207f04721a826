"""Proximal policy optimization: answers that the model gave itself, rewarded by one model and valued by another that learns, too.

After `PPOTrainer.train` of TRL 1.0.0 (trl/experimental/ppo/ppo_trainer.py; 1.16 has it no more), with its defaults. Each update
writes and scores its answers, then trains policy and value model on them, in one mini-batch. All logits are made. What its loop
holds by a name is held here, which is much: the logits of an update's answers until the next one's are there, and the output of a
micro-step, with all hidden states, keys and values, until that of the next is there. Of numbers for each token or sequence most
are there, not all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from estimator.families.heads import Batch, CausalLM, SequenceClassification
from estimator.families.kv_cache import PassingCache
from estimator.tape import dtypes
from estimator.tape.autocast import autocast
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, clamp, clamp_between, div, exp, mul, mul_scalar, pow_scalar, softmax, sub, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import masked_fill, minimum
from estimator.tape.slots import Slot
from estimator.tape.tape import Tape
from estimator.tape.tempered import log_probs, logsumexp, tempered
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import contiguous, narrow, reshape
from estimator.training.generation import PHASE, Writer
from estimator.training.objectives.reference import adapted, no_grad
from estimator.training.objectives.scores import total_of

SCORE, METRICS = "score", "metrics"
"""The phases in which answers are scored, and in which what is logged is computed."""


@dataclass(slots=True)
class Shown:
    """What a model's output holds of its layers: hidden states, keys and values, with their slots."""

    tape: Tape
    layers: list[tuple[Slot | None, list[Tensor]]] = field(default_factory=list)

    def release(self) -> None:
        """Let all of it go, each layer's in its slot."""
        while self.layers:
            self.tape.enter(self.layers[0][0])
            del self.layers[0]
        self.tape.enter(None)


@dataclass(frozen=True, slots=True)
class Shower:
    """A model whose output holds all that; `caches`: its layers', where it keeps them."""

    model: CausalLM | SequenceClassification
    caches: list[PassingCache]

    def __call__(self, ids: Tensor, caching: bool = True) -> tuple[Tensor, Shown]:
        """Last hidden states, and what else the model's output holds."""
        tape = ids.tape
        tape.states, tape.caching, tape.rows, tape.positions_given = [], caching, ids.shape[0], True
        hidden = self.model.body.forward(ids)
        shown = Shown(tape, [(slot, [state]) for slot, state in tape.states[:-1]])
        for cache in self.caches if caching else ():
            held, cache.cache = cache.cache, None
            shown.layers.append((cache.slot, [t for t in (held.keys, held.values) if t is not None]))  # type: ignore[union-attr]
            del held
        tape.states, tape.caching, tape.rows, tape.positions_given = None, False, 1, False
        return hidden, shown


@dataclass(slots=True)
class Ppo:
    """A policy and a value model that learn, a reference (the policy without adapter where there is none) and a reward model.

    `chunk`: sequences that are written and scored at a time; `micro_steps`: of an update.
    """

    policy: Shower
    value: Shower
    reference: Shower | None
    reward: Shower
    writer: Writer
    autocast: DType | None
    batch: Batch
    prompt: int
    chunk: int
    micro_steps: int
    waiting: dict[str, Tensor] = field(default_factory=dict)
    held: dict[str, Tensor] = field(default_factory=dict)
    shown: Shown | None = None

    @property
    def rows(self) -> int:
        return self.batch.sequences * self.micro_steps

    @property
    def answer(self) -> int:
        return self.batch.tokens - self.prompt

    @property
    def tape(self) -> Tape:
        return self.writer.tape

    def start(self) -> None:
        """What the update before has left, and the prompts of this one."""
        tape = self.tape
        with tape.losing():
            self.waiting["logitss"] = self._logits(self.rows, "full")
        self.waiting["queries"] = empty(tape, (self.rows, self.prompt), dtypes.int64, "input_ids")

    def write(self) -> None:
        """The answers of an update, a chunk after the other (`batch_generation`), then what the models say of them."""
        tape, chunks = self.tape, self.rows // self.chunk
        tape.begin(PHASE)
        with no_grad(tape):
            shape = self.chunk, self.prompt
            before = [self._logits(self.chunk * (chunks - 1), "stack")] if chunks > 1 else []
            mask = empty(tape, shape, dtypes.bool_, "ne")
            ids = empty(tape, shape, dtypes.int64, "masked_fill")
            written, logits = self.writer.scored(ids, mask, self.answer)
            del ids, mask
            with tape.losing():
                every = self._logits(self.rows, "full")
            del before, logits, written
            queries = self.waiting.pop("queries")
            ids = empty(tape, (self.rows, self.batch.tokens), dtypes.int64, "full")
            tape.begin(SCORE)
            self.waiting = {"logitss": every, "queries": queries, "ids": ids}
            del every, queries, ids
            self._score(chunks)

    def _score(self, chunks: int) -> None:
        """All chunks but the last leave only small tensors; the last is scored while these are there."""
        tape, forms = self.tape, self._forms
        rows = (chunks - 1) * self.chunk
        before = [empty(tape, (rows, *shape), dtype, name) for name, shape, dtype in forms] if rows else []
        ids = empty(tape, (self.chunk, self.batch.tokens), dtypes.int64, "cat")
        with tape.losing():
            logits = narrow(self.waiting["logitss"], 0, self.chunk)
            found = [log_probs(logits, empty(tape, logits.shape[:2], dtypes.int64, "response"))]
            del logits
        found.append(self._of_reference(ids))
        found.append(self._rewarded(self.value, ids))
        found.append(self._rewarded(self.reward, ids))
        del found, before, ids
        self.waiting |= {name: empty(tape, (self.rows, *shape), dtype, name) for name, shape, dtype in forms}

    @property
    def _forms(self) -> list[tuple[str, tuple[int, ...], DType]]:
        """What of an update's answers lives while the models learn from them, for each sequence."""
        each = (self.answer,)
        floats = ("logprobs", "ref_logprobs", "values", "logr", "kl", "non_score_reward", "rewards", "advantages", "returns")
        ints = ("responses", "postprocessed_responses", "response_idxs")
        return [
            *((name, each, dtypes.float32) for name in floats),
            *((name, each, dtypes.int64) for name in ints),
            *((name, each, dtypes.bool_) for name in ("padding_mask", "padding_mask_p1")),
        ]

    def _logits(self, rows: int, operation: str) -> Tensor:
        vocabulary = self.policy.model.lm_head.weight.shape[0]  # type: ignore[union-attr]
        return empty(self.tape, (rows, self.answer, vocabulary), dtypes.float32, operation)

    def _of_reference(self, ids: Tensor) -> Tensor:
        """The reference's log-probabilities of the answers."""
        tape = ids.tape
        given = _given(ids)
        with adapted(tape, self.reference is not None):
            shower = self.reference or self.policy
            hidden, shown = shower(given[2])
        del given
        with tape.losing():
            logits = shower.model.logits(hidden)  # type: ignore[union-attr]
            part = tempered(logits, self.answer)
            found = log_probs(part, empty(tape, part.shape[:2], dtypes.int64, "response"))
        del logits, part, hidden
        shown.release()
        return found

    def _rewarded(self, shower: Shower, ids: Tensor) -> Tensor:
        """A score of each token (`get_reward`)."""
        given = _given(ids)
        hidden, shown = shower(given[2], caching=False)
        with ids.tape.losing():
            scores = shower.model.score(hidden)  # type: ignore[union-attr]
        del hidden, given
        shown.release()
        return scores

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """A micro-batch's part of what was written and found."""
        rows, answer = batch.sequences, self.answer
        forms = (("advantage", answer), ("responses", answer), ("query_responses", batch.tokens), ("logprobs", answer))
        whole = {"responses": dtypes.int64, "query_responses": dtypes.int64}
        made = []
        for name, size in (*forms, ("return", answer), ("values", answer)):
            self.held[name] = empty(tape, (rows, size), whole.get(name, dtypes.float32), "index")
            made.append(self.held[name])
        return tuple(made)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss of policy and value model."""
        advantage, responses, ids, before, returns, values = inputs
        tape = ids.tape
        logits, predicted = self._both(ids)
        with tape.losing():
            tempered_logits = tempered(logits, self.answer)
            self.held["logits"] = tempered_logits
            del logits
            masks = [empty(tape, responses.shape, dtypes.bool_, "index") for _ in range(2)]
            new = masked_fill(log_probs(tempered_logits, responses), masks[0])
            of_answer = narrow(narrow(predicted, 1, self.batch.tokens - 1), 1, self.answer)
            valued = masked_fill(reshape(of_answer, returns.shape), masks[1])
            low, high = unary("sub", values), unary("add", values)
            clipped = clamp_between(valued, low, high)
            losses = [pow_scalar(sub(v, returns)) for v in (valued, clipped)]
            worst = minimum(losses[0], losses[1])
            value_loss = mul_scalar(_masked_mean(worst, masks[1]))
            difference = sub(new, before)
            ratio = exp(difference)
            gains = [mul(unary("neg", advantage), r) for r in (ratio, clamp(ratio))]
            worse = minimum(gains[0], gains[1])
            policy_loss = _masked_mean(worse, masks[0])
            loss = add(policy_loss, mul_scalar(value_loss))
            self.held |= {"vpred": predicted, "new": new, "valued": valued, "clipped": clipped, "worst": worst, "worse": worse}
            self.held |= {"ratio": ratio, "difference": difference, "losses 1": losses[0], "losses 2": losses[1]}
            self.held |= {"gains 1": gains[0], "gains 2": gains[1]}
        return loss, ()

    def _both(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the policy, and scores of the value model, whose output lives until the policy has run.

        Accelerate widens both.
        """
        tape = ids.tape
        given = _given(ids)
        with autocast(tape, self.autocast):
            hidden, beside = self.value(given[2])
            with tape.losing():
                scores = self.value.model.score(hidden)  # type: ignore[union-attr]
            states, shown = self.policy(given[2])
            with tape.losing():
                logits = self.policy.model.logits(states)  # type: ignore[union-attr]
        del hidden
        beside.release()
        with tape.losing():
            if self.autocast:
                logits, scores = to(logits, dtypes.float32), to(scores, dtypes.float32)
        del given
        if self.shown is not None:
            self.shown.release()
        self.shown = shown
        self.held["states"] = states
        return logits, scores

    def after(self) -> None:
        """What is logged, of logits that are there still; after an update's last micro-step all of it goes."""
        tape = self.tape
        tape.begin(METRICS)
        with no_grad(tape), tape.losing():
            logits = self.held["logits"].detach()
            dense = contiguous(logits)
            chances = softmax(dense)
            del dense
            self.held["prob_dist"] = chances
            entropy = sub(logsumexp(logits), sum_dim(mul(chances, logits), -1))
        self.held["entropy"] = entropy
        del logits, chances, entropy


def _given(ids: Tensor) -> list[Tensor]:
    """Mask, positions and ids, as `forward` makes them of ids."""
    mask = unary("ne", ids, dtypes.bool_)
    return [mask, unary("sub", ids), unary("masked_fill", ids)]


def _masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    return div(total_of(mul(x, mask)), empty(x.tape, (), dtypes.int64, "sum"))
