"""Transformer Engine's products in fp8, and what Megatron-Core recomputes of a layer: bytes that its source gives by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator import estimate
from estimator.contract.errors import WillItFitError
from estimator.contract.job import read_job
from estimator.contract.units import MIB
from estimator.families.build import Builder
from estimator.megatron.execution import Execution
from estimator.megatron.fp8 import Fp8
from estimator.megatron.linear import Norm, Split
from estimator.pipeline.run import played
from estimator.simulation.simulation import simulate
from estimator.simulation.trace import trace
from estimator.tape import dtypes
from estimator.tape.autograd import run_backward
from estimator.tape.collectives import Group
from estimator.tape.gpu import Gpu
from estimator.tape.replay import replay
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor, empty
from tests.measured_runs import B200, megatron_functional
from tests.megatron.test_stages import SMALL, SPARSE, folded_as_unrolled, job

TOKENS, INPUTS, OUTPUTS = 512, 256, 384
NUMBERS, ROOTS = TOKENS * INPUTS, 4 * TOKENS
HOPPER, BLACKWELL = True, False

# What a layer saves beside its input as it came. A byte per number of the input; one scale, or 4 bytes for 128 tokens of a
# feature, or a byte for 32, in rows that are filled up to 4 and 128. (quantizer.cpp, `get_scale_shape`.)
BLOCKS, MX_BLOCKS = 4 * (TOKENS // 128) * INPUTS, (TOKENS // 32) * INPUTS
SAVED = [
    ("row", "delayed", 1, NUMBERS + 4),
    ("row", "tensorwise", 1, NUMBERS + 4),
    ("row", "blockwise", 1, NUMBERS + BLOCKS),
    ("row", "mxfp8", 1, NUMBERS + MX_BLOCKS),
    ("attention", "delayed", 1, NUMBERS + 4),
    ("attention", "tensorwise", 1, 0),
    ("attention", "blockwise", 1, 0),
    ("norm", "delayed", 1, NUMBERS + 4 + ROOTS),
    ("norm", "delayed", 4, NUMBERS + 4 + ROOTS),
    ("norm", "mxfp8", 4, NUMBERS + MX_BLOCKS + ROOTS),
    ("column", "blockwise", 2, NUMBERS + BLOCKS),
    ("discarded", "blockwise", 2, 0),
]


@pytest.mark.parametrize("turns", [HOPPER, BLACKWELL], ids=["hopper", "blackwell"])
@pytest.mark.parametrize(("layer", "recipe", "ranks", "saved"), SAVED)
def test_what_a_linear_layer_saves(layer: str, recipe: str, ranks: int, saved: int, turns: bool) -> None:
    """Of this rank's tokens; on Hopper the columns are kept and on Blackwell the only copy, which is as large."""
    tape, out, held = _forward(layer, recipe, ranks, turns)
    tape.finish()
    del held
    forward = replay(tape).phases[-1]
    assert forward.end_bytes - forward.start_bytes == saved + out.nbytes


def _forward(layer: str, recipe: str, ranks: int, turns: bool) -> tuple[Tape, Tensor, object]:
    """A layer's result, of this many tokens of its input; and what lives beside it."""
    tape = Tape(step=1)
    build = Builder(tape, dtypes.bfloat16)
    how = Execution(Fp8(recipe, turns), frozenset({"layernorm"} if layer == "discarded" else ()))
    tape.begin("load")
    weight, split = how.weight(build, "weight", (OUTPUTS, INPUTS)), Split(Group("tensor", ranks), ranks > 1)
    gain = Norm(build.parameter("norm", (INPUTS,)), None)
    module = {
        "row": lambda: how.row(build, weight, split),
        "attention": lambda: how.row(build, weight, split, of_attention=True),
        "norm": lambda: how.norm_linear(build, gain, weight, None, split),
        "column": lambda: how.column(build, weight, split),
        "discarded": lambda: how.column(build, weight, split, of_norm=True),
    }[layer]()
    x = empty(tape, (TOKENS, 1, INPUTS), dtypes.bfloat16)
    x.requires_grad = tape.grad_enabled = True
    tape.begin("forward")
    return tape, module(x), (build, module, x)


