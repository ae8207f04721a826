"""What FSDP2 cannot share evenly: a parameter whose first dimension its ranks do not divide.

`fully_shard` cuts each parameter along its first dimension into as many pieces as there are ranks, rounded up to whole rows
(torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `_init_sharded_param`, `shard_dim` 0). Of stacked experts that dimension is
the expert: ranks beyond their number hold nothing, the others no less than before, and gathering pads to all of them. Eight
experts over three ranks are three each, of which nine are gathered.
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
    padded = [p for p in parameters if p.tensor.shape and _padding(p, ranks)]
    if sum(_padding(p, ranks) for p in padded) < NOTICED * sum(p.total for p in parameters):
        return ""
    largest = max(padded, key=lambda p: _padding(p, ranks))
    rows = largest.tensor.shape[0]
    each = -(-rows // ranks)
    held = f"no less than {rows} would" if each == 1 else f"{each} each at most"
    evenly = f"hsdp over groups of at most {rows}" if each == 1 else f"a number of ranks that divides {rows}"
    return (
        f"FSDP2 shards each parameter along its first dimension: {_called(largest.name)} has {rows} there, so {ranks} ranks hold "
        f"{held}, and gather {each * ranks}/{rows} of its bytes; {evenly}, fsdp1, or zero3 share it evenly"
    )


def _padding(p: Parameter, ranks: int) -> int:
    """Elements that are gathered beyond a parameter's own, in all layers."""
    rows, *rest = p.tensor.shape
    return (-(-rows // ranks) * ranks - rows) * prod(rest) * p.times


def _called(name: str) -> str:
    """A parameter's name without the layer's number: 'mlp.experts.gate_up_proj'."""
    return ".".join(name.split(".")[-3:])
