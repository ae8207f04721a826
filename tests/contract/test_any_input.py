"""Whatever a job holds, it is answered or refused: nothing else is ever raised."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from estimator import Answer, InvalidJob, WillItFitError, estimate, fit
from tests.schemas import schema

pytestmark = pytest.mark.slow

INLINE = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 100, "num_hidden_layers": 2, "num_attention_heads": 4}
WHOLE = {
    "train": estimate({"model": {**INLINE, "vocab_size": 100}, "hardware": {"gpu": "h100"}, "training": {"adapter": {}}}).job,
    "serve": estimate({"model": "gpt2", "task": "serve", "hardware": {"memory": "24GB"}, "serving": {"hours": 1}}).job,
}
WORDS = [
    "",
    "gpt2",
    "13B",
    "0B",
    "nf4",
    "int8",
    "full",
    "sqrt",
    "fsdp2",
    "zero3",
    "eager",
    "h100",
    "24GB",
    "1e400",
    "-1",
    "\0",
    "é" * 300,
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 20)
    | st.sampled_from([2**31, 2**63, -(2**70), 10**30])
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["every", "type", "rank", "gpu", "x"]), inner, max_size=3)
    ),
    max_leaves=4,
)


def places(part: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of everything in a mapping."""
    if not isinstance(part, dict):
        return [path]
    return [path, *(place for name, inner in part.items() for place in places(inner, (*path, name)))]


@st.composite
def jobs(draw: st.DrawFn) -> Any:
    """A whole job of which one to three parts were replaced by anything."""
    job: Any = copy.deepcopy(WHOLE[draw(st.sampled_from(["train", "serve"]))])
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(places(job)[1:]))
        part = job
        for step in path:
            part = part[step]
        part[last] = draw(VALUES)
    return job


@settings(max_examples=400, deadline=None, derandomize=True)
@given(jobs())
@example({"model": {**INLINE, "vocab_size": 2**31, "num_hidden_layers": 2**31, "hidden_size": 2**31}})
@example({"model": "mixtral-8x7b", "training": {"micro_batch_size": 1000, "sequence_length": 2**20}})
@example({"model": "llama-2-7b", "training": {"adapter": {"type": "oft", "block_size": 1}}})
@example(None)
@example([])
@example(3)
@example({"model": "gpt2", "training": {"micro_batch_size": 2**20, "gradient_accumulation_steps": 2**20, "tokens": 10**16}})
def test_a_job_is_answered_or_refused(job: Any) -> None:
    try:
        answer = estimate(job)
    except WillItFitError as found:
        refused = str(found)
    else:
        refused = ""
    if refused:
        assert len(refused) < 5000
        return
    assert Answer.model_validate_json(answer.to_json()) == answer
    schema("answer").validate(json.loads(answer.to_json()))
    schema("job").validate(answer.job)
    assert answer.memory.peak_bytes > 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(["gpt2", "7B"]) | st.text(max_size=12) | st.from_regex(r"[0-9.]{1,4} ?[bBmMxX]?", fullmatch=True),
    st.sampled_from(["2x24GB", "h100"])
    | st.text(max_size=12)
    | st.from_regex(r"[0-9]{0,5} ?x? ?[0-9.]{0,4} ?(GB|gib|h100)", fullmatch=True),
)
def test_the_headline_question_is_answered_or_refused(model: str, hardware: str) -> None:
    with suppress(WillItFitError):
        assert fit(model, hardware).rows


def test_a_number_may_name_a_card() -> None:
    """As YAML reads `gpu: 3090`."""
    answer = estimate({"model": "gpt2", "hardware": {"gpu": 3090}})
    assert answer.memory == estimate({"model": "gpt2", "hardware": {"gpu": "rtx-3090"}}).memory


@pytest.mark.parametrize(
    ("model", "hardware", "where"), [(None, "24GB", "model"), ("7B", None, "hardware"), (7, "24GB", "model")]
)
def test_what_is_no_name_is_refused(model: Any, hardware: Any, where: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        fit(model, hardware)
    assert refused.value.where == where
