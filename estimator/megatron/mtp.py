"""Multi-token prediction: layers after the last that predict the tokens after the next one, as DeepSeek-V3 has them.

After core/transformer/multi_token_prediction.py (0.15): each takes hidden states and the embeddings of the tokens one further on,
and has a projection of both, a transformer layer like the model's last, and a norm. Embedding and output layer are the model's.
"""

from __future__ import annotations

from collections.abc import Callable

from estimator.families.build import Builder
from estimator.megatron.config import Config
from estimator.megatron.execution import Execution
from estimator.megatron.linear import Norm, Split
from estimator.tape.autograd import Gradient, attach, record
from estimator.tape.checkpoint import reentrant_checkpoint
from estimator.tape.collectives import all_gather
from estimator.tape.tensor import Tensor, empty, unary
from estimator.tape.views import cat

PROJECTION = "eh_proj"


class PredictionLayer:
    """One token further. `layer`: the transformer layer; `recomputed`: all but the embedding is, in backward."""

    def __init__(
        self,
        config: Config,
        build: Builder,
        ranks: Split,
        how: Execution,
        layer: Callable[[Tensor, Tensor], Tensor],
        recomputed: bool,
    ):
        hidden = config.hidden
        self.ranks, self.layer, self.recomputed = ranks, layer, recomputed
        self.enorm = Norm(build.parameter("mtp.enorm.weight", (hidden,)), None)
        self.hnorm = Norm(build.parameter("mtp.hnorm.weight", (hidden,)), None)
        shape = (hidden // ranks.group.size, 2 * hidden)
        self.eh_proj = how.column(build, how.weight(build, f"mtp.{PROJECTION}.weight", shape), ranks)
        self.final_layernorm = Norm(build.parameter("mtp.final_layernorm.weight", (hidden,)), None)

    def __call__(self, hidden: Tensor, embedded: Tensor, frequencies: Tensor) -> Tensor:
        if self.recomputed:
            out: Tensor = reentrant_checkpoint(self.run, hidden, embedded, frequencies)
            return out
        return self.run(hidden, embedded, frequencies)

    def run(self, hidden: Tensor, embedded: Tensor, frequencies: Tensor) -> Tensor:
        """Hidden states, tokens of this rank each."""
        embedded = self.enorm(embedded)
        hidden = self.hnorm(hidden)
        hidden = cat([embedded, hidden], 2)
        hidden = self.eh_proj(hidden)
        if self.ranks.group.size > 1:
            hidden = _whole(hidden, self.ranks)
        hidden = self.layer(hidden, frequencies)
        return self.final_layernorm(hidden)


def _whole(x: Tensor, ranks: Split) -> Tensor:
    """All features, which ranks gather (`gather_from_tensor_model_parallel_region`), of this rank's tokens
    (`scatter_to_sequence_parallel_region`)."""
    group, (tokens, sequences, part) = ranks.group, x.shape
    shape = (tokens, sequences, part * group.size)
    node = record("GatherFromModelParallel", (x,), (), lambda g: empty(g.tape, (tokens, sequences, part), g.dtype, "split"))
    gathered = all_gather(x, group)
    joined = attach(node, empty(x.tape, shape, x.dtype, "cat"))
    del gathered
    if not ranks.sequence:
        return joined
    scatter = record("ScatterToSequenceParallel", (joined,), (), lambda g: all_gather(g, group))
    mine = Tensor(joined.storage, (tokens // group.size, *shape[1:]), x.dtype)
    return attach(scatter, mine)


def rolled(x: Tensor) -> Tensor:
    """One token further on, and zero at the end (`roll_tensor`)."""
    return unary("roll", x)


def scored(hidden: Tensor, losses: Tensor) -> Tensor:
    """The losses hang on the hidden states that the main loss is of (`MTPLossAutoScaler`)."""

    def backward(g: Tensor, losses: Tensor) -> tuple[Gradient, Gradient]:
        return g, unary("ones_like", losses)

    return attach(record("MTPLossAutoScaler", (hidden, losses), (losses,), backward), hidden.detach())
