"""What FSDP2 cannot share evenly: a parameter whose first dimension is shorter than its ranks are many.

`fully_shard` cuts each parameter along its first dimension into as many pieces as there are ranks, rounded up to whole rows
(torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `_init_sharded_param`, `shard_dim` 0). Of stacked experts that dimension is
the expert: ranks beyond their number hold nothing, the others no less than before, and gathering pads to all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from estimator.families.parameter import Parameter
from estimator.parallel.topology import Topology

NOTICED = 0.05
"""Share of all parameters from which on what is padded is spoken of."""


def uneven(parameters: Sequence[Parameter], place: Topology, replicas: int) -> str:
    """Why more ranks take no less memory, in words, derived from the parameters' shapes; empty where they share them evenly.

    `replicas`: groups of ranks that hold the same (HSDP).
    """
    ranks = place.data // replicas
    if not place.strategy.dtensors or ranks == 1:
        return ""
    short = [p for p in parameters if p.tensor.shape and p.tensor.shape[0] < ranks]
    padded = sum(_padding(p, ranks) for p in short)
    if padded < NOTICED * sum(p.total for p in parameters):
        return ""
    largest = max(short, key=lambda p: _padding(p, ranks))
    rows = largest.tensor.shape[0]
    return (
        f"FSDP2 shards each parameter along its first dimension: {_called(largest.name)} has {rows} there, so {ranks} ranks hold "
        f"no less than {rows} would, and gather {ranks}/{rows} of its bytes; hsdp over groups of at most {rows}, fsdp1, or zero3 "
        "share it evenly"
    )


def _padding(p: Parameter, ranks: int) -> int:
    """Elements that are gathered beyond a parameter's own, in all layers."""
    rows, *rest = p.tensor.shape
    return (-(-rows // ranks) * ranks - rows) * prod(rest) * p.times


def _called(name: str) -> str:
    """A parameter's name without the layer's number: 'mlp.experts.gate_up_proj'."""
    return ".".join(name.split(".")[-3:])
