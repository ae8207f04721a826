"""What a model writes while it is trained: answers that it is trained on, or those of an evaluation.

After transformers' generation/utils.py (5.23), `generate`, `_prefill` and `_sample`, with `DynamicCache` and prompts of one
length: a prompt's pass, then one for every further token. The cache grows with each, so the last needs most of all but the
first; a pass before it stands for all between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Job, Training
from estimator.families.heads import CausalLM
from estimator.families.kv_cache import PassingCache, growing
from estimator.families.model_output import widened
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.tape import dtypes
from estimator.tape.autocast import autocast
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import add, add_scalar, div_scalar, mul, softmax
from estimator.tape.selection import argmax_last, multinomial
from estimator.tape.tape import Generating, Tape
from estimator.tape.tensor import Tensor, binary, empty, unary
from estimator.tape.views import cat, clone, narrow, reshape

PHASE = "generate"


@dataclass(frozen=True, slots=True)
class Writer:
    """A model that writes, in autocast to a type or not, and its layers' caches. `sampled`: tokens are drawn, else the likeliest.

    Through peft a model writes outside of the autocast that accelerate has put around the adapted one.
    """

    tape: Tape
    model: CausalLM
    caches: list[PassingCache]
    autocast: DType | None
    sampled: bool

    def __call__(self, ids: Tensor, mask: Tensor, answer: int) -> Tensor:
        """Prompts [sequences, tokens], with their mask, and `answer` tokens after each."""
        ids = self._write(ids, mask, answer, None)
        self._forget()
        return ids

    def scored(self, ids: Tensor, mask: Tensor, answer: int) -> tuple[Tensor, Tensor]:
        """Prompts and answers [sequences, tokens], drawn at a temperature, and the logits that each token was drawn from,
        [sequences, answer, vocabulary] in float32."""
        scores: list[Tensor] = []
        ids = self._write(ids, mask, answer, scores)
        with ids.tape.losing():
            stacked = empty(ids.tape, (ids.shape[0], answer, self.model.lm_head.weight.shape[0]), dtypes.float32, "stack")
        self._forget()
        return ids, stacked

    def _write(self, ids: Tensor, mask: Tensor, answer: int, scores: list[Tensor] | None) -> Tensor:
        """Prompts and answers; `scores` gets those of each token."""
        tape, (sequences, prompt) = ids.tape, ids.shape
        with tape.losing():
            special = [empty(tape, (1,), dtypes.int64, name) for name in ("bos", "eos", "pad")]
            places = given_places = _places(mask)
            unfinished = empty(tape, (sequences,), dtypes.int64, "ones")
        passes = sorted({prompt, prompt + max(answer - 2, 0), prompt + answer - 1})
        for length in passes:
            tape.generating = Generating(sequences, length)
            if length == prompt:
                out = self._pass(clone(ids))
            else:
                if length > ids.shape[1]:  # many passes later
                    ids, places = [empty(tape, (sequences, length), dtypes.int64, "cat") for _ in range(2)]
                given = [clone(narrow(t, 1, 1)) for t in (ids, places)]
                out = self._pass(given[0])
            with tape.losing():
                places = cat((places, _next(places)), 1)
                logits = empty(tape, (sequences, out.shape[2]), dtypes.float32, "_to_copy")
                if scores is not None:
                    _fill(scores, logits, length - prompt)
                if self.sampled:
                    chances = softmax(logits if scores is None else scores[-1])
                    tokens = multinomial(chances)
                else:
                    tokens = argmax_last(logits)
                tokens = add(mul(tokens, unfinished), mul(unfinished, add_scalar(unfinished)))
                ids = cat((ids, reshape(tokens, (sequences, 1))), 1)
                unfinished = binary("bitwise_and", unfinished, unary("bitwise_not", unfinished, dtypes.bool_))
            del out
        tape.generating = None
        del special, given_places
        return ids

    def _forget(self) -> None:
        """Let all caches go."""
        for cache in self.caches:
            self.tape.enter(cache.slot)
            cache.cache = None
        self.tape.enter(None)

    def _pass(self, ids: Tensor) -> Tensor:
        """Logits of the last token of each sequence, [sequences, 1, vocabulary]; accelerate widens what is made in autocast."""
        with autocast(ids.tape, self.autocast):
            hidden = self.model.body.forward(ids)
            with ids.tape.losing():
                logits = self.model.logits(narrow(hidden, 1, 1))
                del hidden
        with ids.tape.losing():
            held = widened(logits) if self.autocast else logits
            assert isinstance(held, Tensor)
            return held


def _fill(scores: list[Tensor], logits: Tensor, before: int) -> None:
    """Add a token's scores, which are its logits over the temperature, after those of all `before` it."""
    tape, missing = logits.tape, before - sum(t.shape[0] if len(t.shape) == 3 else 1 for t in scores)
    if missing > 0:
        row = -(-logits.nbytes // tape.step) * tape.step // logits.dtype.itemsize
        scores.append(empty(tape, (missing, 1, row), logits.dtype, "div"))
    scores.append(div_scalar(logits))


def caches(tape: Tape, spec: ModelSpec, made: list[PassingCache]) -> Callable[[], PassingCache]:
    """What makes each attention layer its cache, which is added to `made`."""
    assert isinstance(spec, DecoderSpec)
    make = growing(spec)

    def cache() -> PassingCache:
        made.append(PassingCache(make, tape.slot))
        return made[-1]

    return cache


def writes(job: Job, spec: ModelSpec) -> bool:
    """Whether the trained model writes. Raises `InvalidJob` or `NotModelled` where it cannot."""
    training = job.training
    asked_to = training.objective
    itself = asked_to and asked_to.generation and asked_to.generation.engine == "transformers"
    if asked_to and (itself or asked_to.type == "ppo"):
        _refuse(job, spec, training.sequence_length, "training.objective.generation")
        return True
    asked = training.evaluation
    if asked and asked.generates:
        _refuse(job, spec, (asked.sequence_length or training.sequence_length) + asked.generates, "training.evaluation.generates")
        return True
    return False


def written_before(writer: Writer | None, training: Training) -> Callable[[], None] | None:
    """What writes a step's answers before it; None if nothing does."""
    asked = training.objective
    if writer is None or asked is None or asked.type == "ppo":
        return None
    sequences = training.gradient_accumulation_steps * training.micro_batch_size
    return partial(_answers, writer, sequences, asked.prompt_length, training.sequence_length - asked.prompt_length)


def _answers(writer: Writer, sequences: int, prompt: int, answer: int) -> None:
    """A phase in which they are written (trl/trainer/grpo_trainer.py, `_generate_single_turn`)."""
    tape = writer.tape
    tape.begin(PHASE)
    before, tape.grad_enabled = tape.grad_enabled, False
    ids, mask = (empty(tape, (sequences, prompt), dtypes.int64, name) for name in ("input_ids", "attention_mask"))
    writer(ids, mask, answer)
    tape.grad_enabled = before


def _refuse(job: Job, spec: ModelSpec, tokens: int, where: str) -> None:
    """Raise for a model that cannot be seen writing sequences of so many tokens, and for ways of training beside it."""
    training = job.training
    if not isinstance(spec, DecoderSpec) or not spec.cached or training.head != "causal-lm":
        raise NotModelled(f"generating with {spec.model_type} models is not modelled yet", where)
    if spec.learned_positions and spec.longest_sequence and tokens > spec.longest_sequence:
        raise Contradiction(f"{tokens} tokens are more than the model's {spec.longest_sequence} learned positions", where)
    if spec.window is not None and spec.window <= tokens:
        raise NotModelled(f"generating past the {spec.window} tokens of a sliding window is not modelled yet", where)
    if (training.implementation, training.transformers_release) != ("transformers", "5"):
        raise NotModelled("generating is modelled with the modules of transformers 5: write implementation transformers", where)


def _places(mask: Tensor) -> Tensor:
    """Positions, counted from a mask in which nothing is left out."""
    counted = unary("cumsum", mask)
    less = add_scalar(counted)
    del counted
    padded = unary("eq", mask, dtypes.bool_)
    return binary("masked_fill", less, padded, dtypes.int64)


def _next(places: Tensor) -> Tensor:
    """The position after the last of each sequence."""
    count = empty(places.tape, (1,), dtypes.int64, "arange")
    return add_scalar(add(count, narrow(places, 1, 1)))
