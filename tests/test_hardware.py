"""Hardware as people write it."""

from __future__ import annotations

import pytest

from estimator import InvalidJob
from estimator.hardware.parse import parse_hardware

WRITTEN = [
    # text, GPU, memory, GPUs in a node, nodes
    ("2x24GB", None, "24GB", 2, 1),
    ("24 gb", None, "24gb", 1, 1),
    ("2x 24G", None, "24GB", 2, 1),
    ("22.5GiB", None, "22.5GiB", 1, 1),
    ("24GB x2", None, "24GB", 2, 1),
    ("rtx-4090", "rtx-4090", None, 1, 1),
    ("rtx4090", "rtx4090", None, 1, 1),
    ("RTX 4090", "RTX 4090", None, 1, 1),
    ("3090 ti", "3090 ti", None, 1, 1),
    ("4090", "4090", None, 1, 1),
    ("mi300x", "mi300x", None, 1, 1),
    ("8xH100", "H100", None, 8, 1),
    ("8 x mi300x", "mi300x", None, 8, 1),
    ("8 H100", "H100", None, 8, 1),
    ("l40s x2", "l40s", None, 2, 1),
    ("2×4090", "4090", None, 2, 1),
    ("2*3090", "3090", None, 2, 1),
    ("2 nodes of 8xA100-80GB", "A100-80GB", None, 8, 2),
    ("4 nodes x 8 H100", "H100", None, 8, 4),
    ("1 node of 8xH200", "H200", None, 8, 1),
    ("2x8xH100", "H100", None, 8, 2),
]


@pytest.mark.parametrize(("text", "gpu", "memory", "gpus", "nodes"), WRITTEN)
def test_it_is_read(text: str, gpu: str | None, memory: str | None, gpus: int, nodes: int) -> None:
    hardware = parse_hardware(text)
    assert (hardware.gpu, hardware.memory, hardware.gpus, hardware.nodes) == (gpu, memory, gpus, nodes)


@pytest.mark.parametrize("text", ["", "   ", "0x24GB", "2x0GB", "0 nodes of 8xH100", "999999999xH100", "1x99999GB"])
def test_what_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob, match="hardware"):
        parse_hardware(text)
