"""Which GPU computes which part of a graph, what is copied between them, and how large each one's buffer becomes.

After ggml/src/ggml-backend.cpp of llama.cpp (`ggml_backend_sched_split_graph`): an operation runs where its weight lies; the
others run where their neighbours do, on GPUs rather than on the host; what one part needs of another is copied. With GPUs in a
pipeline there are `COPIES` of all that is copied, and of all inputs. A product of `LARGE` tokens with a weight of the host is
sent to the first GPU, weight and all. ggml/src/ggml-cuda/ggml-cuda.cu (`ggml_backend_cuda_graph_optimize`) keeps what a fused
kernel reads until it has run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from estimator.serving.llamacpp.ggml import Graph, Plan, Tensor

COPIES = 4
"""Of a pipeline's inputs (GGML_SCHED_MAX_COPIES)."""
LARGE = 32
"""Tokens from which on a product is worth sending its weight (`op_offload_min_batch_size`)."""
ON_GPU, ON_HOST = 128, 64
"""Bytes that ggml aligns tensors to, in CUDA's memory and in the host's."""
SOURCES = 10
"""Sources of a node at most (GGML_MAX_SRC)."""
FUSED_EXPERTS = range(2, 16)
"""Experts of a token whose outputs one kernel weighs and adds up (MOE_WEIGHTED_REDUCTION_MAX_EXPERTS)."""
ROUTER = ("soft_max", "view", "argsort", "view", "get_rows")
NORMALIZED = ("view", "sum_rows", "clamp", "div", "view")


@dataclass(slots=True)
class Split:
    """A run of nodes on one backend, and what is copied to it first."""

    backend: int
    nodes: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)


def buffers(graph: Graph, gpus: int, pipeline: bool, fused: bool = True) -> list[int]:
    """Bytes of the buffer of each GPU, and last of the host's. `fused`: whether GPUs fuse kernels as CUDA does."""
    _assign(graph, gpus)
    copies = COPIES if pipeline else 1
    splits, copied = _split(graph, gpus, copies)
    after = _kept(splits, gpus) if fused else {}
    nodes: list[tuple[Tensor, int]] = []
    leafs: list[tuple[Tensor, int]] = []
    if pipeline:
        for leaf in graph.leafs:
            if leaf.given:
                leaf.kept = True
                spare = [_spare(leaf) for _ in range(COPIES - 1)]
                leafs += [(each, leaf.backend or 0) for each in (leaf, *spare)]
    for split in splits:
        for source in split.inputs:
            held = copied[source, split.backend]
            if pipeline:
                leafs += [(each, split.backend) for each in held]
            nodes.append((Tensor("none", source.shape, [source], root=source, nbytes=0), _of(source)))
            nodes.append((held[0], split.backend))
        for node in split.nodes:
            nodes.append((node, _of(node)))
            kept = after.get(node, [])
            for start in range(0, len(kept), SOURCES):
                some = kept[start : start + SOURCES]
                nodes.append((Tensor("none", some[0].shape, some, root=some[0], nbytes=0), split.backend))
    leafs += [(leaf, _of(leaf)) for leaf in graph.leafs]
    return Plan([ON_GPU] * gpus + [ON_HOST]).planned(nodes, leafs)


def _of(tensor: Tensor) -> int:
    assert tensor.backend is not None
    return tensor.backend


def _spare(tensor: Tensor) -> Tensor:
    made = tensor.copy()
    made.kept = made.given = True
    return made