# What backward takes above its start: the gradient both ways, which on Blackwell is once; in bf16 that of the input, and of this
# rank's tokens again; what was gathered, and turned. Of blocks of 128 both forms of this rank's gradient, those of all ranks, and
# columns that are turned, are there together.
GRADIENT, TO_INPUT = TOKENS * OUTPUTS, 2 * NUMBERS
ROW_SCALES, COLUMN_SCALES = 4 * (OUTPUTS // 128) * TOKENS, 4 * (TOKENS // 128) * OUTPUTS
MX_SCALES = TOKENS * OUTPUTS // 32
TAKEN = [
    ("row", "delayed", 1, HOPPER, 2 * GRADIENT + 4 + TO_INPUT),
    ("row", "delayed", 1, BLACKWELL, GRADIENT + 4 + TO_INPUT),
    ("attention", "tensorwise", 1, HOPPER, 2 * GRADIENT + 4 + 2 * NUMBERS + 4 + TO_INPUT),
    ("column", "tensorwise", 2, HOPPER, 2 * 2 * GRADIENT + 4 + 2 * NUMBERS + 4 + 2 * TO_INPUT + TO_INPUT + 2 * NUMBERS),
    ("row", "mxfp8", 1, BLACKWELL, 2 * (GRADIENT + MX_SCALES) + TO_INPUT + MX_SCALES + MX_BLOCKS),
    ("row", "blockwise", 2, HOPPER, (2 + 1) * (2 * GRADIENT + ROW_SCALES + COLUMN_SCALES) // 2 + GRADIENT),
]


@pytest.mark.parametrize(("layer", "recipe", "ranks", "turns", "taken"), TAKEN)
def test_what_backward_takes(layer: str, recipe: str, ranks: int, turns: bool, taken: int) -> None:
    tape, out, held = _forward(layer, recipe, ranks, turns)
    gradient = empty(tape, out.shape, dtypes.bfloat16)
    tape.begin("backward")
    run_backward((out,), (gradient,))
    tape.finish()
    del held
    backward = replay(tape).phases[-1]
    assert backward.peak_bytes - backward.start_bytes == taken


PARAMETERS = 512 * 1024
SCALED = 4 * (5 + 5 * 16)
"""Bytes that delayed scaling remembers of a layer's five tensors: their scales, and here sixteen maxima of each."""
KEPT = [
    ("delayed", HOPPER, False, 2 * PARAMETERS + 2 * PARAMETERS + 4 + SCALED),
    ("delayed", BLACKWELL, False, 2 * PARAMETERS + PARAMETERS + 4 + SCALED),
    ("delayed", HOPPER, True, 2 * PARAMETERS + 4 + SCALED),
    ("delayed", BLACKWELL, True, PARAMETERS + 4 + SCALED),
    ("blockwise", HOPPER, False, 2 * PARAMETERS + 2 * (PARAMETERS + 4 * 4 * 8)),
    ("blockwise", HOPPER, True, 2 * (PARAMETERS + 4 * 4 * 8)),
    ("mxfp8", BLACKWELL, False, 2 * PARAMETERS + 2 * (PARAMETERS + PARAMETERS // 32)),
]


@pytest.mark.parametrize(("recipe", "turns", "kept", "held"), KEPT)
def test_what_a_weight_takes(recipe: str, turns: bool, kept: bool, held: int) -> None:
    """Itself in bf16, and both forms; or with --fp8-param-gather these alone. A weight's block is 128 by 128."""
    tape = Tape(step=1)
    tape.begin("load")
    build = Builder(tape, dtypes.bfloat16)
    how = Execution(Fp8(recipe, turns, kept, 16))
    weight = how.weight(build, "weight", (512, 1024))
    module = how.row(build, weight, Split(Group("tensor"), False))
    tape.finish()
    assert replay(tape).phases[-1].end_bytes == held
    del module


def test_main_weights_are_whole() -> None:
    """With weights in fp8 alone the optimizer's float32 weights, states and gradients are as they were; weights lie in a buffer
    of their own, which is gathered in bytes."""
    spread = {"data": 4, "strategy": "zero1"}
    plain, gathered = (
        estimate(job(SMALL, 4, spread, fp8={"recipe": "tensorwise", "param_gather": kept})) for kept in (False, True)
    )
    layers = 8 * (512 * 1024 + 512 * 512 + 3 * 512 * 1536)
    sent = [
        next(t.bytes for t in answer.communication if (t.operation, t.group) == ("all_gather", "data"))
        for answer in (plain, gathered)
    ]
    assert sent[0] - sent[1] == pytest.approx(layers, rel=1e-3)
    assert plain.memory.resident_bytes - gathered.memory.resident_bytes == pytest.approx(2 * layers, rel=1e-3)


@pytest.mark.parametrize("run", megatron_functional()["native"], ids=lambda run: run["case"])
def test_columns_that_hopper_has_and_blackwell_has_not(run: dict[str, Any]) -> None:
    """Measured: of weights in fp8 alone, a byte for each parameter. On the last of two stages a MiB more was not found."""
    width, tensor, held = 512, run["tensor"], []
    for turns in (HOPPER, BLACKWELL):
        tape = Tape()
        tape.begin("load")
        build = Builder(tape, dtypes.bfloat16)
        how = Execution(Fp8("tensorwise", turns, True))
        shapes = [
            (3 * width // tensor, width),
            (width, width // tensor),
            (4 * width // tensor, width),
            (width, 4 * width // tensor),
        ]
        modules = [how.row(build, how.weight(build, "weight", shape), Split(Group("tensor"), False)) for shape in shapes]
        tape.finish()
        held.append(run["layers"] * replay(tape).phases[-1].end_bytes)
        del modules
    left = run["h100"] - run["gb200"] - (held[0] - held[1])
    not_found = MIB if run["layers"] < 12 else 0
    assert left == pytest.approx(not_found, abs=1024)


@pytest.mark.parametrize("plain", megatron_functional()["beside"]["bf16"])
def test_what_fp8_adds_between_steps(plain: int) -> None:
    """Measured, of latent attention, experts and a layer ahead; the runs in bf16 differ by 5 MiB, 0.8 % of what is added."""
    record = megatron_functional()["beside"]
    asked = {"model": record["model"], "hardware": {"gpu": "h100", "gpus": 8}, "parallelism": record["parallelism"]}
    held = []
    for fp8 in (None, {"recipe": "tensorwise"}):
        run = played(read_job({**asked, "training": {**record["training"], "fp8": fp8}}), True)
        simulated = simulate(run.job, run.model.spec, replace(run.place, stage=1), Gpu((9, 0), True))
        held.append(simulated.phases.phases[1].start_bytes)
    assert held[1] - held[0] == pytest.approx(record["fp8"] - plain, rel=8e-3)


RECIPES = [("h100", recipe) for recipe in ("delayed", "tensorwise", "blockwise")] + [
    ("b200", recipe) for recipe in ("delayed", "tensorwise", "mxfp8")
]
WIDE = {**SPARSE, "kv_lora_rank": 128, "qk_rope_head_dim": 64}


def _with(model: dict[str, Any], gpu: str, tensor: int, **training: Any) -> dict[str, Any]:
    asked = job(model, tensor, {"tensor": tensor}, **training)
    return {**asked, "hardware": {"gpu": gpu, "gpus": tensor}}


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("model", [SMALL, WIDE], ids=["dense", "mixture"])
@pytest.mark.parametrize(("gpu", "recipe"), RECIPES)
def test_activations_are_never_more(gpu: str, recipe: str, model: dict[str, Any], tensor: int) -> None:
    """And products count the same, those of the layers as fp8."""
    plain, fp8 = (estimate(_with(model, gpu, tensor, **asked)) for asked in ({}, {"fp8": {"recipe": recipe}}))
    saved = [answer.memory.forward_end_bytes - answer.memory.resident_bytes for answer in (plain, fp8)]
    assert saved[1] < saved[0]
    assert fp8.memory.resident_bytes > plain.memory.resident_bytes


def test_which_products_are_in_fp8() -> None:
    """Those of the layers: three for each of their parameters and tokens. The head's are not, nor attention's."""
    run = played(read_job(job(SMALL, fp8={"recipe": "mxfp8"})), True)
    layers = 8 * (512 * 1024 + 512 * 512 + 3 * 512 * 1536)
    tape = trace(run.job, run.model.spec, run.place, B200).tape
    counted = sum(work.flops * (work.slot.total if work.slot else 1) for work in tape.work if work.operation == "scaled_mm")
    assert counted == 3 * 2 * 1024 * layers


LAYERS, SPARSE_LAYERS, WIDTH = 8, 7, 512
NORMED = 2 * WIDTH + 4
"""A norm's result, and what it keeps of a token."""
UP = 2 * (8 * (96 + 96 + 64)) + 2 * (128 + 64) + 2 * 4
"""Queries, keys and values, and what they are made of, normalised."""
PARTS = [
    (["layernorm"], 1024 * NORMED * (LAYERS + SPARSE_LAYERS)),
    (["moe_act"], SPARSE_LAYERS * 4 * 1024 * 256 * 2),
    (["mla_up_proj"], LAYERS * 1024 * UP),
    (["mlp"], 1024 * (NORMED + 2 * 3 * 1024)),
    (["shared_experts"], SPARSE_LAYERS * 1024 * 2 * 3 * 256),
    (["layernorm", "moe_act"], 1024 * NORMED * (LAYERS + SPARSE_LAYERS) + SPARSE_LAYERS * 4 * 1024 * 256 * 2),
]


@pytest.mark.parametrize(("parts", "saved"), PARTS, ids=lambda given: "+".join(given) if isinstance(given, list) else None)
def test_what_is_saved_less(parts: list[str], saved: int) -> None:
    """Bytes of all layers; and when backward is done, nothing of what was made again is left."""
    plain, less = (_forward_and_backward(recomputed) for recomputed in ("none", {"modules": parts}))
    assert plain[0] - less[0] == saved
    assert plain[1] == less[1]


def _forward_and_backward(recomputed: Any) -> tuple[int, int]:
    run = played(read_job(job(SPARSE, activation_checkpointing=recomputed)), True)
    phases = {p.name: p.end_bytes for p in replay(trace(run.job, run.model.spec, run.place, B200).tape).phases}
    return phases["forward"], phases["backward"]


def test_selective_is_the_core_of_attention() -> None:
    """Its log-sum-exp and random state go."""
    latent = [_forward_and_backward(way)[0] for way in ("none", "selective", {"modules": ["core_attn"]})]
    assert latent[0] - latent[1] == LAYERS * (4 * 8 * 1024 + 2 * 512)
    assert latent[1] == latent[2]


EVERY = ["core_attn", "layernorm", "moe_act", "mla_up_proj", "shared_experts", "mlp"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"activation_checkpointing": {"modules": EVERY}},
        {"activation_checkpointing": {"modules": EVERY}, "fp8": {"recipe": "mxfp8"}},
        {"activation_checkpointing": {"modules": ["moe", "layernorm", "moe_act"]}, "fp8": {"recipe": "tensorwise"}},
        {"activation_checkpointing": "full", "fp8": {"recipe": "delayed"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [{}, {"tensor": 2, "pipeline": 2}, {"pipeline": 2, "model_chunks": 2}], ids=str)
def test_folded_is_unrolled(asked: dict[str, Any], spread: dict[str, Any]) -> None:
    gpus = spread.get("tensor", 1) * spread.get("pipeline", 1)
    folded_as_unrolled(job(SPARSE, gpus, spread, gradient_accumulation_steps=4, **asked))


def test_runs_of_layers_are_segments() -> None:
    uniform, segments = (estimate(job(SMALL, activation_checkpointing=form)) for form in ({"uniform": 2}, {"segments": 4}))
    assert uniform.memory == segments.memory


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("h100", {"fp8": {"recipe": "mxfp8"}}, {}, "mxfp8 needs a compute capability from 10.0 on and below 12.0, not 9.0"),
    ("b200", {"fp8": {"recipe": "blockwise"}}, {}, "write mxfp8"),
    ("a100", {"fp8": {}}, {}, "from 8.9 on, not 8.0"),
    ("h100", {"fp8": {"param_gather": True}}, {}, "write strategy: zero1"),
    ("b200", {"fp8": {"recipe": "mxfp8", "param_gather": True}}, {"strategy": "zero1"}, "are not modelled: leave it out"),
    ("h100", {"fp8": {"recipe": "tensorwise", "amax_history_len": 4}}, {}, "only delayed scaling"),
    ("h100", {"fp8": {}, "precision": "megatron-fp16"}, {}, "megatron-bf16 only"),
    ("h100", {"fp8": {}, "sequence_length": 1000}, {}, "multiples of 16"),
    ("h100", {"fp8": {}, "activation_checkpointing": {"modules": ["moe_act"]}}, {}, "with delayed scaling"),
    ("h100", {"float8": "tensorwise"}, {}, "leave it out"),
    ("h100", {"fp8": {}, "implementation": "transformers"}, {}, "float8 is torchao's"),
    ("h100", {"activation_checkpointing": {"modules": ["self_attn"]}}, {}, "not self_attn"),
    ("h100", {"activation_checkpointing": {"uniform": 3}}, {}, "the 8 layers of a stage are no runs of 3"),
    ("h100", {"activation_checkpointing": {"uniform": 2}, "implementation": "transformers"}, {}, "write segments"),
]


@pytest.mark.parametrize(("gpu", "training", "parallelism", "said"), REFUSED, ids=lambda given: str(given)[:40])
def test_what_is_refused(gpu: str, training: dict[str, Any], parallelism: dict[str, Any], said: str) -> None:
    model = SPARSE if "moe_act" in str(training) else SMALL
    with pytest.raises(WillItFitError, match=said):
        estimate({**job(model, 1, parallelism, **training), "hardware": {"gpu": gpu}})


@pytest.mark.parametrize("part", ["moe_act", "mla_up_proj", "layernorm"])
def test_a_part_that_a_dense_model_has_not(part: str) -> None:
    with pytest.raises(WillItFitError, match=part):
        estimate(job(SMALL, activation_checkpointing={"modules": [part]}))
