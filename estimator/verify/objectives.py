"""TRL's own losses over several models or answers, on fake tensors: what an objective runs in place of the model's loss.

Needs `trl` (1.16) in addition to the extra `torch`; its trainers' methods are called on a stand-in that has the settings they
read.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn

from estimator.contract.job import Job
from estimator.contract.job.objective import Objective
from estimator.families.from_config import from_mapping
from estimator.families.spec import ModelSpec
from estimator.training.objectives.dropout import LEFT_ON
from estimator.verify.live import Live
from estimator.verify.model import TRUE, plain, prepare

METRICS = {
    "dpo": ("log_probs", "entropy", "mean_logits", "is_top1"),
    "grpo": ("log_probs", "entropy"),
    "kto": ("log_probs", "entropy", "mean_logits"),
}
"""What each trainer reads of the model's scores, for its loss and its log."""


class Trainer(nn.Module):
    """A model to be trained, the further models, and the loss of all of them; called with a batch, as a model is."""

    def __init__(self, job: Job, spec: ModelSpec, model: Any):
        from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model

        super().__init__()
        asked = job.training.objective
        assert asked is not None
        self.job, self.asked, self.model, self.reference = job, asked, model, None
        if asked.type not in LEFT_ON:
            disable_dropout_in_model(model)
        if asked.type in METRICS:
            add_fused_lm_head(model.get_base_model() if job.training.adapter else model, outputs=METRICS[asked.type])
        prepare(job, model)
        if asked.reference == "model":
            dtype = TRUE.get(job.training.precision, torch.float32)
            self.reference = plain(spec, "causal-lm", dtype, job.training.attention).eval()
            add_fused_lm_head(self.reference)
            prepare(job, self.reference)
        if isinstance(asked.teacher, dict):
            teacher = from_mapping(asked.teacher, "training.objective.teacher")
            dtype = TRUE.get(job.training.precision, torch.float32)
            self.reference = plain(teacher, "causal-lm", dtype, job.training.attention).eval()
            prepare(job, self.reference)
        self.stand_in = _stand_in(job, asked, model, self.reference)
        self.waiting: list[dict[str, Any]] = []
        self.taken = 0

    def batch(self, vocabulary: int) -> dict[str, Any]:
        """Sequences without padding, and which of their tokens are scored."""
        training, asked = self.job.training, self.asked
        if asked.type in ("grpo", "distillation"):
            if self.taken % training.gradient_accumulation_steps == 0:
                self.waiting = _answers(self.job, vocabulary)
            self.taken += 1
            return self.waiting[(self.taken - 1) % training.gradient_accumulation_steps]
        rows, tokens = training.micro_batch_size * (2 if asked.pairs else 1), training.sequence_length
        if asked.type == "orpo":
            return _both(vocabulary, training.micro_batch_size, tokens, asked.prompt_length)
        if asked.type == "kto":
            return _mismatched(vocabulary, rows, tokens, precomputed=asked.reference == "precomputed")
        made = {"input_ids": torch.randint(0, vocabulary, (rows, tokens))}
        made["attention_mask"] = torch.ones(rows, tokens, dtype=torch.int64)
        if asked.type == "dpo":
            made["completion_mask"] = torch.ones(rows, tokens, dtype=torch.int64)
        if asked.reference == "precomputed":
            made |= {f"ref_{kind}_logps": torch.rand(rows // 2) for kind in ("chosen", "rejected")}
        return made

    def forward(self, **inputs: Any) -> Any:
        return SimpleNamespace(loss=_losses()[self.asked.type](self.stand_in, self.model, inputs))


def _mismatched(vocabulary: int, rows: int, tokens: int, precomputed: bool) -> dict[str, Any]:
    """Answers, each good or bad, and as many that belong to other prompts."""
    made: dict[str, Any] = {}
    for kind in ("", "KL_"):
        made[kind + "input_ids"] = torch.randint(0, vocabulary, (rows, tokens))
        made |= {kind + mask: torch.ones(rows, tokens, dtype=torch.int64) for mask in ("attention_mask", "completion_mask")}
    made["label"] = torch.ones(rows, dtype=torch.bool)
    if precomputed:
        made |= {"ref_logps": torch.rand(rows), "ref_KL_logps": torch.rand(rows)}
    return made


def _both(vocabulary: int, pairs: int, tokens: int, prompt: int) -> dict[str, Any]:
    """Pairs whose halves are yet to be joined, and their prompts."""
    made: dict[str, Any] = {}
    for kind in ("chosen", "rejected"):
        made |= {
            f"{kind}_{name}": torch.randint(0, vocabulary, (pairs, tokens)) for name in ("input_ids", "attention_mask", "labels")
        }
    return made | {f"prompt_{name}": torch.ones(pairs, prompt, dtype=torch.int64) for name in ("input_ids", "attention_mask")}


def writes(asked: Objective) -> bool:
    """Whether the trained model itself writes what it is trained on."""
    return asked.generation is not None and asked.generation.engine == "transformers"


def _answers(job: Job, vocabulary: int) -> list[dict[str, Any]]:
    """The answers of a step, as each micro-step gets its part of them."""
    from trl.trainer.utils import split_tensor_dict

    training, asked = job.training, job.training.objective
    assert asked is not None
    rows = training.gradient_accumulation_steps * training.micro_batch_size
    prompt, answer = (rows, asked.prompt_length), (rows, training.sequence_length - asked.prompt_length)
    made: dict[str, Any] = {}
    for name, shape in (("prompt", prompt), ("completion", answer)):
        made |= {f"{name}_ids": torch.randint(0, vocabulary, shape), f"{name}_mask": torch.ones(shape, dtype=torch.int64)}
    made["num_items_in_batch"] = torch.empty((), dtype=torch.int64)
    if asked.type == "distillation":
        return split_tensor_dict(made, training.gradient_accumulation_steps)
    made["advantages"] = torch.rand(rows)
    if not writes(asked):
        made |= {"old_per_token_logps": torch.rand(answer), "importance_sampling_ratio": torch.rand(rows, 1)}
        made["sampling_per_token_logps"] = torch.rand(answer)
    if asked.reference:
        made["ref_per_token_logps"] = torch.rand(answer)
    return split_tensor_dict(made, training.gradient_accumulation_steps)


def _losses() -> dict[str, Callable[..., Any]]:
    from trl.trainer.distillation_trainer import DistillationTrainer
    from trl.trainer.dpo_trainer import DPOTrainer
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.kto_trainer import KTOTrainer
    from trl.trainer.reward_trainer import RewardTrainer

    def orpo(stand_in: Any, model: Any, inputs: Any) -> Any:
        from trl.experimental.orpo.orpo_trainer import ORPOTrainer

        return ORPOTrainer.get_batch_loss_metrics(stand_in, model, inputs)[0]

    return {
        "dpo": lambda *args: DPOTrainer._compute_loss(*args, return_outputs=False),
        "kto": lambda *args: KTOTrainer._compute_loss(*args, return_outputs=False),
        "orpo": orpo,
        "reward": RewardTrainer.compute_loss,
        "distillation": DistillationTrainer.compute_loss,
        "grpo": GRPOTrainer._compute_loss,
    }


def _stand_in(job: Job, asked: Objective, model: Any, reference: Any) -> SimpleNamespace:
    """The settings that a trainer's loss reads, at their defaults."""
    again, steps = {"use_reentrant": job.training.reentrant_checkpointing}, job.training.gradient_accumulation_steps
    stand_in = SimpleNamespace(
        **_of_grpo(asked, steps),
        model=model,
        ref_model=reference,
        accelerator=_Accelerator(),
        args=SimpleNamespace(
            gradient_checkpointing_kwargs=again,
            center_rewards_coefficient=None,
            delta=None,
            steps_per_generation=steps,
            use_bias_correction_kl=False,
        ),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=asked.reference == "precomputed",
        f_divergence_type="reverse_kl",
        loss_types=["sigmoid"],
        loss_weights=[1.0],
        beta=0.1 if asked.reference else 0.0,
        use_weighting=False,
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    if asked.type == "kto":
        from trl.trainer.kto_trainer import KTOTrainer

        stand_in.loss_type, stand_in.calculate_KL = "kto", True
        stand_in.desirable_weight = stand_in.undesirable_weight = 1.0
        stand_in._compute_kl_logps = partial(KTOTrainer._compute_kl_logps, stand_in)
    if asked.type == "distillation":
        from trl.models.utils import _ForwardRedirection
        from trl.trainer.distillation_trainer import DistillationTrainer

        stand_in.teacher_model, stand_in.beta, stand_in.temperature = reference, 1.0, 1.0
        stand_in._forward_redirection, stand_in._is_vlm, stand_in.model_kwarg_keys = _ForwardRedirection(), False, ()
        for name in ("_compute_loss", "_get_last_hidden_state"):
            setattr(stand_in, name, partial(getattr(DistillationTrainer, name), stand_in))
    if asked.type == "orpo":
        from trl.experimental.orpo.orpo_trainer import ORPOTrainer

        stand_in.is_encoder_decoder, stand_in.padding_value, stand_in.beta = False, 0, 0.1
        for name in ("concatenated_forward", "odds_ratio_loss"):
            setattr(stand_in, name, partial(getattr(ORPOTrainer, name), stand_in))
        stand_in.concatenated_inputs, stand_in.get_batch_logps = ORPOTrainer.concatenated_inputs, ORPOTrainer.get_batch_logps
    return stand_in


def _of_grpo(asked: Objective, steps: int) -> dict[str, Any]:
    """Settings of the trainer that only GRPO's loss reads."""
    if asked.type != "grpo":
        return {}
    from trl.trainer.grpo_trainer import GRPOTrainer

    settings: dict[str, Any] = {
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "loss_type": "dapo",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "use_vllm": not writes(asked),
        "vllm_importance_sampling_correction": True,
        "_entropy_bonus_enabled": False,
        "current_gradient_accumulation_steps": steps,
    }

    scorer = inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)
    scored = partial(scorer, SimpleNamespace(accelerator=_Accelerator()))
    return settings | {"_get_per_token_logps_and_entropies": scored}


class _Accelerator:
    """A stand-in for accelerate's `Accelerator`, of a single process."""

    device = torch.device("cpu")
    num_processes = 1
    is_main_process = True

    def reduce(self, x: torch.Tensor, reduction: str) -> torch.Tensor:
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return x

    gather_for_metrics = gather

    def unwrap_model(self, model: Any) -> Any:
        return model

    def autocast(self) -> Any:
        return contextlib.nullcontext()


@contextmanager
def kernels(job: Job, live: Live) -> Iterator[None]:
    """TRL's kernels as on a GPU, where they allocate nothing; and how many tokens of each sequence are scored."""
    asked = job.training.objective
    if asked is None:
        yield
        return
    from trl.kernels import chunked_divergence, chunked_logprob
    from trl.trainer import utils

    if asked.type not in ("reward", "distillation"):
        live.picked = job.training.sequence_length - max(1, asked.prompt_length)
    with (
        mock.patch.object(chunked_logprob, "_use_triton", return_value=True),
        mock.patch.object(utils, "_use_triton", return_value=True),
        mock.patch.object(utils, "is_triton_available", return_value=True),
        mock.patch.object(utils, "_supports_trl_loss_kernel", _supported),
        mock.patch.object(utils, "_fused_logprob_entropy", _log_probs_and_entropy(), create=True),
        mock.patch.object(chunked_logprob, "triton", SimpleNamespace(cdiv=lambda a, b: -(-a // b)), create=True),
        mock.patch.multiple(chunked_logprob, _forward_kernel=_Kernel(), _backward_kernel=_Kernel()),
        mock.patch.object(chunked_logprob, "_addmm_fp32", _Kernel.launch),
        mock.patch.multiple(chunked_divergence, _project=_Kernel.launch, _addmm_fp32=_Kernel.launch, _stats_kernel=_Kernel()),
        mock.patch.multiple(chunked_divergence, _use_triton=_supported, _backward_kernel=_Kernel()),
        mock.patch.object(chunked_divergence, "triton", SimpleNamespace(cdiv=lambda a, b: -(-a // b)), create=True),
        mock.patch("trl.trainer.distillation_trainer._use_triton", _supported),
    ):
        yield


def _supported(*tensors: Any) -> bool:
    """Whether a kernel takes these tensors. (A mock would keep them.)"""
    return True


@cache
def _log_probs_and_entropy() -> Callable[..., Any]:
    """A module's function that is imported with Triton, of which a stand-in compiles nothing."""
    language = SimpleNamespace(constexpr=None)
    triton = SimpleNamespace(jit=lambda function: _Kernel(), language=language, cdiv=lambda a, b: -(-a // b))
    with mock.patch.dict(sys.modules, {"triton": triton, "triton.language": language}):
        found: Callable[..., Any] = import_module("trl.kernels.logprob_entropy").selective_log_softmax_and_entropy
    return found


class _Kernel:
    """A stand-in for a Triton kernel that was launched on a grid."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.launch

    @staticmethod
    def launch(*args: Any, **settings: Any) -> None:
        """Do nothing: the kernel writes into tensors that it is given."""
