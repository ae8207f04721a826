"""On which GPU each layer lies, and which tensors are told to lie elsewhere.

After llama.cpp's src/llama-model.cpp (`load_tensors`), src/llama-model-loader.cpp (`create_tensor`) and common/arg.cpp
(`--tensor-split`, `--n-cpu-moe`, `--override-tensor`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate

from estimator.contract.errors import Contradiction
from estimator.contract.job import Serving
from estimator.contract.patterns import Pattern, pattern

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Tensors that `--cpu-moe` and `--n-cpu-moe` leave in the host's memory (common/common.h, `LLM_FFN_EXPS_REGEX`)."""
OF_A_LAYER = re.compile(rf"blk\.(\d+){EXPERTS}")
"""Those of a layer, of which `--n-cpu-moe` leaves the first layers'."""
ON_HOST = "CPU"
MOST_DEVICES = 16
"""GPUs that it is built for (ggml/include/ggml-cuda.h, `GGML_CUDA_MAX_DEVICES`)."""


def layer_devices(serving: Serving, layers: int, gpus: int) -> tuple[int, ...]:
    """The GPU of each layer, and of the output, which counts as one more; `gpus` stands for the host.

    The last ones lie on GPUs, in turn, each as many as its share of `tensor_split` (of equal GPUs, an equal part).
    """
    asked = layers + 1 if serving.gpu_layers is None else min(serving.gpu_layers, layers + 1)
    shares = [Fraction(str(share)) for share in serving.tensor_split or [1] * gpus]
    ends = [end / sum(shares) for end in accumulate(shares)]
    first = layers + 1 - asked
    return tuple([gpus if i < first else bisect_right(ends, Fraction(i - first, asked)) for i in range(layers + 1)])


def rules(serving: Serving, gpus: int) -> list[tuple[Pattern, int]]:
    """Patterns of names, in the order in which they are tried, and where what they match lies; those of single layers apart."""
    found = []
    for text in serving.override_tensor or []:
        name, _, place = text.rpartition("=")
        found.append((pattern(name), gpus if place.upper() == ON_HOST else int(place[4:])))
    if serving.cpu_moe:
        found.append((pattern(EXPERTS), gpus))
    return found


def overridden(serving: Serving, layers: int, gpus: int) -> Callable[[str], int | None]:
    """Where a tensor of a name is told to lie; None where nothing is said of it."""
    tried, first = rules(serving, gpus), serving.n_cpu_moe or 0

    def found(name: str) -> int | None:
        place = next((place for each, place in tried if each.found(name)), None)
        of_layer = OF_A_LAYER.search(name) if first and place is None else None
        return gpus if of_layer and int(of_layer[1]) < first else place

    return found


def check_devices(asked: Serving, gpus: int) -> None:
    """Raise `Contradiction` for too many GPUs, and for shares and patterns of GPUs that are not there, or not understood."""
    shares = asked.tensor_split
    if gpus > MOST_DEVICES:
        raise Contradiction(f"llama.cpp is built for {MOST_DEVICES} GPUs at most: write no more", "hardware.gpus")
    if shares is not None and (len(shares) != gpus or not any(shares)):
        raise Contradiction(f"{len(shares)} shares for {gpus} GPUs: write one each, not all 0", "serving.tensor_split")
    for text in asked.override_tensor or []:
        name, given, place = text.rpartition("=")
        known = place.upper() == ON_HOST or (place.startswith("CUDA") and place[4:].isdecimal() and int(place[4:]) < gpus)
        if not given or not known:
            there = " or ".join([ON_HOST, *[f"CUDA{gpu}" for gpu in range(gpus)]])
            raise Contradiction(f"{text!r} is not understood: write pattern={there}", "serving.override_tensor")
        try:
            pattern(name)
        except ValueError as said:
            raise Contradiction(f"the pattern {name!r} is not understood: {said}", "serving.override_tensor") from said
