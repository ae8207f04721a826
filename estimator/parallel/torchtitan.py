"""FSDP2 as torchtitan applies it: the embedding is a group, each layer, and the last norm with the output layer, whose parameters
are not freed between the passes; nothing is left for the model itself.

After `apply_fsdp` of torchtitan/models/llama3/infra/parallelize.py (0.2.2), and of torch/distributed/fsdp/_fully_shard (2.13)
`_register_group_forward_hooks`.
"""

from __future__ import annotations

from typing import Any

from estimator.families.modules import Module
from estimator.families.parameter import Parameter
from estimator.families.sharding import Forward
from estimator.parallel.fsdp2 import Fsdp2, Group
from estimator.parallel.tensor_fsdp2 import TensorFsdp2
from estimator.tape.tensor import Tensor


class TorchtitanFsdp2(Fsdp2):
    """Its settings are those of `Fsdp2`."""

    def spread(self, model: Any, outside: list[Parameter]) -> None:
        """Make groups of the parameters outside layers. The model ends before its loss."""
        body = model.body
        first, *last = outside
        assert first.tensor is body.embed_tokens.weight
        body.embed_tokens = self.unit([first], body.embed_tokens)
        self.groups.insert(0, self.groups.pop())
        group = Group(self, last, reshard=False)
        self.groups.append(group)
        body.norm, model.lm_head = self._begins(group, body.norm), self._ends(group, model.lm_head)
        model.predict = self._whole(model.predict)

    def root(self, parameters: list[Parameter], model: Forward) -> Forward:
        return model

    def _begins(self, group: Group, module: Module) -> Module:
        def run(x: Tensor) -> Tensor:
            inputs = self.policy.cast([x])
            group.before_forward()
            return module(*group.watch(inputs))

        return run

    def _ends(self, group: Group, module: Module) -> Module:
        def run(x: Tensor) -> Tensor:
            out = module(*self.policy.cast([x]))
            group.after_forward(out)
            return out

        return run

    def _whole(self, model: Module) -> Module:
        """The model, which lets go of what was gathered last, and asks to be called when backward is over."""

        def run(tokens: Tensor) -> Tensor:
            out = model(tokens)
            self.gathered = None
            self.tape.backward_callbacks.append(self.finish)
            return out

        return run


class TorchtitanTensorFsdp2(TensorFsdp2, TorchtitanFsdp2):
    """FSDP2 as torchtitan applies it, for a model that is spread over tensor-parallel ranks."""
