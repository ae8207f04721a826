"""GGUF files that a model was split into, model-00001-of-00005.gguf, as one checkpoint.

After llama.cpp's src/llama-model-loader.cpp and its gguf-split: each part has `split.no`, counted from 0, `split.count`, and
`split.tensors.count`, the tensors of all parts; the first has the metadata, too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from estimator.contract.errors import Unreadable
from estimator.facts.spelling import shown
from estimator.weights.checkpoint import Checkpoint
from estimator.weights.gguf import read_part
from estimator.weights.index import joined

PART = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"


def read_gguf(path: Path) -> Checkpoint:
    """What a GGUF file holds, with the other parts if it is one of several; those that are not beside it are `missing`."""
    given = read_part(path)
    count = given.metadata.get(COUNT, 1)
    if type(count) is not int or count < 0:
        raise Unreadable(f"{COUNT} is {shown(str(count))}; it is the number of parts", str(path))
    if count <= 1:
        return given
    name = PART.fullmatch(path.name)
    if name is None or int(name["count"]) != count:
        raise Unreadable(f"is one of {count} parts; name the parts as gguf-split does, …-00001-of-{count:05}.gguf", str(path))
    parts, missing = [], []
    for number in range(1, count + 1):
        part = path.with_name(f"{name['stem']}-{number:05}-of-{count:05}.gguf")
        if os.path.exists(part):
            parts.append(_numbered(given if part == path else read_part(part), number - 1, count))
        else:
            missing.append(part.name)
    whole = joined(path, parts, missing)
    declared = whole.metadata.get(TENSORS)
    if not missing and declared not in (None, len(whole.tensors)):
        raise Unreadable(f"has {len(whole.tensors):,} tensors in its {count} parts, but {TENSORS} is {declared}", str(path))
    return whole


def _numbered(part: Checkpoint, number: int, count: int) -> Checkpoint:
    """A part that says of itself what its name does."""
    said = part.metadata.get(NUMBER), part.metadata.get(COUNT)
    if said != (number, count):
        message = f"is by its name part {number + 1} of {count}, but {NUMBER} is {said[0]} and {COUNT} is {said[1]}"
        raise Unreadable(f"{message}; put the parts of one model together, as they were named", part.path)
    return part
