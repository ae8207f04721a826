"""Tensor and sequence parallelism as torch's `parallelize_module` makes it of a decoder of the Llama kind.

Between the modules of a layer each rank holds its part of the tokens. Attention and the feed-forward layer get all tokens, and
compute with this rank's heads and columns; what comes out is summed over ranks and scattered by tokens. The embedding's
rows are shared, too, and so are the output layer's, whose logits are gathered. After torch/distributed/tensor/parallel/style.py
of 2.13 and the plan of PyTorch's tutorial on it (estimator/verify/tensor.py, which is what the tests run).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.families.layers import Layer
from estimator.families.multi_tensor import Lists
from estimator.families.parameter import Parameter
from estimator.families.sharding import Sharding
from estimator.parallel.tensor_modules import Distributed, Embedding, Gathering, Head, Rowwise
from estimator.tape.collectives import Group
from estimator.tape.dtypes import DType
from estimator.tape.layout import Shape
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty

COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
"""Linear layers whose outputs ranks share: rows of the weight, and of the bias (`ColwiseParallel`)."""
ROWS = ("o_proj", "down_proj")
"""Linear layers whose inputs ranks share: columns of the weight (`RowwiseParallel`)."""
EMBEDDING = "embed_tokens"


class TensorParallel(Sharding):
    """`twice`: the optimizer reads gradients in two operations, the second one two times (Adam's `foreach`). `tied`: the output
    layer has the embedding's weight. `gathers`: logits are gathered; else each rank keeps those of its words, for a loss that
    ranks share."""

    def __init__(self, tape: Tape, degree: int, twice: bool, tied: bool, gathers: bool = True):
        self.tape = tape
        self.group = Group("tensor", degree)
        self.reads = (1, 2) if twice else (1,)
        self.tied, self.gathers = tied, gathers
        self.unplaced: list[Parameter] = []
        """Parameters whose gradients have other placements than they, when the optimizer steps."""

    def parameter(self, tape: Tape, shape: Shape, dtype: DType, name: str) -> tuple[Tensor, Tensor]:
        local = empty(tape, self.part(shape, name), dtype, name)
        return self.seen(local, shape, name), local

    def part(self, shape: Shape, name: str) -> Shape:
        """This rank's part of a parameter."""
        module, degree = name.split(".")[-2], self.group.size
        if module in COLUMNS or module == EMBEDDING:
            return (shape[0] // degree, *shape[1:])
        return (shape[0], shape[1] // degree) if module in ROWS else shape

    def seen(self, part: Tensor, shape: Shape, name: str) -> Tensor:
        """What the model computes with: of an embedding of its own the whole, and so its gradient has all rows."""
        whole = name.split(".")[-2] == EMBEDDING and not self.tied
        return Tensor(part.storage, shape, part.dtype) if whole else part

    def full_shape(self, parameter: Parameter) -> Shape:
        module, (rows, *columns) = parameter.name.split(".")[-2], parameter.tensor.shape
        if module in COLUMNS or (module == EMBEDDING and self.tied):
            return (rows * self.group.size, *columns)
        return (rows, columns[0] * self.group.size) if module in ROWS else parameter.tensor.shape

    def split(self, layer: Layer) -> Layer:
        block: Any = layer
        attention, mlp = block.self_attn, block.mlp
        for owner, name in (
            (block, "input_layernorm"),
            (block, "post_attention_layernorm"),
            (attention, "q_norm"),
            (attention, "k_norm"),
        ):
            if getattr(owner, name) is not None:
                setattr(owner, name, Distributed(getattr(owner, name)))
        attention.o_proj, mlp.down_proj = Rowwise(attention.o_proj, self.group), Rowwise(mlp.down_proj, self.group)
        block.self_attn, block.mlp = Gathering(attention, self.group), Gathering(mlp, self.group)
        return layer

    def spread(self, model: Any, outside: list[Parameter]) -> None:
        body = model.body
        body.embed_tokens = Embedding(body.embed_tokens, self.group, model.lm_head if self.tied else None)
        body.norm = Distributed(body.norm)
        model.lm_head = Head(model.lm_head, self.group, self.gathers)

    def prepare(self, trained: list[Parameter]) -> None:
        self.unplaced = [p for p in trained if misplaced(p, self.tied)]

    def step(self, optimize: Callable[[], None]) -> None:
        """An operation of the optimizer works on gradients placed as their parameters: on copies, as long as it runs."""
        lists = Lists(self.tape)
        for reads in self.reads:
            held = [lists.new("redistribute", self.unplaced) for _ in range(reads)]
            for copies in held:
                lists.free(copies)
            sum_norms(self.tape, self.group, self.unplaced, reads)
        optimize()


def misplaced(p: Parameter, tied: bool) -> bool:
    """Whether a parameter's gradient has another placement: the embedding's is whole, a norm's is of this rank's tokens. That of
    an embedding that is `tied` to the output layer is added to that layer's, and so placed as that is."""
    return whole(p) or (p.name.split(".")[-2] == EMBEDDING and not tied)


def whole(p: Parameter) -> bool:
    """Whether every rank has all of a parameter: a norm's."""
    return p.name.split(".")[-2] not in (*COLUMNS, *ROWS, EMBEDDING)


def sum_norms(tape: Tape, group: Group, gradients: list[Parameter], times: int = 1) -> None:
    """Record that the gradients of norms are summed, each by itself."""
    for p in gradients:
        if p.tensor is p.local:
            tape.enter(p.slot)
            for _ in range(times):
                tape.communicate("all_reduce", *group, p.local.nbytes)
    tape.enter(None)
