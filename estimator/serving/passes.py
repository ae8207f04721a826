"""Serving on a tape: the prompt in one pass (prefill), then one token at a time (decode)."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.families.build import Builder
from estimator.families.heads import CausalLM
from estimator.tape import dtypes
from estimator.tape.pointwise import to
from estimator.tape.tape import LOSS
from estimator.tape.tensor import empty
from estimator.tape.views import narrow


@dataclass(frozen=True, slots=True)
class Requests:
    """`sequences` at a time of `context` tokens each."""

    sequences: int
    context: int


def serve(build: Builder, model: CausalLM, requests: Requests, prompts: int | None = None) -> None:
    """Play a prefill pass over the prompts, all of them or so many, and one decoding step after it.

    Logits are made for the last token of each sequence, and copied to float32 to sample from
    (transformers: generation/utils.py, `logits_to_keep`).
    """
    tape = build.tape
    tape.begin("prefill")
    _pass(build, model, prompts or requests.sequences, requests.context)
    tape.begin("decode")
    tape.past = requests.context
    _pass(build, model, requests.sequences, 1)
    tape.finish()


def _pass(build: Builder, model: CausalLM, sequences: int, tokens: int) -> None:
    tape = build.tape
    ids = empty(tape, (sequences, tokens), dtypes.int64, "input_ids")
    hidden = model.body.forward(ids)
    last = narrow(hidden, 1, 1)
    with tape.counting(LOSS):
        logits = model.logits(last)
        del hidden, last  # locals of the model's forward pass
        wide = to(logits, dtypes.float32)
    del wide, logits, ids
