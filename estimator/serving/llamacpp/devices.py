"""On which GPU each layer lies, and which tensors are told to lie elsewhere.

After llama.cpp's src/llama-model.cpp (`load_tensors`), src/llama-model-loader.cpp (`create_tensor`) and common/arg.cpp
(`--tensor-split`, `--n-cpu-moe`, `--override-tensor`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate

from estimator.contract.job import Serving
from estimator.serving.llamacpp.patterns import Pattern, pattern

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Tensors that `--cpu-moe` and `--n-cpu-moe` leave in the host's memory (common/common.h, `LLM_FFN_EXPS_REGEX`)."""
ON_HOST = "CPU"


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
    """Patterns of names, in the order in which they are tried, and where what they match lies."""
    found = []
    for text in serving.override_tensor or []:
        name, _, place = text.rpartition("=")
        found.append((pattern(name), gpus if place.upper() == ON_HOST else int(place[4:])))
    if serving.cpu_moe:
        found.append((pattern(EXPERTS), gpus))
    for layer in range(serving.n_cpu_moe or 0):
        found.append((pattern(rf"blk\.{layer}{EXPERTS}"), gpus))
    return found


def overridden(serving: Serving, layers: int, gpus: int) -> Callable[[str], int | None]:
    """Where a tensor of a name is told to lie; None where nothing is said of it."""
    tried = rules(serving, gpus)

    def found(name: str) -> int | None:
        return next((place for each, place in tried if each.found(name)), None)

    return found
