"""wav2vec 2.0 and HuBERT: convolutions over samples of sound, a convolution that knows places, layers that hear all frames.

After transformers' modeling_wav2vec2.py and modeling_hubert.py (5.23). A batch is so many clips of one length; layers that are
left out at random (`layerdrop`) are all there, as in the steps that take most, and under FSDP in all.
"""

from __future__ import annotations

from typing import Any

from estimator.contract.errors import InvalidJob
from estimator.families.attention import Attention
from estimator.families.build import Builder
from estimator.families.heads import Batch
from estimator.families.layers import Layers
from estimator.families.model_output import Held
from estimator.families.modules import ACTIVATIONS, Module
from estimator.families.wav2vec2_sound import Extractor, Positions, Projection
from estimator.families.wav2vec2_spec import HubertSpec, Wav2Vec2Spec
from estimator.tape import dtypes
from estimator.tape.ctc import ctc
from estimator.tape.dtypes import DType
from estimator.tape.loss import cross_entropy
from estimator.tape.pointwise import add, dropout, relu, to
from estimator.tape.reduction import mean
from estimator.tape.scatter import fill_picked
from estimator.tape.slots import Slot
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from estimator.tape.views import contiguous, reshape, transpose

SPECS = {"wav2vec2": Wav2Vec2Spec, "hubert": HubertSpec}


class SelfAttention:
    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        size = spec.hidden_size
        self.head_dim = size // spec.num_attention_heads
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (
            build.linear(f"attention.{name}_proj", size, size, True) for name in ("k", "v", "q", "out")
        )
        self.attend = Attention(build.attention, False, spec.attention_dropout, cast_back=False, causal=False)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, frames, _ = hidden.shape
        heads = (batch, frames, -1, self.head_dim)
        q = transpose(reshape(self.q_proj(hidden), heads), 1, 2)
        k = transpose(reshape(self.k_proj(hidden), heads), 1, 2)
        v = transpose(reshape(self.v_proj(hidden), heads), 1, 2)
        out, weights = self.attend(q, k, v, None)
        out = contiguous(reshape(out, (batch, frames, -1)))
        out = self.out_proj(out)
        return out, weights


class FeedForward:
    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        self.first = build.linear("feed_forward.intermediate_dense", spec.hidden_size, spec.intermediate_size, True)
        self.last = build.linear("feed_forward.output_dense", spec.intermediate_size, spec.hidden_size, True)
        self.act = ACTIVATIONS[spec.hidden_act]
        self.between, self.after = spec.activation_dropout, spec.hidden_dropout

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self.first(hidden)
        out = self.act(out)
        out = dropout(out, self.between)
        out = self.last(out)
        return dropout(out, self.after)


class LanguageAdapter:
    """Two narrow layers after each of a stable model that knows many languages (`Wav2Vec2AttnAdapterLayer`)."""

    def __init__(self, size: int, width: int, build: Builder):
        self.norm = build.layer_norm("adapter_layer.norm", size)
        self.linear_1 = build.linear("adapter_layer.linear_1", size, width, True)
        self.linear_2 = build.linear("adapter_layer.linear_2", width, size, True)

    def __call__(self, hidden: Tensor) -> Tensor:
        out = self.norm(hidden)
        out = self.linear_1(out)
        out = relu(out)
        return self.linear_2(out)


class Layer:
    """Norms after each block, or before it where the model is stable."""

    def __init__(self, spec: Wav2Vec2Spec, build: Builder, attention: Any):
        self.stable = spec.do_stable_layer_norm
        self.dropout = spec.hidden_dropout
        self.attention = attention
        self.layer_norm = build.layer_norm("layer_norm", spec.hidden_size)
        self.feed_forward = FeedForward(spec, build)
        self.final_layer_norm = build.layer_norm("final_layer_norm", spec.hidden_size)
        width = spec.adapter_attn_dim if self.stable else None
        self.adapter = LanguageAdapter(spec.hidden_size, width, build) if width else None

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        out = self.layer_norm(hidden) if self.stable else hidden
        out, _ = self.attention(out)
        out = dropout(out, self.dropout)
        out = add(residual, out)
        if self.stable:
            out = add(out, self.feed_forward(self.final_layer_norm(out)))
            return out if self.adapter is None else add(out, self.adapter(out))
        out = self.layer_norm(out)
        out = add(out, self.feed_forward(out))
        return self.final_layer_norm(out)


