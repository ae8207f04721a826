"""Floating-point operations: as torch counts them, and as everybody's rule of thumb has them."""

from __future__ import annotations

from unittest import mock

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from estimator import estimate
from estimator.contract.job import Job, read_job
from estimator.families.spec import DecoderSpec, ModelSpec
from estimator.pipeline.run import played
from estimator.tape.kernels import flops
from estimator.verify.batch import batch
from estimator.verify.cuda import on_cuda
from estimator.verify.model import build
from estimator.verify.step import documents, usual_numbers

TOKENS = 256
MODELS = [
    "bert-base-uncased",
    "bloom-560m",
    "gemma-2b",
    "gpt2",
    "llama-3.2-1b",
    "opt-125m",
    "phi-2",
    "pythia-160m",
    "qwen2.5-0.5b",
    "t5-small",
]


def counted(job: Job, spec: ModelSpec) -> int:
    """Forward and backward of the real model under torch's counter."""
    with FakeTensorMode(allow_non_fake_inputs=True), documents(), on_cuda(), usual_numbers():
        with mock.patch.object(PreTrainedModel, "initialize_weights"):
            model = build(job, spec, None)
        with FlopCounterMode(display=False) as counter:
            model(**batch(job, spec, model)).loss.backward()
        return counter.get_total_flops()


@pytest.mark.share(3)
@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_that_torch_counts(name: str) -> None:
    attention = "eager" if name in ("bloom-560m", "gpt2") else "sdpa"
    training = {"precision": "bf16-true", "sequence_length": TOKENS, "attention": attention}
    run = played(read_job({"model": name, "training": training}), True)
    ours = sum(flops(run.simulation.build.tape, phase).total for phase in ("forward", "backward"))
    assert ours == counted(run.job, run.model.spec)


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-2-7b", "llama-2-70b", "mistral-7b"])
def test_six_flops_for_each_parameter_and_token(name: str) -> None:
    """6·N·D, N without the embeddings that are only looked up, and attention's 12·layers·width·length for each token, of which
    flash attention computes the scores a second time in backward: fourteen where the rule has twelve."""
    tokens = 1024
    training = {"sequence_length": tokens, "activation_checkpointing": "none"}
    answer = estimate({"model": name, "training": training, "hardware": {"gpu": "h100"}})
    spec = played(read_job({"model": name}), True).model.spec
    assert answer.time
    assert isinstance(spec, DecoderSpec)
    looked_up = spec.vocab_size * (0 if spec.tie_word_embeddings else 1) + (spec.longest_sequence or 0) * spec.learned_positions
    products = 6 * (answer.parameters.total - looked_up * spec.hidden_size) * tokens
    attention = 14 * spec.num_hidden_layers * spec.hidden_size * tokens * tokens
    assert products < answer.time.flops_per_step
    assert answer.time.flops_per_step == pytest.approx(products + attention, rel=0.001)
