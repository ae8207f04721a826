"""What lies in the host's memory on a machine with a GPU: Python's numbers, as torch's operations take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch._C._profiler import _EventType, _TensorMetadata

NUMBER = 8
"""Bytes of a number of Python's."""
LIFT = "aten::lift_fresh"
"""What `torch.tensor` and an index that is a list end with."""


@dataclass(slots=True)
class Block:
    """A block of memory, and whether it is the host's."""

    of_host: bool


def blocks(events: list[Any]) -> list[tuple[Any, Block]]:
    """The block of each allocation and each release, in order. `events` has those of `LIFT`, too.

    The host's are numbers, tensors made of one number, and what operations make of nothing else. A list that indexes lies where
    the tensor lies that it indexes (torch/csrc/autograd/python_variable_indexing.cpp, `sequenceToVariable`).
    """
    alive: dict[int, Block] = {}
    found = []
    for event in events:
        fields = event.extra_fields
        if event.tag == _EventType.TorchOp:
            (lifted,) = _tensors(event)
            if lifted.storage_data_ptr in alive:
                alive[lifted.storage_data_ptr].of_host = not lifted.sizes
        elif fields.alloc_size > 0:
            alive[fields.ptr] = Block(fields.alloc_size == NUMBER or _makes_numbers(event.parent, alive))
            found.append((event, alive[fields.ptr]))
        else:
            found.append((event, alive.pop(fields.ptr, Block(of_host=False))))
    return found


def _makes_numbers(operation: Any, alive: dict[int, Block]) -> bool:
    """Whether an operation, or one that it is a part of, is given nothing but the host's numbers."""
    while operation is not None and operation.tag == _EventType.TorchOp:
        given = _tensors(operation)
        if given and all(not t.sizes and alive.get(t.storage_data_ptr, Block(False)).of_host for t in given):
            return True
        operation = operation.parent
    return False


def _tensors(operation: Any) -> list[_TensorMetadata]:
    return [given for given in operation.extra_fields.inputs if isinstance(given, _TensorMetadata)]