class Wav2Vec2:
    """The body of the model. `shows`: whether it gathers the hidden states of its layers, until they are released."""

    def __init__(self, spec: Wav2Vec2Spec, build: Builder):
        self.spec = spec
        masks = spec.mask_time_prob > 0
        self.mask_embed = (
            build.parameter("masked_spec_embed", (spec.hidden_size,), read=spec.apply_spec_augment) if masks else None
        )
        self.extractor = Extractor(spec, build)
        self.projection = Projection(spec, build)
        self.positions = Positions(spec, build)
        self.layer_norm = build.layer_norm("encoder.layer_norm", spec.hidden_size)
        self.layers = self._stack(spec, build)
        self.shows = build.shows_states
        self.shown: list[tuple[Slot | None, Tensor]] = []

    def _stack(self, spec: Any, build: Builder) -> Layers:
        count = spec.num_hidden_layers
        return build.layers(count, lambda _: Layer(spec, build, SelfAttention(spec, build)), "encoder.layers", "encoder.")

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor | None]:
        """Last hidden states, [batch, frames, size], and what it returns of the convolutions."""
        features = transpose(self.extractor(samples), 1, 2)
        hidden, features = self.projection(features)
        hidden = self._masked(hidden)
        tape = samples.tape
        tape.states = [] if self.shows else None
        out = self._encoded(hidden)
        self.shown, tape.states = tape.states or [], None
        return out, features if self.spec.returns_features else None

    def release(self, tape: Tape) -> None:
        """Let the hidden states go, each layer's in its slot."""
        while self.shown:
            tape.enter(self.shown[0][0])
            del self.shown[0]
        tape.enter(None)

    def _masked(self, hidden: Tensor) -> Tensor:
        """Some frames are another one, which is learned (`_mask_hidden_states`)."""
        if self.mask_embed is None or not self.spec.apply_spec_augment or hidden.tape.evaluating:
            return hidden
        batch, frames, _ = hidden.shape
        mask = empty(hidden.tape, (batch, frames), dtypes.bool_, "lift_fresh")
        return fill_picked(hidden, mask, to(self.mask_embed, hidden.dtype), batch * self.spec.masked(frames))

    def _encoded(self, hidden: Tensor) -> Tensor:
        places = self.positions(hidden)
        out = add(hidden, places)
        out = out if self.spec.do_stable_layer_norm else self.layer_norm(out)
        out = dropout(out, self.spec.hidden_dropout)
        for layer in self.layers:
            out = layer(out)
        out = self.layer_norm(out) if self.spec.do_stable_layer_norm else out
        del places
        return out


class _Heard:
    """What stands on the body gets clips."""

    def __init__(self, spec: Wav2Vec2Spec, build: Builder, body: type[Wav2Vec2] = Wav2Vec2):
        self.spec, self.audio = spec, build.audio
        self.body = body(spec, build)

    def _samples(self, tape: Tape, batch: Batch, dtype: DType) -> Tensor:
        assert self.audio is not None
        return empty(tape, (batch.sequences, self.audio.samples), dtype, "input_values")


class CTC(_Heard):
    """A label or nothing in each frame (`Wav2Vec2ForCTC`). An adapter takes its output layer for a linear layer like others."""

    def __init__(self, spec: Wav2Vec2Spec, build: Builder, body: type[Wav2Vec2] = Wav2Vec2):
        super().__init__(spec, build, body)
        self.lm_head: Module = build.linear("lm_head", spec.hidden_size, spec.vocab_size, True, quantized=False)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        assert self.audio is not None
        frames = self.spec.frames(self.audio.samples)
        if batch.target_tokens > frames:
            said = f"{batch.target_tokens} labels are more than the {frames} frames of {self.audio.seconds:g} s"
            raise InvalidJob(f"{said}: write fewer, or longer clips", "training.target_length")
        labels = empty(tape, (batch.sequences, batch.target_tokens), dtypes.int64, "labels")
        return self._samples(tape, batch, dtype), labels

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        samples, labels = inputs
        hidden, features = self.body.forward(samples)
        last = hidden
        hidden = dropout(hidden, self.spec.final_dropout)
        with samples.tape.losing():
            logits = self.lm_head(hidden)
            ones = empty(samples.tape, samples.shape, dtypes.int64, "ones_like")
            lengths = empty(samples.tape, samples.shape[:1], dtypes.int64, "add")
            loss = ctc(logits, labels, self.spec.ctc_loss_reduction, self.spec.ctc_zero_infinity)
        del last, features, ones, lengths
        return loss, logits


class AudioClassification(_Heard):
    """The mean of all frames, projected, is classified (`Wav2Vec2ForSequenceClassification`).

    All hidden states are there until it is done (backbone_utils.py, `filter_output_hidden_states`).
    """

    def __init__(self, spec: Wav2Vec2Spec, build: Builder, body: type[Wav2Vec2] = Wav2Vec2):
        build.shows_states = True
        super().__init__(spec, build, body)
        size = spec.classifier_proj_size
        self.projector = build.linear("projector", spec.hidden_size, size, True)
        self.classifier = build.linear("classifier", size, build.labels, True, quantized=False)

    def inputs(self, tape: Tape, batch: Batch, dtype: DType) -> tuple[Tensor, ...]:
        return self._samples(tape, batch, dtype), empty(tape, (batch.sequences,), dtypes.int64, "labels")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Held]:
        samples, labels = inputs
        last, features = self.body.forward(samples)
        with samples.tape.losing():
            hidden = self.projector(last)
            pooled = mean(hidden, 1)
            logits = self.classifier(pooled)
            loss = cross_entropy(logits, labels)
        del last, features, hidden, pooled
        self.body.release(samples.tape)
        return loss, logits


HEADS = {"ctc": CTC, "audio-classification": AudioClassification}
