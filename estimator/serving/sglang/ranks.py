"""How SGLang shares a model out among its ranks: stages, groups of ranks whose attention is their own, and experts.

After sglang/srt/distributed/utils.py (`get_pp_indices`), distributed/parallel_state.py (`initialize_model_parallel`),
arg_groups/parallel_hook.py (`handle_data_parallelism`), layers/moe/fused_moe_triton/layer.py, models/deepseek_v2.py and
models/qwen3_moe.py of 0.5.23. All ranks of a stage are one tensor-parallel group. Of `attn_dp_size` parts of it each divides
attention, and the embedding of what is read, among its own ranks, and has requests and a cache of its own; what lies between is
divided among all. Experts are whole on `ep_size` parts of it, each of which divides their width.
"""

from __future__ import annotations

from typing import NamedTuple

from estimator.contract.errors import Contradiction, NotModelled
from estimator.contract.job import Serving
from estimator.families.spec import ModelSpec
from estimator.parallel.topology import Topology, tensor_degrees
from estimator.serving.sglang.settings import NEWEST, release
from estimator.serving.tensors import Spread, Stage, held


class Ranks(NamedTuple):
    """`tensor` ranks of a stage, in `groups` for attention and `experts` parts for whole experts."""

    tensor: int = 1
    groups: int = 1
    experts: int = 1
    stage: Stage = (0, 1)

    @property
    def attention(self) -> int:
        """Ranks that attention is divided among."""
        return self.tensor // self.groups

    @property
    def spread(self) -> Spread:
        """What is not shared out among all ranks."""
        return Spread(
            attention=self.attention if self.groups > 1 else 0,
            width=self.tensor // self.experts if self.experts > 1 else 0,
            stages=stage_layers,
        )


def ranks_of(serving: Serving, place: Topology, stage: int | None = None) -> Ranks:
    """Those of a job; of its own stage, or of another."""
    here = place.stage if stage is None else stage
    return Ranks(place.tensor, serving.attn_dp_size or 1, serving.ep_size or 1, (here, place.pipeline))


def stage_layers(depth: int, stage: Stage) -> range:
    """The layers of a stage: as many on each, and one more on the last ones where some are left over."""
    rank, stages = stage
    least, more = divmod(depth, stages)
    sizes = [least + (at >= stages - more) for at in range(stages)]
    return range(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def check_ranks(serving: Serving, spec: ModelSpec, place: Topology) -> None:
    """Raise `InvalidJob` or `NotModelled` for ranks that SGLang does not share a model out among, or is not modelled doing."""
    ranks, text = ranks_of(serving, place), spec.language_model
    experts = any(each.kind == "experts" for each in held(spec))
    for name, parts in (("attn_dp_size", ranks.groups), ("ep_size", ranks.experts)):
        if parts > 1 and not experts:
            raise Contradiction(f"{spec.model_type} models have no experts: leave it out", f"serving.{name}")
        if ranks.tensor % parts:
            raise Contradiction(f"{parts} parts do not divide the {ranks.tensor} ranks of tensor", f"serving.{name}")
    if ranks.groups > 1 and not text.parts_in_sglang:
        raise NotModelled(f"attention of parts of the ranks is not modelled of {spec.model_type} models", "serving.attn_dp_size")
    if place.pipeline == 1 and ranks.groups == 1:
        return
    newest = ".".join(map(str, NEWEST))
    field = "parallelism.pipeline" if place.pipeline > 1 else "serving.attn_dp_size"
    if release(serving.engine_version) < NEWEST:
        raise NotModelled(f"it is modelled as SGLang {newest} does it", "serving.engine_version")
    if serving.speculative_algorithm is not None:
        raise NotModelled(f"guessing ahead beside {field} is not modelled in SGLang", "serving.speculative_algorithm")
    if any(layer.kind in ("state", "cross") for layer in spec.cache_layers) or not spec.cache_layers or spec.in_sglang != "own":
        raise NotModelled(f"SGLang with it is not modelled of {spec.model_type} models: write 1", field)
    if place.pipeline > text.num_hidden_layers:
        raise Contradiction(f"{place.pipeline} stages are more than the model's {text.num_hidden_layers} layers", field)
    if ranks.attention not in tensor_degrees(spec):
        raise Contradiction(f"its heads do not divide by the {ranks.attention} ranks of a part", field)


def said(serving: Serving) -> list[str]:
    """What is taken of ranks whose attention is their own."""
    if (groups := serving.attn_dp_size or 1) == 1:
        return []
    return [
        f"requests shared out evenly among {groups} parts of the ranks, each with attention and a cache of its own: "
        "cache, tokens, requests and the longest context are those of one part"
    ]
