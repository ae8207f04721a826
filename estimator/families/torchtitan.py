"""torchtitan's Llama 3: the layers of `llama`, with its own rotary embedding, and its trainer's loss.

After torchtitan/models/llama3/model/model.py, components/loss.py and train.py (0.2.2).
"""

from __future__ import annotations

from estimator.families.build import Builder
from estimator.families.decoder import Decoder, Rotary
from estimator.families.heads import Batch, CausalLM
from estimator.families.llama import LlamaSpec, decoder_layer
from estimator.families.model_output import Held
from estimator.families.windows import LayerType
from estimator.tape import dtypes, loss, loss_parallel
from estimator.tape.collectives import Group
from estimator.tape.dtypes import DType
from estimator.tape.pointwise import div, div_scalar, to
from estimator.tape.tape import ALLOCATION_STEP, Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import reshape


class ComplexRotary(Rotary):
    """Rotations, `freqs_cis`, as complex numbers for each of so many `positions` of a sequence."""

    def __init__(self, size: int, positions: int):
        super().__init__(size)
        self.positions = positions

    def buffers(self, build: Builder) -> list[Tensor]:
        return [build.buffer("freqs_cis", (self.positions, self.size // 2), dtypes.complex64)]


class Transformer(Decoder):
    """The body. Its rotations are all that layers share."""

    def __init__(self, spec: LlamaSpec, build: Builder, positions: int):
        rotary = ComplexRotary(spec.head_dim, positions)
        super().__init__(spec, build, lambda _: decoder_layer(spec, build), rotary=rotary)

    def forward(self, ids: Tensor, given: Tensor | None = None, prepared: dict[LayerType, Tensor | None] | None = None) -> Tensor:
        """The same; it is never given embeddings or masks."""
        (freqs_cis,) = self.buffers
        hidden = self.embed_tokens(ids)
        for layer in self.layers:
            hidden = layer(hidden, freqs_cis, freqs_cis, None, freqs_cis)
        return self.norm(hidden)


class Trained(CausalLM):
    """The model as `Trainer.train_step` runs it, `micro_steps` times between two steps of the optimizer.

    What that holds to its end is held here: every batch's tokens and loss, the last labels, and how many tokens there are, which
    is Python's number unless the GPU is `alone`. Micro-steps that are not simulated leave what they hold, too.
    """

    def __init__(self, spec: LlamaSpec, build: Builder, positions: int, micro_steps: int, alone: bool, tensor: Group):
        super().__init__(Transformer(spec, build, positions), spec, build)
        self.unplayed = micro_steps - min(micro_steps, build.sharding.rounds)
        self.alone, self.tensor = alone, tensor
        self.kept: list[Tensor] = []
        self.losses: list[Tensor] = []
        self.labels: Tensor | None = None
        self.tokens: Tensor | None = None

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        """Tokens, and the labels, which are those after them."""
        shape = batch.sequences, batch.tokens
        if not self.kept:
            self._count(tape)
        elif len(self.losses) == 1 and self.unplayed:
            each = -(-8 * batch.sequences * batch.tokens // ALLOCATION_STEP) + 1
            self.kept.append(empty(tape, (self.unplayed * each * ALLOCATION_STEP,), dtypes.uint8, "input"))
        self.labels = None
        tokens = empty(tape, shape, dtypes.int64, "input")
        self.kept.append(tokens)
        self.labels = empty(tape, shape, dtypes.int64, "labels")
        return tokens, self.labels

    def _count(self, tape: Tape) -> None:
        """The tokens of a step, of this rank and of all."""
        self.kept.append(empty(tape, (), dtypes.int64, "local_valid_tokens"))
        total = empty(tape, (), dtypes.float32 if self.alone else dtypes.int64, "global_valid_tokens")
        self.tokens = total if self.alone else None

    def predict(self, tokens: Tensor) -> Tensor:
        """Scores over the vocabulary."""
        hidden = self.body.forward(tokens)
        with tokens.tape.losing():
            return self.lm_head(hidden)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        tokens, labels = inputs
        tape = tokens.tape
        logits = self.predict(tokens)
        with tape.losing():
            wide = to(reshape(logits, (-1, logits.shape[-1])), dtypes.float32)
            summed = self._loss(wide, reshape(labels, (-1,)))
            del wide
            mean = div_scalar(summed) if self.tokens is None else div(summed, self.tokens)
        held = [summed.detach()]
        tape.backward_callbacks.insert(0, held.clear)  # when all else of backward is over
        self.losses.append(mean.detach())
        return mean, ()

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Summed cross-entropy of logits [tokens, words], over all words or over this rank's."""
        if self.tensor.size == 1:
            return loss.cross_entropy(logits, labels)
        return loss_parallel.cross_entropy(logits, labels, self.tensor)
