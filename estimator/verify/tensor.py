"""Tensor and sequence parallelism by torch's own `parallelize_module`, with its tutorial's plan for decoders of the Llama kind.

Between the products of a layer each rank holds its part of the tokens; attention and the feed-forward layers get all of them.
(https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html, and torchtitan before 0.3, models/llama3/infra/parallelize.py.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

TOKENS, WHOLE = Shard(1), Replicate()


@contextmanager
def meshes_joined() -> Iterator[None]:
    """`fully_shard` joins its mesh with that of a parameter, and reads the ranks in it: fake tensors have no numbers."""
    join = DeviceMesh._concatenate

    def joined(meshes: list[DeviceMesh]) -> DeviceMesh:
        with unset_fake_temporarily():
            return join(meshes)

    with mock.patch.object(DeviceMesh, "_concatenate", joined):
        yield


def of_data(mesh: DeviceMesh) -> DeviceMesh | None:
    """The dimensions of a mesh over which data is shared."""
    names = mesh.mesh_dim_names or ()
    if "tensor" not in names:
        return mesh
    data = tuple(name for name in names if name != "tensor")
    return mesh[data] if data else None


def parallelize(model: Any, mesh: DeviceMesh) -> None:
    """Spread a causal language model's modules over the ranks of a mesh of one dimension."""
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    parallelize_module(
        model,
        mesh,
        {
            "model.embed_tokens": RowwiseParallel(input_layouts=WHOLE, output_layouts=TOKENS),
            "model.norm": SequenceParallel(),
            "lm_head": ColwiseParallel(input_layouts=TOKENS, output_layouts=WHOLE),
        },
    )
    for layer in model.model.layers:
        parallelize_module(layer, mesh, _of_layer(layer))
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight


def _of_layer(layer: Any) -> dict[str, ParallelStyle]:
    """The plan of one layer. Norms of single heads run on this rank's heads."""
    plan: dict[str, ParallelStyle] = {
        "input_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": TOKENS}, desired_input_kwarg_layouts={"hidden_states": WHOLE}
        ),
        "self_attn.o_proj": RowwiseParallel(output_layouts=TOKENS),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(TOKENS,), desired_input_layouts=(WHOLE,)),
        "mlp.down_proj": RowwiseParallel(output_layouts=TOKENS),
    }
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        plan[name] = ColwiseParallel()
    for name in ("q_norm", "k_norm"):
        if hasattr(layer.self_attn, name):
            plan[f"self_attn.{name}"] = SequenceParallel(sequence_dim=2, use_local_output=True)
    return plan
