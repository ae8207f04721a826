"""torchtitan's own Llama 3, sharded and recomputed by its own functions, and a step of its own trainer (torchtitan 0.2.2).

The trainer is a stand-in with what `Trainer.train_step` reads; what it moves to the GPU is counted from then on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import MethodType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.distributed.device_mesh import DeviceMesh
from torchtitan import train
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.config.job_config import ActivationCheckpoint
from torchtitan.distributed import activation_checkpoint, utils
from torchtitan.models.llama3.infra import parallelize
from torchtitan.models.llama3.model.args import TransformerModelArgs
from torchtitan.models.llama3.model.model import Transformer

from estimator.contract.job import CheckpointForm, Job
from estimator.verify.live import Live
from estimator.verify.model import defaulting_to
from estimator.verify.optimizers import Optimizers
from estimator.verify.tensor import meshes_joined, of_data

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
GPU = "the GPU"
"""What the stand-in calls its device."""


def build(job: Job, spec: Any, mesh: DeviceMesh | None) -> Transformer:
    """The model, ready to be trained as the job says (`parallelize_llama`)."""
    training = job.training
    hidden = spec.hidden_size
    args = TransformerModelArgs(
        dim=hidden,
        n_layers=spec.num_hidden_layers,
        n_heads=spec.num_attention_heads,
        n_kv_heads=spec.num_key_value_heads,
        vocab_size=spec.vocab_size,
        multiple_of=spec.intermediate_size,
        ffn_dim_multiplier=spec.intermediate_size / int(8 * hidden / 3),
        max_seq_len=training.sequence_length,
    )
    with defaulting_to(torch.bfloat16 if training.precision == "bf16-true" else torch.float32):
        model = Transformer(args)
    if job.parallelism.tensor > 1:
        assert mesh is not None
        parallelize.apply_tp(model, mesh["tensor"], loss_parallel=True, enable_float8_tensorwise_tp=False)
    if (asked := _recomputed(training.activation_checkpointing)) is not None:
        with mock.patch.object(activation_checkpoint, "_layer_sac_count", 0):
            activation_checkpoint.apply_ac(model, asked, op_sac_save_list=parallelize._op_sac_save_list)
    if mesh is not None and (data := of_data(mesh)) is not None:
        reduced = training.dtypes.gradients if training.dtypes else None
        policy = "default" if job.parallelism.reshard_after_forward else "never"
        with meshes_joined():
            parallelize.apply_fsdp(
                model,
                data,
                param_dtype=_computed(job),
                reduce_dtype=TYPES[reduced or "fp32"],
                pp_enabled=False,
                reshard_after_forward_policy=policy,
            )
    return model.train()


def _computed(job: Job) -> torch.dtype:
    """`training.mixed_precision_param`."""
    return torch.float32 if job.training.precision == "32-true" else torch.bfloat16


def _recomputed(asked: str | CheckpointForm) -> ActivationCheckpoint | None:
    if asked == "none":
        return None
    if asked == "full":
        return ActivationCheckpoint(mode="full")
    every = asked.every if isinstance(asked, CheckpointForm) else None
    return ActivationCheckpoint(mode="selective", selective_ac_option=str(every or "op"))


def play(
    job: Job, spec: Any, model: Any, optimizer: Optimizers, scaler: Any, live: Live, logs: dict[str, Any] | None = None
) -> dict[str, int]:
    """One step of the trainer's, with `live` counting: `Trainer.train_step`, whose phases are told apart by what it calls."""
    del scaler
    watch = _Watch(live, logs)
    backward = torch.Tensor.backward

    def seen(loss: torch.Tensor) -> None:
        watch.counted["forward_end"] = live.bytes
        watch.lap("forward")
        live.in_backward = True
        backward(loss)
        live.in_backward = False

    def forward_backward_step(**given: Any) -> torch.Tensor:
        loss = train.Trainer.forward_backward_step(trainer, **given)
        watch.lap("backward")
        return loss

    def step() -> None:
        optimizer.step()
        watch.lap("optimizer_step")

    def zero_grad() -> None:
        optimizer.zero_grad()
        watch.begin()
        live.entered = False

    with (
        warnings.catch_warnings(),
        mock.patch.object(torch.Tensor, "backward", seen),
        _moves(live),
        nullcontext() if job.training.gradient_clipping else mock.patch.object(utils, "clip_grad_norm_"),
    ):
        warnings.simplefilter("ignore")  # of an autocast to float32, which is none
        trainer = _stand_in(job, model)
        trainer.optimizers = SimpleNamespace(zero_grad=zero_grad, step=step)
        trainer.forward_backward_step = forward_backward_step
        trainer.post_dataloading_process = MethodType(train.Trainer.post_dataloading_process, trainer)
        train.Trainer.train_step(trainer, _batches(job, spec))
    optimizer.zero_grad()
    return watch.counted


