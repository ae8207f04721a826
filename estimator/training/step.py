"""One steady-state training step on a tape: forward and loss, backward, optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from estimator.contract.errors import Contradiction
from estimator.families.build import Builder
from estimator.families.heads import Batch, Model
from estimator.families.model_output import widened
from estimator.families.parameter import Parameter
from estimator.families.sharding import Forward
from estimator.tape import autograd, dtypes
from estimator.tape.autocast import autocast
from estimator.tape.dtypes import DType
from estimator.tape.offload import Offload
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.training.gradients import Clip, kept
from estimator.training.optimizers import Optimizer, step_in_backward
from estimator.training.scaling import Scaler, Unscaled


@dataclass(frozen=True, slots=True)
class Step:
    """What one step processes on one GPU: `micro_steps` times a batch."""

    batch: Batch
    micro_steps: int = 1
    autocast: DType | None = None
    clip: Clip | None = None
    keeps_gradients: bool = False
    widens: bool = False
    """Whether what the model returns is converted to float32."""
    offloads: bool = False
    """Whether all that forward saves goes to the host's memory."""
    in_backward: bool = False
    """Whether the optimizer steps for each parameter within backward."""
    scaler: Callable[[Tape], Scaler] = Unscaled
    between: Callable[[], None] | None = None
    """What runs between steps, as evaluation does."""
    after: Callable[[], None] | None = None
    """What runs after each micro-step, in a step's last one after the optimizer's."""


def train(build: Builder, model: Model, optimizer: Optimizer, step: Step) -> None:
    """Simulate a step on the tape on which `model` was built: the second, so that the optimizer has its states.

    The first micro-step creates the gradients; all later ones add to them and are alike, so two stand for any number, or three
    where the last does what those between do not, or what runs after one, with the gradients there, holds what the one before
    left. What a model itself `carries` from one step to the next is that of a step before, whose passes belong to no phase.
    """
    tape = build.tape
    run = build.root(model.forward)
    trained = [p for p in build.parameters if p.trainable and p.local.numel]
    build.sharding.prepare(trained)
    remembers = build.trained is not None and build.trained.remembers
    stateful = [p for p in build.parameters if p.wanted] if optimizer.first else trained
    states = optimizer.states(tape, build.parameters if remembers else stateful, alone=step.in_backward)
    if step.in_backward:
        step_in_backward(tape, optimizer, trained)
    scaler = step.scaler(tape)
    if build.carries:
        build.sharding.micro_step(last=True)
        _passes(build, model, run, step, scaler, lambda _: None)
        _let_go(tape, trained)
    if step.keeps_gradients:
        kept(tape, trained)
    if step.between is not None:
        step.between()
    repeats = min(step.micro_steps, build.sharding.rounds if step.after is None else 3)
    for i in range(repeats):
        build.sharding.micro_step(last=i + 1 == repeats)
        _passes(build, model, run, step, scaler, tape.begin)
        if step.after is not None and i + 1 < repeats:
            step.after()
    tape.begin("optimizer_step")
    if step.clip is not None:
        scaler.unscale()
        step.clip(tape, trained)
    if not step.in_backward:
        build.sharding.step(lambda: scaler.step(lambda: optimizer.step(tape, trained)))
    scaler.update()
    if step.after is not None:
        _let_go(tape, trained)
        step.after()
    tape.finish()
    del states


def _passes(build: Builder, model: Model, run: Forward, step: Step, scaler: Scaler, begin: Callable[[str], None]) -> None:
    """A micro-step: forward and loss, backward. `begin`: says that a phase begins."""
    tape = build.tape
    tape.grad_enabled = True
    begin("forward")
    inputs = model.inputs(tape, step.batch, build.dtype)
    given = _beside_ids(tape, step.batch)
    tape.saved_tensor_hooks = Offload() if step.offloads else None
    with autocast(tape, step.autocast):
        loss, held = run(*inputs)
    tape.saved_tensor_hooks = None
    if step.widens:
        with tape.losing():
            held = widened(held)
    begin("backward")
    del held
    if loss.grad_fn is None:
        raise unreached(build.adapted)
    autograd.backward(scaler.scale(loss))
    del loss, inputs, given


def _let_go(tape: Tape, trained: Iterable[Parameter]) -> None:
    """Drop all gradients."""
    for p in trained:
        tape.enter(p.slot)
        p.tensor.grad = p.local.grad = None
    tape.enter(None)


def unreached(adapted: Iterable[str]) -> Contradiction:
    """Nothing that the loss depends on is trained: torch's backward raises "element 0 of tensors does not require grad", or
    makes no gradients. `adapted`: names of layers with an adapter."""
    if names := ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in adapted)):
        what, where = f"no adapted layer ({names})", "training.adapter.targets"
    else:
        what, where = "nothing that is trained", "training.trainable"
    return Contradiction(
        f"{what} has a part in the loss, so there is nothing to differentiate; a tower for images does not run on texts alone: "
        "name layers of the language model, too, or write training.images",
        where,
    )


def _beside_ids(tape: Tape, batch: Batch) -> Tensor | None:
    """What a batch has in addition to its ids: a mask if it is padded, [sequences, tokens]; positions, of each sequence if
    documents are packed in it."""
    if tape.batch_mask == "none" and not tape.positions_given:
        return None
    rows = 1 if tape.batch_mask == "none" else batch.sequences
    return empty(tape, (rows, batch.tokens), dtypes.int64, "position_ids" if tape.positions_given else "attention_mask")
