"""Bottleneck adapters as AdapterHub's library applies them: two small layers after a block, or beside it.

adapters 1.3, methods/bottleneck.py (`BottleneckLayer.bottleneck_layer_forward`) and methods/modeling.py (`Adapter`,
`ParallelAdapter`). The library freezes all but them and the head (model_mixin.py, `freeze_model`, `freeze_embeddings`). It runs
with transformers 4.57, whose layers are those of 5 but for some buffers, and copies what attention gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from estimator.contract import job
from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Training
from estimator.families import having
from estimator.families.build import Builder
from estimator.families.modules import ACTIVATIONS, Join, LayerNorm, Linear, Module, Residual
from estimator.families.spec import ModelSpec
from estimator.parallel.strategies import Strategy
from estimator.tape.dtypes import BY_NAME, DType
from estimator.tape.pointwise import add, dropout, mul, mul_scalar, silu, tanh
from estimator.tape.tensor import Tensor
from estimator.training.methods import Method
from estimator.training.targets import Targets

HEADS = ("lm_head.dense", "lm_head.layer_norm", "cls.", "classifier.", "score.")
"""Where the names of what is trained outside of a model's body begin: what of a head is no output layer (`freeze_embeddings`)."""
NON_LINEARITIES: dict[str, Module] = {**ACTIVATIONS, "swish": silu, "tanh": tanh}
WHERE = "training.adapter"


def bottleneck(asked: job.Bottleneck, training: Training, spec: ModelSpec, strategy: Strategy, dtype: DType) -> Bottleneck:
    """The method that a job trains with. Raises `InvalidJob` for what cannot be, `NotModelled` for what is not known."""
    if spec.can.bottleneck is None:
        known = ", ".join(having(lambda kind: kind.can.bottleneck is not None))
        raise NotModelled(f"bottleneck adapters in {spec.model_type} are not modelled yet; in {known} they are", WHERE)
    if not strategy.alone:
        raise NotModelled(
            f"bottleneck adapters under {strategy} are not modelled yet; on one GPU they are", "parallelism.strategy"
        )
    for given, where in (
        (training.quantization, "quantization"),
        (training.objective, "objective"),
        (training.implementation != "transformers", "implementation"),
        (training.loss != "eager", "loss"),
        (training.transformers_release != "5", "transformers_release"),
        (training.activation_checkpointing not in ("none", "full"), "activation_checkpointing"),
        (training.attention != "sdpa", "attention"),
        (training.attention_mask != "none", "attention_mask"),
    ):
        if given:
            raise NotModelled(
                f"{where}: {getattr(training, where)} beside bottleneck adapters is not modelled yet", f"training.{where}"
            )
    if training.reentrant_checkpointing:
        raise Contradiction("adapters refuses checkpointing with re-entrance: leave it out", "training.reentrant_checkpointing")
    if asked.residual_before_ln == "post_add" and not (
        asked.original_ln_before and (spec.can.bottleneck == "post-norm" or asked.is_parallel)
    ):
        raise Contradiction(
            "post_add asks for a norm after the block, and original_ln_before: write true", f"{WHERE}.residual_before_ln"
        )
    own = BY_NAME[asked.dtype] if asked.dtype else dtype
    if own is not dtype and not training.autocast:
        raise Contradiction(
            f"the adapter's layers get hidden states in {dtype.name} as they are: write that, or autocast: true", f"{WHERE}.dtype"
        )
    depth = spec.depth
    if asked.leave_out and (max(asked.leave_out) >= depth or len(set(asked.leave_out)) == depth):
        raise Contradiction(f"the model has {depth} layers, from 0 on: leave out some of those", f"{WHERE}.leave_out")
    layers = frozenset(range(depth)) - frozenset(asked.leave_out) if asked.leave_out else None
    return Bottleneck(Targets(names=(), layers=layers), own, None, "none", asked)


@dataclass(frozen=True, slots=True)
class Bottleneck(Method):
    """`asked`: the job's settings, which say where adapters are and how they run."""

    of_peft: ClassVar[bool] = False

    asked: job.Bottleneck

    def adapt(self, build: Builder, name: str, module: Module, inputs: int, outputs: int) -> Module:
        return module

    def trains(self, name: str, adapted: bool) -> bool:
        """Whether a parameter lies outside of the model's body."""
        return name.startswith(HEADS)

    def join(self, build: Builder, place: str, size: int, norm: Module | None) -> Join:
        if not (self.asked.mh_adapter if place == "mh_adapter" else self.asked.output_adapter):
            return Residual(norm)
        build.adapted.append(place)
        return _Adapted(self, build, place, size, norm)


class _Adapted:
    """A block's output through its adapter, and joined with the block's input (`BottleneckLayer`)."""

    def __init__(self, method: Bottleneck, build: Builder, place: str, size: int, norm: Module | None):
        self.norm, self.asked = norm, method.asked
        between = max(1, int(size // self.asked.reduction_factor))

        def parameter(end: str, *shape: int) -> Tensor:
            return build.parameter(f"{place}.{end}", shape, method.dtype, trainable=True)

        def linear(end: str, inputs: int, outputs: int) -> Linear:
            return Linear(parameter(f"{end}.weight", outputs, inputs), parameter(f"{end}.bias", outputs))

        def layer_norm(end: str) -> Module:
            return LayerNorm(parameter(f"{end}.weight", size), parameter(f"{end}.bias", size))

        self.before = layer_norm("adapter_norm_before") if self.asked.ln_before else None
        self.down, self.up = linear("adapter_down", size, between), linear("adapter_up", between, size)
        self.after = layer_norm("adapter_norm_after") if self.asked.ln_after else None
        learned = {"learned": 1, "channel": size}.get(str(self.asked.scaling))
        self.scaling = parameter("scaling", learned) if learned else None
        self.act = NON_LINEARITIES[self.asked.non_linearity]

    def __call__(self, out: Tensor, residual: Tensor) -> Tensor:
        made, *_held = self._composed(out, residual)
        return self._joined(made, out, residual)

    def _composed(self, out: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        """The adapter's output; what it added, and its last layer's output are held until the block is joined."""
        if self.asked.is_parallel:
            made, up = self._parallel(residual)
            return made, up
        x, added = self._entered(out, residual)
        made, up = self._sequential(x, added)
        return made, added, up

    def _entered(self, out: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """What the adapter reads, and what it adds to its output (`Adapter.pre_forward`)."""
        asked = self.asked
        added, x = out, out
        if asked.original_ln_before:
            x = add(out, residual)
            if asked.residual_before_ln == "post_add":
                added = x
            if self.norm is not None:
                x = self.norm(x)
        return x, added if asked.residual_before_ln else x

    def _sequential(self, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        made, up = self._through(x)
        if self.asked.adapter_residual_before_ln:
            made = add(made, added)
        if self.after is not None:
            made = self.after(made)
        return made if self.asked.adapter_residual_before_ln else add(made, added), up

    def _parallel(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made, up = self._through(x)
        return made if self.after is None else self.after(made), up

    def _through(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The two layers: their output, and the same before dropout."""
        down = self.act(self.down(x if self.before is None else self.before(x)))
        up = self.up(down)
        up = mul_scalar(up) if self.scaling is None else mul(up, self.scaling)
        return dropout(up, self.asked.dropout), up

    def _joined(self, made: Tensor, out: Tensor, residual: Tensor) -> Tensor:
        """What the next block gets (`post_forward`)."""
        total = add(made, out) if self.asked.is_parallel else made
        if not self.asked.original_ln_after:
            return total
        return add(total, residual) if self.norm is None else self.norm(add(total, residual))
