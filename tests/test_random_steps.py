"""torch as judge: small models and settings drawn at random, so that no table decides what is tried."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from estimator import Job, WillItFitError, estimate
from estimator.specs.resolve import resolve
from estimator.verify.step import fake_step
from tests.jobs import counts

WITHIN = 0.001
"""Most are equal. What is left: masks and rotary tables of a few tokens, whose temporaries the tape does not have."""


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A training job of a small model, on one GPU or under FSDP2."""

    def one(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    kind, heads = one("llama", "mistral", "qwen2", "qwen3", "gpt2"), one(4, 8, 12)
    size = one(32, 64, 80, 100, 128, 256)
    model = {
        "model_type": kind,
        "hidden_size": heads * size,
        "intermediate_size": one(1000, 1408, 2816),
        "num_hidden_layers": draw(st.integers(1, 7)),
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kind == "gpt2" else one(1, 4, heads),
        "head_dim": size,
        "vocab_size": one(1000, 32000),
        "max_position_embeddings": 2048,
        "tie_word_embeddings": draw(st.booleans()),
        "hidden_act": one("gelu_new", "gelu", "relu") if kind == "gpt2" else one("silu", "gelu"),
    }
    if kind == "gpt2":
        model |= {"attention_dropout": one(0, 0.1), "hidden_dropout": one(0, 0.1), "embedding_dropout": one(0, 0.1)}
    if kind == "mistral":
        model["sliding_window"] = one(None, 100, 4096)
    if kind == "llama":
        model["attention_bias"] = model["attention_output_bias"] = draw(st.booleans())
    model |= {"attention_bias": True} if kind == "qwen2" else {"qk_norm": True} if kind == "qwen3" else {}
    training = {
        "precision": one("bf16-true", "bf16-mixed", "32-true", "16-true"),
        "optimizer": one("adamw", "adam", "sgd", "sgd-momentum"),
        "optimizer_implementation": one("foreach", "fused", "forloop"),
        "micro_batch_size": one(1, 2, 3),
        "sequence_length": one(128, 256, 333, 1024),
        "gradient_accumulation_steps": one(1, 2, 3),
        "activation_checkpointing": one("none", "full", {"every": 2}, {"every": 3}, "sqrt"),
        "attention": one("sdpa", "eager"),
    }
    if draw(st.booleans()):
        target = "c_attn" if kind == "gpt2" else "q_proj"
        targets = one("all-linear", [target])
        training["adapter"] = {"rank": one(4, 16), "targets": targets, "dtype": one("bf16", "fp32"), "dropout": one(0, 0.1)}
    job = {"model": model, "training": training}
    if draw(st.integers(0, 3)) == 0:
        job |= {
            "hardware": {"gpus": one(2, 8)},
            "parallelism": {"strategy": "fsdp2", "reshard_after_forward": draw(st.booleans())},
        }
    return job


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
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