def _assign(graph: Graph, host: int) -> None:
    """Give every tensor its backend: GPUs are 0 and up, the host comes last."""
    for tensor in (*graph.leafs, *graph.nodes):
        if tensor.backend is None:
            tensor.backend = _by_weights(tensor, host)
    computed = [node for node in graph.nodes if node.op != "view"]
    for nodes, spread in ((computed, host), (computed[::-1], host), (computed, host + 1), (computed[::-1], host + 1)):
        current = None
        for node in nodes:
            if node.backend is not None:
                current = node.backend if node.backend < spread else None
            elif current is not None:
                node.backend = current
    for node in graph.nodes:
        if node.backend is None and node.root is not None:
            node.backend = node.root.backend
        for source in node.sources:
            if source.backend is None:
                source.backend = node.backend if source.root is None else source.root.backend
        if node.backend is None:
            node.backend = 0


def _by_weights(tensor: Tensor, host: int) -> int | None:
    lies = tensor if tensor.root is None else tensor.root
    if lies.device is not None:
        return lies.device
    if tensor.given:
        return host
    if tensor.op in ("rope", "flash_attn"):
        return None
    weight = next((source for source in tensor.sources if source.weight), None)
    if weight is None:
        return None
    return 0 if weight.device == host and _tokens(tensor) >= LARGE else weight.device


def _tokens(tensor: Tensor) -> int:
    """For how many tokens a weight would be sent (`get_op_batch_size`, ggml-cuda.cu)."""
    if tensor.op == "get_rows":
        return 0
    rows = 1
    for size in tensor.shape[2:] if tensor.op == "mul_mat_id" else tensor.shape[1:]:
        rows *= size
    return tensor.shape[1] if tensor.op == "mul_mat" else rows


def _split(graph: Graph, host: int, copies: int) -> tuple[list[Split], dict[tuple[Tensor, int], list[Tensor]]]:
    """Cut the graph where the backend changes, or where another weight is sent; copy what lies elsewhere."""
    first = next(node for node in graph.nodes if node.op != "view")
    splits = [Split(_of(first))]
    copied: dict[tuple[Tensor, int], list[Tensor]] = {}
    for node in graph.nodes:
        split = splits[-1]
        if node.op == "view":
            split.nodes.append(node)
            continue
        sent = any(source.weight and source.backend != split.backend for source in node.sources)
        if node.backend != split.backend or (split.inputs and sent):
            split = Split(_of(node))
            splits.append(split)
        split.nodes.append(node)
        for number, source in enumerate(node.sources):
            if source.backend == split.backend:
                continue
            found = copied.get((source, split.backend))
            if found is None:
                found = [_spare(source) if copies > 1 else source.copy() for _ in range(copies)]
                copied[source, split.backend] = found
                split.inputs.append(source)
            node.sources[number] = found[0]
    return splits, copied


def _kept(splits: list[Split], host: int) -> dict[Tensor, list[Tensor]]:
    """What fused kernels read, by the node until which it is kept."""
    after: dict[Tensor, dict[Tensor, None]] = {}
    for split in splits:
        if split.backend == host:
            continue
        nodes = split.nodes
        for i, node in enumerate(nodes):
            used = node.shape[1] if node.op == "mul" and len(node.shape) == 3 and node.sources[1].shape[0] == 1 else 0
            if used in FUSED_EXPERTS and _ops(nodes, i + 1, 2 * used - 1) == ("view",) * used + ("add",) * (used - 1):
                after.setdefault(nodes[i + 2 * used - 1], {}).update(dict.fromkeys(node.sources))
            elif node.op == "soft_max" and _ops(nodes, i, len(ROUTER)) == ROUTER:
                count = len(ROUTER)
                if _ops(nodes, i + count, len(NORMALIZED)) == NORMALIZED:
                    count += len(NORMALIZED)
                if _ops(nodes, i + count, 1) == ("scale",):
                    count += 1
                if i + count < len(nodes):
                    found = after.setdefault(nodes[i + count], {})
                    for each in nodes[i : i + count]:
                        found.update(dict.fromkeys((each, *each.sources)))
    return {node: list(kept) for node, kept in after.items()}


def _ops(nodes: list[Tensor], start: int, count: int) -> tuple[str, ...]:
    return tuple([node.op for node in nodes[start : start + count]])
