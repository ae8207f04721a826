"""torch as judge: small models and settings of every family drawn at random, so that no table decides what is tried.

cases/random_models.yaml has the values that a family's fields may take.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from estimator import Job, WillItFitError, estimate
from estimator.families import FAMILIES, heads, spec_class
from estimator.specs.resolve import resolve
from estimator.verify.step import fake_step
from tests.jobs import counts, table

MODELS = table("random_models")
WITHIN = 0.001
"""Most are equal. What is left: masks and rotary tables of a few tokens, whose temporaries the tape does not have."""
WITHOUT_TEXT = ("image-classification", "contrastive", "speech-seq2seq-lm")
WITH_TARGETS = ("seq2seq-lm", "speech-seq2seq-lm")


@st.composite
def models(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """An architecture of that type."""
    layers, head_count, size = (
        draw(st.integers(1, 4)),
        draw(st.sampled_from((4, 8))),
        draw(st.sampled_from((16, 32, 64, 80, 128))),
    )
    common: dict[str, Any] = {
        "hidden_size": head_count * size,
        "num_hidden_layers": layers,
        "num_attention_heads": head_count,
        "vocab_size": draw(st.sampled_from((1000, 8000))),
    }
    if kind == "clip":
        common = {}
    if kind == "mamba2":
        common["num_heads"] = 2 * head_count * size // 32
    if kind == "granitemoehybrid":
        common["mamba_n_heads"] = head_count
        common["layer_types"] = draw(st.lists(st.sampled_from(("mamba", "attention")), min_size=layers, max_size=layers))
    keys = spec_class(kind).keys()
    known = {name: value for name, value in common.items() if name in keys}
    own = {name: draw(st.sampled_from(values)) for name, values in MODELS[kind].items()}
    return {"model_type": kind, **known, **own}


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A training job of a small model, on one GPU or under FSDP2."""

    def one(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    kind = one(*(kind for kind in FAMILIES if spec_class(kind).runs))
    head = one(*heads(kind))
    training = {
        "head": head,
        "precision": one("bf16-true", "bf16-mixed", "32-true", "16-true"),
        "optimizer": one("adamw", "adam", "sgd", "sgd-momentum"),
        "optimizer_implementation": one("foreach", "fused", "forloop"),
        "micro_batch_size": one(1, 2, 3),
        "gradient_accumulation_steps": one(1, 2),
        "activation_checkpointing": one("none", "full", {"every": 2}, {"every": 3}, "sqrt"),
        "attention": one(*(way for way in spec_class(kind).attentions if way != "flash_attention_2")),
    }
    if head not in WITHOUT_TEXT:
        training["sequence_length"] = one(8, 20) if kind == "mamba" else one(64, 128, 333, 512)  # it scans token by token
    if head in WITH_TARGETS:
        training["target_length"] = one(50, 128)
    if draw(st.booleans()) and kind not in ("mamba", "mamba2"):  # peft puts none on their output projections
        training["adapter"] = {"rank": one(4, 16), "dtype": one("bf16", "fp32"), "dropout": one(0, 0.1)}
    job = {"model": draw(models(kind)), "training": training}
    if draw(st.integers(0, 3)) == 0:
        job |= {
            "hardware": {"gpus": one(2, 8)},
            "parallelism": {"strategy": "fsdp2", "reshard_after_forward": draw(st.booleans())},
        }
    return job


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(jobs())
def test_a_random_step_allocates_what_torch_allocates(asked: dict[str, Any]) -> None:
    try:
        answer = estimate(asked)
    except WillItFitError as refused:
        event(f"refused: {refused.slug}")
        return
    job = Job.model_validate(answer.job)
    counted, estimated = fake_step(job, resolve(job.model).spec), counts(answer)
    assert all(abs(estimated[name] / counted[name] - 1) <= WITHIN for name in counted), (estimated, counted)
    event("equal" if estimated == counted else "within 0.1 %")
