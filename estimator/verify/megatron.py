"""Megatron-Core's gradient buffer and main parameters, on tensors without data.

Its own classes ask for CUDA by name; these do to tensors what they do, in the same order (see estimator/parallel/megatron.py for
where), and leave the rest to torch: autograd, its hooks, and the optimizer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class MegatronStep:
    """`DistributedDataParallel`'s buffer, `Float16OptimizerWithFloat16Params` and the loss scale, called as a `GradScaler` is.

    `wide`: the buffer is float32 (`grad_reduce_in_fp32`). `half`: the model is in float16, and its loss is scaled.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, wide: bool, half: bool):
        trained = [p for p in model.parameters() if p.requires_grad]
        self.half = half
        self.buffers = {}
        for dtype in {p.dtype for p in trained}:
            members = [p for p in trained if p.dtype is dtype]
            count = sum(p.numel() for p in members)
            self.buffers[dtype] = torch.zeros(count, dtype=torch.float32 if wide else dtype)
            parts = self.buffers[dtype].split([p.numel() for p in members])
            for p, part in zip(members, parts, strict=True):
                p.main_grad = part.view(p.shape)  # type: ignore[attr-defined]
                p.register_post_accumulate_grad_hook(_add)
        self.pairs: list[tuple[Any, Tensor]] = []
        for group in optimizer.param_groups:
            for i, p in enumerate(group["params"]):
                main = p if p.dtype is torch.float32 else p.detach().clone().float()
                group["params"][i] = main
                self.pairs.append((p, main))
        self.factor = torch.ones(1)
        self.beside = [torch.ones(1) for _ in range(5 if self.half else 0)]

    def scale(self, loss: Tensor) -> Tensor:
        """`scale_loss`."""
        return self.factor * loss

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """`prepare_grads` and `step_with_ready_grads`."""
        for p, main in self.pairs:
            main.grad = p.main_grad.float()
        if self.half:
            inverse = self.factor.double().reciprocal().float()
            grads = [main.grad for _, main in self.pairs if main.grad is not None]
            torch._amp_foreach_non_finite_check_and_unscale_(grads, self.beside[0], inverse)
            del inverse, grads
        optimizer.step()
        for p, main in self.pairs:
            p.data.copy_(main)

    def is_enabled(self) -> bool:
        """It has a part in every step."""
        return True

    def update(self) -> None:
        """The next step's `zero_grad` and `zero_grad_buffer`, which nothing comes before."""


def _add(p: Any) -> None:
    p.main_grad.add_(p.grad.data)
    p.grad = None
