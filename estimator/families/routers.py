"""Routers: hidden states in; out come scores for every expert, and the weights and numbers of each token's experts.

After the `...TopKRouter` classes of transformers' modeling_mixtral.py, modeling_qwen2_moe.py, modeling_qwen3_moe.py,
modeling_olmoe.py, modeling_deepseek_v2.py, modeling_deepseek_v3.py and modeling_mistral4.py (5.23).
"""

from __future__ import annotations

from typing import Any, ClassVar

from estimator.families.build import Builder
from estimator.families.experts import entered
from estimator.tape import dtypes
from estimator.tape.matmul import linear
from estimator.tape.pointwise import add, add_scalar, div_, mul_scalar, sigmoid, softmax, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import gather, masked_fill, max_last, topk
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import expand, reshape, unsqueeze


class TopKRouter:
    """Softmax over all experts, then the best ones; their weights may be `normalized` to sum to one.

    Mixtral's converts the scores before the softmax and leaves the weights in float32; others let the softmax convert, and give
    the weights the scores' type.
    """

    def __init__(self, spec: Any, build: Builder, normalized: bool, float32: bool = False, name: str = "mlp.gate"):
        self.top_k, self.normalized, self.float32 = spec.num_experts_per_tok, normalized, float32
        self.weight = build.weight(name + ".weight", (spec.num_experts, spec.hidden_size))

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            logits = linear(reshape(hidden, (-1, hidden.shape[-1])), self.weight())
            probabilities = softmax(to(logits, dtypes.float32) if self.float32 else logits, dtypes.float32)
            values, chosen = topk(probabilities, self.top_k)
            if self.normalized:
                values = div_(values, sum_dim(values, -1, keepdim=True))
            if not self.float32:
                values = to(values, logits.dtype)
            return logits, values, chosen


class DeepseekRouter:
    """Scores in float32 whatever the model's type; experts may be in groups, of which only the best take part."""

    def __init__(self, spec: Any, build: Builder, name: str = "mlp.gate"):
        self.spec = spec
        self.weight = build.weight(name + ".weight", (spec.num_experts, spec.hidden_size))

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            flat = reshape(hidden, (-1, hidden.shape[-1]))
            logits = linear(to(flat, dtypes.float32), to(self.weight(), dtypes.float32))
            weights, chosen = self.choose(logits)
            return logits, weights, chosen

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and numbers of the chosen experts."""
        raise NotImplementedError

    def grouped(self, scores: Tensor) -> Tensor:
        """Scores by group."""
        return reshape(scores, (-1, self.spec.n_group, self.spec.num_experts // self.spec.n_group))

    def of_best_groups(self, group_scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A mask of the experts of the best groups; before it what is held with it."""
        spec, rows = self.spec, group_scores.shape[0]
        best = topk(group_scores, spec.topk_group)[1]
        group_mask = empty(best.tape, group_scores.shape, group_scores.dtype, "zeros_like")
        spread = expand(unsqueeze(group_mask, 2), (rows, spec.n_group, spec.num_experts // spec.n_group))
        return best, group_mask, reshape(spread, (rows, spec.num_experts))


def _outside(mask: Tensor) -> Tensor:
    return unary("bitwise_not", unary("_to_copy", mask, dtypes.bool_))


class DeepseekV2Router(DeepseekRouter):
    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        spec = self.spec
        scores = softmax(logits, dtypes.float32)
        if spec.topk_method == "group_limited_greedy":
            group_scores = max_last(self.grouped(scores))[0]
            *_held, mask = self.of_best_groups(group_scores)
            scores = masked_fill(scores, _outside(mask))
        weights, chosen = topk(scores, spec.num_experts_per_tok)
        return mul_scalar(weights), chosen


class DeepseekV3Router(DeepseekRouter):
    """With a bias that balances the experts' load and counts for the choice only. `kept_wide`: whether it is in float32 whatever
    the model's type (`_keep_in_fp32_modules_strict`)."""

    kept_wide: ClassVar[bool] = True

    def __init__(self, spec: Any, build: Builder, name: str = "mlp.gate"):
        super().__init__(spec, build, name)
        dtype = dtypes.float32 if self.kept_wide else build.dtype
        self.correction = build.buffer(name + ".e_score_correction_bias", (spec.num_experts,), dtype)

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        spec = self.spec
        scores = sigmoid(logits)
        ranked = add(scores, self.correction)
        group_scores = sum_dim(topk(self.grouped(ranked), 2)[0], -1)
        *_held, mask = self.of_best_groups(group_scores)
        ranked = masked_fill(ranked, _outside(mask))
        chosen = topk(ranked, spec.num_experts_per_tok)[1]
        weights = gather(scores, chosen)
        if spec.norm_topk_prob:
            total = add_scalar(sum_dim(weights, -1, keepdim=True))
            weights = div_(weights, total)
        return mul_scalar(weights), chosen


class SoftmaxGroupRouter(DeepseekRouter):
    """V3's groups, chosen by a softmax in the model's type (`Mistral4TopkRouter`)."""

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with entered(self.weight):
            logits = linear(reshape(hidden, (-1, hidden.shape[-1])), self.weight())
            weights, chosen = self.choose(logits)
            return logits, weights, chosen

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        spec = self.spec
        scores = softmax(logits)
        group_scores = sum_dim(topk(self.grouped(scores), 2)[0], -1)
        *_held, mask = self.of_best_groups(group_scores)
        ranked = masked_fill(scores, _outside(mask))
        chosen = topk(ranked, spec.num_experts_per_tok)[1]
        weights = gather(scores, chosen)
        if spec.norm_topk_prob:
            total = add_scalar(sum_dim(weights, -1, keepdim=True))
            weights = div_(weights, total)
        return mul_scalar(weights), chosen
