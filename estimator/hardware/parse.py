"""Hardware as people write it: '2x24GB', 'rtx-4090', '8xH100', '2 nodes of 8xA100-80GB', '2xp5.48xlarge'."""

from __future__ import annotations

import re

from pydantic import ValidationError

from estimator.errors import InvalidJob
from estimator.hardware.node import is_node, node
from estimator.job import Hardware
from estimator.validation import explain

_NODES = re.compile(r"(\d+)\s*(?:x\s*)?nodes?\s*(?:of|with|x|:|,)?\s*(.+)", re.IGNORECASE)
_TIMES = re.compile(r"(\d+)\s*[x×*]\s*(.+)", re.IGNORECASE)
_OF = re.compile(r"(\d{1,2})\s+([a-z].*)", re.IGNORECASE)  # 8 H100; but 3090 ti is one card
_AFTER = re.compile(r"(.*\S)\s+[x×*]\s*(\d{1,6})", re.IGNORECASE)  # l40s x2; but rtx4090 is one card
_MEMORY = re.compile(r"\d+(?:\.\d+)?\s*gi?b?", re.IGNORECASE)


def parse_hardware(text: str) -> Hardware:
    """The hardware that a phrase describes; a node's name is looked up here, an accelerator's is not. Raises `InvalidJob`."""
    rest = " ".join(text.split())
    if not rest:
        raise InvalidJob("is empty; write 2x24GB, rtx-4090, 8xH100 or '2 nodes of 8xA100-80GB'", "hardware")
    nodes, gpus = 1, 1
    if match := _NODES.fullmatch(rest):
        nodes, rest = int(match[1]), match[2]
    if match := _TIMES.fullmatch(rest):
        gpus, rest = int(match[1]), match[2].strip()
    elif match := _AFTER.fullmatch(rest):
        gpus, rest = int(match[2]), match[1]
    elif not _MEMORY.fullmatch(rest) and (match := _OF.fullmatch(rest)):
        gpus, rest = int(match[1]), match[2]
    if nodes == 1 and (match := _TIMES.fullmatch(rest)):  # 2x8xH100
        nodes, gpus, rest = gpus, int(match[1]), match[2].strip()
    if is_node(rest):
        found = node(rest)
        nodes, gpus, rest = nodes * gpus, int(found.gpus.value), found.accelerator
    for count, what in ((nodes, "nodes"), (gpus, "GPUs")):
        if not 1 <= count <= 2**17:
            raise InvalidJob(f"{count} {what} in {text!r}: give between 1 and {2**17}", "hardware")
    if _MEMORY.fullmatch(rest):
        memory = re.sub(r"\s", "", rest)
        try:
            return Hardware(memory=memory if memory[-1] in "bB" else memory + "B", gpus=gpus, nodes=nodes)
        except ValidationError as error:
            raise InvalidJob(explain(error), "hardware") from None
    return Hardware(gpu=rest, gpus=gpus, nodes=nodes)
