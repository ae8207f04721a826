"""What lies in the host's memory on a machine with a GPU: Python's numbers, as torch's operations take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch._C._profiler import _EventType, _TensorMetadata

NUMBER = 8
"""Bytes of a number of Python's."""
LIFT = "aten::lift_fresh"
"""What `torch.tensor` ends with."""


@dataclass(slots=True)
class Block:
    """A block of memory, and whether it is the host's; None: it may be a number, or a tensor as small."""

    of_host: bool | None


def blocks(events: list[Any]) -> dict[int, Block]:
    """The block of each allocation and each release, by the event's id; `events` are all, in order.

    The host's are numbers, tensors made of one number, and what operations make of nothing else. A list that indexes lies where
    the tensor lies that it indexes (torch/csrc/autograd/python_variable_indexing.cpp, `sequenceToVariable`).
    """
    alive: dict[int | None, Block] = {}
    found = {}
    for event in events:
        if event.tag == _EventType.TorchOp:
            for given in _tensors(event):
                block = alive.get(given.storage_data_ptr)
                if block and (block.of_host is None or event.name == LIFT):
                    block.of_host = not given.sizes
        elif event.tag == _EventType.Allocation:
            size, place = event.extra_fields.alloc_size, event.extra_fields.ptr
            if size > 0:
                alive[place] = Block(_makes_numbers(event.parent, alive) or (None if size == NUMBER else False))
            found[id(event)] = alive[place] if size > 0 else alive.pop(place, Block(of_host=False))
    return found


def _makes_numbers(operation: Any, alive: dict[int | None, Block]) -> bool:
    """Whether an operation, or one that it is a part of, is given nothing but the host's numbers."""
    while operation is not None and operation.tag == _EventType.TorchOp:
        given = _tensors(operation)
        if given and all(not t.sizes and alive.get(t.storage_data_ptr, Block(False)).of_host for t in given):
            return True
        operation = operation.parent
    return False


def _tensors(operation: Any) -> list[_TensorMetadata]:
    return [given for given in operation.extra_fields.inputs if isinstance(given, _TensorMetadata)]
