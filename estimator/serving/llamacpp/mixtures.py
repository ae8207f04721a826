"""Mixtures of experts in llama.cpp's graph: which each token passes, and what they give together.

After llama.cpp's src/llama-graph.cpp (`build_moe_ffn`), as of October 2026.
"""

from __future__ import annotations

from estimator.serving.llamacpp.ggml import Graph, Tensor
from estimator.serving.llamacpp.operations import Operations
from estimator.serving.llamacpp.shape import Experts


class Mixtures(Operations):
    """What builds a graph's experts."""

    graph: Graph

    def _experts(self, x: Tensor, layer: int, experts: Experts) -> Tensor:
        shape, tokens, hidden = self.shape, x.shape[1], experts.latent or self.shape.hidden
        count, used = experts.count, experts.used
        inner = self.product("ffn_latent_down", layer, hidden, x) if experts.latent else x
        logits = self.biased(self.product("ffn_gate_inp", layer, count, x), "ffn_gate_inp.bias", layer, experts.biased)
        chosen, weights = self._chosen(logits, layer, experts)
        each = self.view(inner, (hidden, 1, tokens))
        if experts.weighed_first:
            each = self.unlike("mul", self.op("repeat", (hidden, used, tokens), each), weights)

        def through(name: str, width: int, source: Tensor) -> Tensor:
            out = self.op("mul_mat_id", (width, used, tokens), self.weight(f"ffn_{name}_exps", layer), source, chosen)
            return self.unlike("add_id", out, self.weight(f"ffn_{name}_exps.bias", layer), chosen) if experts.biased else out

        if shape.joined_feed:
            both, inside = through("gate_up", 2 * experts.wide, each), (experts.wide, used, tokens)
            out = self.op("glu", inside, *[self.view(both, inside, dense=False) for _ in ("gate", "up")])
        else:
            out = through("up", experts.wide, each)
            if shape.gated:
                out = self.unlike("glu", through("gate", experts.wide, each), out)
            for name in shape.activation:
                out = self.unlike(name, out)
        down = through("down", hidden, out)
        return self._summed(down if experts.weighed_first else self.unlike("mul", down, weights))

    def _chosen(self, logits: Tensor, layer: int, experts: Experts) -> tuple[Tensor, Tensor]:
        """Which experts each token passes, and their weights."""
        count, used, tokens = experts.count, experts.used, logits.shape[1]
        late = experts.softmax == "of the chosen"
        probabilities = logits if late else self.unlike("soft_max" if experts.softmax == "of all" else "unary", logits)
        selection = logits if experts.by_scores else probabilities
        if experts.selection_bias:
            selection = self.unlike("add", probabilities, self.weight("exp_probs_b", layer))
        if experts.groups:
            selection = self._grouped(selection, experts)
        chosen = self.view(Tensor("argsort", selection.shape, [selection]), (used, tokens), dense=False)
        weights = self.op("get_rows", (1, used, tokens), self.view(probabilities, (1, count, tokens)), chosen)
        if late:
            weights = self.view(self.unlike("soft_max", self.view(weights, (used, tokens))), (1, used, tokens))
        if experts.normalized:
            flat = self.view(weights, (used, tokens))
            total = self.unlike("clamp", self.op("sum_rows", (1, tokens), flat))
            weights = self.view(self.unlike("div", flat, total), (1, used, tokens))
        if experts.scaled:
            weights = self.unlike("scale", weights)
        self.graph.expand(weights)
        return chosen, weights

    def _summed(self, out: Tensor) -> Tensor:
        """What all experts of a token gave, together."""
        hidden, used, tokens = out.shape
        self.graph.expand(out)
        parts = [self.graph.expand(self.view(out, (hidden, tokens), dense=False)) for _ in range(used)]
        total = parts[0]
        for part in parts[1:]:
            total = self.graph.expand(self.unlike("add", total, part))
        return total if used > 1 else self.unlike("cont", total)

    def _grouped(self, scores: Tensor, experts: Experts) -> Tensor:
        """Scores of the experts in the best groups only."""
        tokens, groups = scores.shape[1], experts.groups
        each, best = experts.count // groups, experts.best_groups
        by_group = self.view(scores, (each, groups, tokens))
        two = self.view(Tensor("argsort", by_group.shape, [by_group]), (2, groups, tokens), dense=False)
        found = self.op("get_rows", (1, 2, groups, tokens), self.view(by_group, (1, each, groups, tokens)), two)
        summed = self.op("sum_rows", (1, groups, tokens), self.view(found, (2, groups, tokens)))
        flat = self.view(summed, (groups, tokens))
        chosen = self.view(Tensor("argsort", flat.shape, [flat]), (best, tokens), dense=False)
        kept = self.op("get_rows", (each, best, tokens), by_group, chosen)
        masked = self.unlike("fill", by_group)
        joined = Tensor("set_rows", masked.shape, [kept, chosen, masked], root=masked)
        return self.view(joined, scores.shape)