class _Watch:
    """The counts of a step's phases so far, and where the present one began in the log of live bytes."""

    def __init__(self, live: Live, logs: dict[str, Any] | None):
        self.live, self.logs, self.at = live, logs, 0
        self.counted = dict.fromkeys(("resident", "forward_end", "forward", "backward", "optimizer_step"), 0)

    def begin(self) -> None:
        self.counted["resident"], self.at = self.live.bytes, len(self.live.log)

    def lap(self, phase: str) -> None:
        self.counted[phase] = max(self.counted[phase], self.live.highest(self.at))
        if self.logs is not None:
            self.logs.setdefault(phase, []).extend(self.live.log[self.at :])
        self.at = len(self.live.log)


def _batches(job: Job, spec: Any) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    shape = job.training.micro_batch_size, job.training.sequence_length
    while True:
        yield {"input": torch.randint(0, spec.vocab_size, shape)}, torch.randint(0, spec.vocab_size, shape)


@contextmanager
def _moves(live: Live) -> Iterator[None]:
    """What is moved to the GPU is a copy there; what is made before the first is moved is not on it."""
    plain: Callable[..., torch.Tensor] = torch.Tensor.to

    def to(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args != (GPU,):
            return plain(x, *args, **kwargs)
        live.entered = True
        return x.clone()

    with mock.patch.object(torch.Tensor, "to", to):
        yield


def _stand_in(job: Job, model: Any) -> Any:
    """What `train_step` reads of a trainer, but for its methods."""
    mesh = next((p.device_mesh for p in model.parameters() if hasattr(p, "device_mesh")), None)
    tensor = job.parallelism.tensor > 1
    sharded = mesh is not None and mesh.ndim > tensor
    dims = SimpleNamespace(
        fsdp_enabled=sharded,
        dp_enabled=sharded,
        tp_enabled=tensor,
        pp_enabled=False,
        cp_enabled=False,
        ep_enabled=False,
        get_mesh=lambda name: mesh and (mesh, 0),  # one dimension of it, as collectives take it, too
        get_optional_mesh=lambda name: None,
    )

    def nothing(*args: Any) -> bool:
        return False

    return SimpleNamespace(
        lr_schedulers=SimpleNamespace(schedulers=[SimpleNamespace(get_last_lr=lambda: [0.0])], step=nothing),
        parallel_dims=dims,
        gradient_accumulation_steps=job.training.gradient_accumulation_steps,
        device=GPU,
        model_parts=[model],
        model_args=model.model_args,
        loss_fn=cross_entropy_loss,
        train_context=utils.get_train_context(tensor),
        maybe_enable_amp=utils.maybe_enable_amp(dims, {torch.float32: "float32"}.get(_computed(job), "bfloat16"), "cpu"),
        job_config=SimpleNamespace(training=SimpleNamespace(max_norm=1.0)),
        checkpointer=SimpleNamespace(maybe_wait_for_staging=nothing),
        metrics_processor=SimpleNamespace(should_log=nothing),
        step=1,
    )
