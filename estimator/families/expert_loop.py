"""Mixtral's experts as transformers ran them before release 5: linear layers, called one after the other in a Python loop.

After its modeling_mixtral.py (4.48.1, of which 4.45 is the like), `MixtralSparseMoeBlock`. How many tokens an expert gets is
data; here each gets the same number, which their sum over all experts does not depend on. What one expert alone holds is larger
than it is here where it is sent more.
"""

from __future__ import annotations

from collections.abc import Iterator

from estimator.families.build import Builder
from estimator.families.experts import MoeSpec
from estimator.tape import dtypes
from estimator.tape.pointwise import div_, mul, softmax, to
from estimator.tape.reduction import sum_dim
from estimator.tape.selection import index_add_, topk
from estimator.tape.slots import Slot
from estimator.tape.tensor import Tensor, alias, empty
from estimator.tape.views import index, reshape, unsqueeze

EVEN = "each expert is taken to get equally many tokens; one that gets more holds more while it runs"


class Expert:
    def __init__(self, spec: MoeSpec, build: Builder):
        name, hidden, width = "block_sparse_moe.experts.", spec.hidden_size, spec.expert_size
        self.w1 = build.linear(name + "w1", hidden, width)
        self.w2 = build.linear(name + "w2", width, hidden)
        self.w3 = build.linear(name + "w3", hidden, width)
        self.gated = build.gated(spec.hidden_act)

    def __call__(self, x: Tensor) -> Tensor:
        out = self.gated(x, self.w1, self.w3)
        out = self.w2(out)
        return out


class ExpertLoop:
    """The experts with their router; those between the first and the last do the same and share a slot."""

    def __init__(self, spec: MoeSpec, build: Builder):
        self.spec, self.tape = spec, build.tape
        self.gate = build.router("block_sparse_moe.gate", spec.hidden_size, spec.num_experts)
        layer, before = build.tape.slot, len(build.parameters)
        self.experts = [(slot, self._expert(slot, build)) for slot in self._slots(build, layer)]
        build.tape.enter(layer)
        for parameter in build.parameters[before:]:
            parameter.active = parameter.active * spec.num_experts_per_tok // spec.num_experts
        build.tape.remarks[EVEN] = None

    def _slots(self, build: Builder, layer: Slot | None) -> list[Slot]:
        last = self.spec.num_experts - 1
        between = [1] * (last - 1) if build.unit_per_module else [last - 1] * (last > 1)
        return [Slot("experts", repeat, layer) for repeat in (1, *between, *[1] * (last > 0))]

    def _expert(self, slot: Slot, build: Builder) -> Expert:
        build.tape.enter(slot)
        return Expert(self.spec, build)

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = reshape(hidden, (-1, hidden.shape[-1]))
        logits = self.gate(flat)
        weights, chosen = topk(softmax(logits, dtypes.float32), self.spec.num_experts_per_tok)
        weights = div_(weights, sum_dim(weights, -1, keepdim=True))
        weights = to(weights, hidden.dtype)
        out = empty(hidden.tape, flat.shape, hidden.dtype, "zeros")
        mask = self._one_hot(chosen)
        for expert in self._each():
            rows, place = self._where(mask)
            state = reshape(index(unsqueeze(flat, 0), (rows,), (1, *rows.shape, flat.shape[1])), (-1, flat.shape[1]))
            result = mul(expert(state), index(unsqueeze(weights, 2), (rows, place), (*rows.shape, 1)))
            out = index_add_(out, rows, to(result, hidden.dtype))
        del logits, chosen
        return reshape(out, hidden.shape)

    def _each(self) -> Iterator[Expert]:
        """The experts in their slots; at the end the layer's own again."""
        tape = self.tape
        here = tape.slot
        for slot, expert in self.experts:
            tape.enter(slot)
            yield expert
        tape.enter(here)

    def _one_hot(self, chosen: Tensor) -> Tensor:
        """Which tokens go to which expert: integers, [tokens, chosen experts, experts]."""
        return empty(chosen.tape, (*chosen.shape, self.spec.num_experts), dtypes.int64, "one_hot")

    def _where(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens of one expert, and its place among each one's choices: views of one tensor."""
        tokens, used, experts = mask.shape
        found = empty(mask.tape, (-(-tokens * used // experts), 2), dtypes.int64, "nonzero")
        return alias(found, found.shape[:1], (2,)), alias(found, found.shape[:1], (2,))
