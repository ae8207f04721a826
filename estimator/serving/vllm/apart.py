"""What of a rank lies elsewhere: weights in the host's memory, and a sequence's cache over several tensor-parallel ranks.

After model_executor/offloader/uva.py (`UVAOffloader`: parameters of decoder layers, one after another, until so many bytes are
reached; the one that reaches them goes whole) and config/vllm.py, config/model.py (`verify_with_parallel_config`: which ranks may
share a cache) of vLLM 0.33; v1/kv_cache_interface.py divides a request's length by the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Serving
from estimator.contract.units import GIB
from estimator.families.spec import ModelSpec
from estimator.parallel.topology import Topology
from estimator.serving.tensors import Held

SHARED = {"full", "latent"}
"""What of a layer may lie over several ranks: of windows, chunks, states and indexers it may not, or was not read."""


def check_apart(asked: Serving, spec: ModelSpec, place: Topology) -> None:
    """Raise `InvalidJob` or `NotModelled` for ranks that cannot share a cache."""
    ranks, where = asked.decode_context_parallel_size or 1, "serving.decode_context_parallel_size"
    if ranks == 1:
        return
    if place.tensor % ranks:
        raise Contradiction(f"{ranks} ranks do not divide the {place.tensor} of parallelism.tensor", where)
    if {layer.kind for layer in spec.cache_layers} - SHARED:
        raise NotModelled(f"a cache over several ranks is not modelled of {spec.model_type} models", where)
    heads = max((layer.heads for layer in spec.cache_layers if layer.kind == "full"), default=0)
    if heads and ranks > place.tensor // heads:
        raise Contradiction(
            f"each of {place.tensor} ranks has keys of its own of {heads} heads, but for {place.tensor // heads} copies: "
            "no more ranks can share a cache",
            where,
        )


def said(asked: Serving) -> list[str]:
    """What lies in the host's memory."""
    if not asked.cpu_offload_gb:
        return []
    return [
        f"{asked.cpu_offload_gb:g} GiB of the layers' weights in pinned memory of the host, for each GPU, which reads them over "
        "its link in every pass: how long that takes is not modelled"
    ]


def offloaded_bytes(asked: Serving, tensors: Iterable[Held], sizes: Callable[[Held], Iterator[tuple[int, int]]]) -> int:
    """Bytes of a rank's weights in the host's memory. `sizes`: bytes of what a tensor is stored in, and how many there are."""
    most = round(asked.cpu_offload_gb * GIB)
    if not most:
        return 0
    layers: dict[int, list[int]] = {}
    for each in tensors:
        if each.at is None or each.seen:
            continue
        for size, times in sizes(each):
            for layer in each.at:
                layers.setdefault(layer, []).extend([size] * (times // len(each.at)))
    found = 0
    for size in (size for layer in sorted(layers) for size in layers[layer]):
        if found >= most:
            break
        found += size
    return found
