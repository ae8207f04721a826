"""Formats of quantized weights: the libraries' own layers as judges of their bytes, and published checkpoints of whole models."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers.integrations.eetq import EetqLinear
from transformers.integrations.fbgemm_fp8 import FbgemmFp8Linear
from transformers.integrations.finegrained_fp8 import FP8Linear

from estimator import InvalidJob, Job, NotModelled, estimate
from estimator.contract.job.part import Storage
from estimator.families.spec import DecoderSpec
from estimator.quantization.exceptions import excepted
from estimator.quantization.formats import FORMATS, parts
from estimator.quantization.stored import stored_bytes
from estimator.specs.huggingface import quantized_as, stored_as
from estimator.specs.published import published
from estimator.specs.resolve import resolve
from tests.jobs import ROOT, TESTS, content, counts
from tests.tape.test_quantized import MODEL

SHAPES = [(512, 1024), (384, 640), (14336, 4096)]
TRANSFORMERS: dict[str, Callable[[int, int], torch.nn.Module]] = {
    "eetq-int8": lambda outputs, inputs: EetqLinear(inputs, outputs),
    "fp8": lambda outputs, inputs: FP8Linear(inputs, outputs),
    "fp8-block": lambda outputs, inputs: FP8Linear(inputs, outputs, (128, 128)),
    "fp8-row": lambda outputs, inputs: FbgemmFp8Linear(inputs, outputs, False),
}
"""transformers' own layers, by the format that they store."""
HQQ: list[dict[str, Any]] = content(TESTS / "data" / "hqq.yaml")


def bytes_of(module: torch.nn.Module) -> int:
    return sum(tensor.nbytes for name, tensor in module.state_dict().items() if name != "bias")


def test_generation_with_hqq_allocates_what_hqq_allocates() -> None:
    spec = resolve("llama-3-8b").spec.model_copy(update={"num_hidden_layers": 4})
    serving = {"engine": "transformers", "weights": "hqq-int4", "context": 512, "concurrency": 2}
    answer = estimate({"model": spec.model_dump(), "task": "serve", "serving": serving})
    memory = answer.memory
    counted = {"resident": 2592154624, "prefill": 3024442368, "decode": 2961411072}
    assert {"resident": memory.resident_bytes, **memory.phases} == counted
    if importlib.util.find_spec("hqq"):
        from tests.judge.hqq import hqq_serving

        assert isinstance(spec, DecoderSpec)
        assert hqq_serving(Job.model_validate(answer.job), spec) == counted


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_layer_takes_the_bytes_of_transformers_own(name: str, shape: tuple[int, int]) -> None:
    with torch.device("meta"):
        layer = TRANSFORMERS[name](*shape)
    assert sum(part.nbytes for part in parts(name, shape)) == bytes_of(layer)


@pytest.mark.parametrize("bits", [8, 4, 3, 2, 1])
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_hqq_stores_what_its_layer_does(bits: int, shape: tuple[int, int]) -> None:
    hqq: Any = pytest.importorskip("hqq.core.quantize", reason="pip install hqq")
    plain = torch.nn.Linear(shape[1], shape[0], bias=False)
    config = hqq.BaseQuantizeConfig(nbits=bits, group_size=64, axis=1)
    layer = hqq.HQQLinear(plain, config, compute_dtype=torch.bfloat16, device="cpu")
    held = [layer.W_q, *(value for value in layer.meta.values() if isinstance(value, torch.Tensor))]
    assert sum(part.nbytes for part in parts(f"hqq-int{bits}", shape)) == sum(tensor.nbytes for tensor in held)


@pytest.mark.parametrize(
    ("name", "config"), [("torchao-int8", "Int8WeightOnlyConfig"), ("torchao-fp8", "Float8WeightOnlyConfig")]
)
def test_torchao_stores_what_its_tensor_does(name: str, config: str) -> None:
    ao: Any = pytest.importorskip("torchao.quantization", reason="pip install torchao")
    model = torch.nn.Sequential(torch.nn.Linear(1024, 512, bias=False, dtype=torch.bfloat16))
    ao.quantize_(model, getattr(ao, config)())
    weight: Any = model[0].weight
    held = [getattr(weight, end, None) for end in ("qdata", "scale", "zero_point")]
    assert sum(part.nbytes for part in parts(name, (512, 1024))) == sum(tensor.nbytes for tensor in held if tensor is not None)


@pytest.mark.parametrize(("model", "size"), [("gpt-oss-20b", 13761264768), ("gpt-oss-120b", 65248815744)])
def test_a_checkpoint_in_mxfp4_is_as_large_as_the_published_one(model: str, size: int) -> None:
    """`total_size` of their model.safetensors.index.json."""
    assert stored_bytes(published(model).architecture, "mxfp4") == size


@pytest.mark.parametrize(
    ("name", "bits"),
    [("gptq-int4", 4 + 20 / 128 + 32 / 4096), ("awq-int4", 4 + 20 / 128), ("nvfp4", 4.5), ("fp8-block", 8 + 32 / 128**2)],
)
def test_bits_of_a_weight_by_arithmetic(name: str, bits: float) -> None:
    """Codes, and what a group adds: a float16 scale and a zero point of 4 bits; of GPTQ an index per input, too."""
    assert 8 * sum(part.nbytes for part in parts(name, (4096, 4096))) / 4096**2 == pytest.approx(bits, abs=1e-4)


def test_every_format_has_a_name_in_jobs_and_fewer_bytes() -> None:
    assert set(FORMATS) == set(get_args(Storage))
    spec = published("llama-3-8b").architecture
    plain = published("llama-3-8b").parameters
    assert plain is not None
    for name, known in FORMATS.items():
        assert (stored_bytes(spec, name) < 2 * plain.value) == known.linears


@pytest.mark.parametrize(
    "name", [name for name in FORMATS if name.startswith(("gptq", "awq", "packed", "fp8", "nvfp4", "torchao"))]
)
def test_what_vllm_serves_is_what_is_stored(name: str) -> None:
    """The weights of a served model: the checkpoint's, each tensor rounded up as CUDA allocates it, and rotary tables.

    A layer's down projection in three bits has 21 MiB, for which the caching allocator takes a segment of 22 that stays whole.
    """
    job = {"model": "llama-3-8b", "task": "serve", "serving": {"weights": name, "context": 256}}
    memory = estimate(job).memory
    stored = stored_bytes(published("llama-3-8b").architecture, name)
    unsplit = 32 * 2**20 if name == "gptq-int3" else 0
    rotary = 2 * 8192 * 128
    assert 0 <= memory.at_peak["parameters"] - stored - unsplit < rotary + 300 * 512


def test_layers_that_stay_whole() -> None:
    def resident(**more: Any) -> int:
        training = {"precision": "bf16-true", "quantization": "nf4", "adapter": {"rank": 4, "targets": ["q_proj"]}, **more}
        return estimate({"model": MODEL, "training": training}).memory.resident_bytes

    gate = 1408 * 512
    saved = 2 * gate - gate // 2 - 4 * gate // 64 - 512
    assert resident(unquantized=["gate_proj"]) - resident() == 3 * saved
    assert resident(unquantized=["mlp"]) - resident() == 3 * 3 * saved
    with_unquantized = resident(unquantized=["gate"])
    assert with_unquantized == resident(), "a part of a name is no part of a path"
    assert resident(quantization_group=256) < resident(quantization_group=128) < resident()


@pytest.mark.parametrize("row", HQQ, ids=lambda row: row["name"])
def test_lora_beside_hqq_allocates_what_hqq_allocates(row: dict[str, Any]) -> None:
    """As it was counted, and anew where HQQ is installed; transformers warns then, so: pytest -p no:warnings."""
    answer = estimate(row["job"])
    assert counts(answer) == row["counted"]
    if importlib.util.find_spec("hqq"):
        from tests.judge.hqq import hqq_step

        job = Job.model_validate(answer.job)
        assert hqq_step(job, resolve(job.model).spec) == row["counted"]


@pytest.mark.parametrize("name", ["nvfp4", "gptq-int3", "hqq-int3"])
def test_training_that_is_not_modelled_is_refused(name: str) -> None:
    with pytest.raises(NotModelled, match=f"training beside weights in {name}"):
        estimate({"model": MODEL, "training": {"precision": "bf16-true", "quantization": name, "adapter": {}}})


@pytest.mark.parametrize(
    ("serving", "says"),
    [
        ({"weights": "mxfp4"}, "mixture's experts"),
        ({"weights": "hqq-int4"}, "vLLM loads no weights"),
        ({"weights": "awq-int4", "engine": "transformers"}, "awq-int4 in transformers"),
        ({"weights": "gptq-int4", "engine": "transformers"}, "gptq-int4 in transformers"),
        ({"weights": "hqq-int3", "engine": "transformers"}, "hqq-int3 in transformers"),
        ({"weights": "bf16", "unquantized": ["q_proj"]}, "nothing is quantized"),
        ({"weights": "fp8-block", "weights_group": 64}, "no group to choose"),
        ({"weights": "awq-int4", "weights_group": 100}, "power of two"),
    ],
)
def test_serving_that_cannot_be_is_refused(serving: dict[str, Any], says: str) -> None:
    with pytest.raises((InvalidJob, NotModelled), match=says):
        estimate({"model": MODEL, "task": "serve", "serving": {"context": 256, **serving}})


WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "actorder": None}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
    "ignore": ["re:.*self_attn.*", "re:.*mlp\\.(gate|up)_proj.*"],
}


def _packed(**weights: Any) -> dict[str, Any]:
    return {**PACKED, "config_groups": {"group_0": {"weights": {**WEIGHTS, **weights}}}}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "weights are in gptq-int4"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "weights are in gptq-int4-ungrouped"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "weights are in awq-int4, in groups of 64"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "weights are in fp8-block"),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["self_attn"]}, "weights are in fp8-row, but for self_attn"),
        ({"quant_method": "mxfp4"}, "weights are in mxfp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "weights are in nf4"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, "weights are in nf4-double"),
        ({"load_in_8bit": True}, "weights are in int8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "weights are in nvfp4"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "weights are in fp8-row"),
        (PACKED, "weights are in packed-int4, in groups of 32, but for self_attn, mlp.gate_proj, mlp.up_proj"),
        (_packed(symmetric=False), "weights are in awq-int4, in groups of 32"),
        (_packed(num_bits=8, group_size=128), "weights are in packed-int8, but for"),
        (_packed(actorder="group"), "no format here has its name"),
        (_packed(num_bits=2), "no format here has its name"),
        ({**PACKED, "ignore": ["re:[a-z]+_proj"]}, "not understood, and counted as if quantized: re:[a-z]+_proj"),
        ({"quant_method": "hqq", "nbits": 3}, "weights are in hqq-int3"),
        ({"quant_method": "eetq"}, "weights are in eetq-int8"),
        ({"quant_method": "vptq"}, "no format here has its name"),
    ],
)
def test_a_config_names_the_format_to_ask_for(config: dict[str, Any], says: str) -> None:
    (said,) = quantized_as({"quantization_config": config})
    assert says in said


def test_four_bit_layers_compute_in_the_type_that_is_asked_for() -> None:
    training = {"precision": "bf16-true", "quantization": "nf4", "adapter": {"rank": 4}, "sequence_length": 16}
    plain, same, wide = (
        estimate({"model": MODEL, "training": {**training, **more}}).memory
        for more in ({}, {"quantization_compute": "bf16"}, {"quantization_compute": "fp32"})
    )
    assert plain == same
    assert wide.resident_bytes == plain.resident_bytes
    assert wide.peak_bytes > plain.peak_bytes


def test_the_document_has_the_programs_figures() -> None:
    text = (ROOT / "docs" / "techniques" / "quantization.md").read_text(encoding="utf-8")
    spec = published("llama-3-8b").architecture
    for name, known in FORMATS.items():
        if known.linears and name not in ("gptq-int4-ungrouped", "torchao-int4-tiles"):
            assert f"{stored_bytes(spec, name):,}" in text, name
    for name in ("nf4", "nf4-double", "hqq-int4", "awq-int4", "eetq-int8"):
        half = "fp16" if name in ("awq-int4", "eetq-int8") else "bf16"
        adapter = {"rank": 16, "targets": ["q_proj", "v_proj"], "dtype": half}
        training = {"precision": f"{half.removeprefix('fp')}-true", "quantization": name, "adapter": adapter}
        memory = estimate({"model": "llama-3-8b", "training": training}).memory
        assert f"{memory.resident_bytes:,} | {memory.peak_bytes:,}" in text, name


@pytest.mark.parametrize(
    ("patterns", "layers", "parts", "unread"),
    [
        (["lm_head", "re:.*shared_experts.*"], None, ["lm_head", "shared_experts"], []),
        (["model.layers.0.self_attn*", "model.layers.1.self_attn*"], 2, ["self_attn"], []),
        (["model.layers.0.self_attn*", "model.layers.1.self_attn*"], 3, ["layers.0.self_attn", "layers.1.self_attn"], []),
        (["model.layers.0*", "model.layers.1.self_attn*"], 2, ["self_attn", "layers.0"], []),
        (["model.layers.0.mlp.gate", "model.layers.0.input_layernorm", "model.layers.2*"], 2, [], []),
        (
            ["mtp.layers.0*", "model.visual*", "*.mlp.shared_expert.*"],
            2,
            ["mtp.layers.0", "model.visual", "mlp.shared_expert"],
            [],
        ),
        (["model.layers.*.self_attn", "re:[qk]_proj"], 4, ["self_attn"], ["re:[qk]_proj"]),
    ],
)
def test_exceptions_are_read_as_parts_of_names(
    patterns: list[str], layers: int | None, parts: list[str], unread: list[str]
) -> None:
    assert excepted(patterns, layers) == (tuple(parts), tuple(unread))


SIZES = [
    ("moonshotai/Kimi-K2-Thinking", 594, "594 GB as is said of its files; no page of the makers was read"),
    (
        "nvidia/Kimi-K2.6-NVFP4",
        595,
        "ISTA-DASLab/Kimi-K2.5-P48NVFP4-Preview, which leaves the same layers whole: 595 GB by its model card",
    ),
    (
        "nvidia/Kimi-K2.5-NVFP4",
        590,
        "wafer-ai/Kimi-K2.6-NVFP4, which leaves the same layers whole: about 590 GB by its model card",
    ),
    (
        "CortexLM/GLM-5.1-NVFP4",
        441 - 20,
        "its model card: all but lm_head in NVFP4, about 441 GB with 19.9 GB that guess tokens ahead",
    ),
    (
        "nvidia/Qwen3.6-35B-A3B-NVFP4",
        23.4 - 1.7,
        "noonghunna/club-3090 pull request 607: 23.4 GB, with 0.85 billion weights in bf16 that guess tokens ahead",
    ),
    (
        "nvidia/GLM-5.2-NVFP4",
        464.8 - 19.9,
        "modal-projects/stitch pull request 81: 464.8 GB of files, with the layer in bf16 that guesses tokens ahead",
    ),
    (
        "nvidia/GLM-5.1-NVFP4",
        434 * 2**30 / 1e9 - 19.9,
        "the model card of lukealonso/GLM-5.1-NVFP4, which leaves the same layers whole: 434 GiB with the layer that guesses",
    ),
]


@pytest.mark.parametrize(("name", "gigabytes", "source"), SIZES, ids=[row[0] for row in SIZES])
def test_checkpoints_that_leave_layers_whole_have_their_published_size(name: str, gigabytes: float, source: str) -> None:
    """To a gigabyte, to which the sizes are published."""
    found = resolve(name, allow_files=False)
    assert found.stored is not None
    size = stored_bytes(found.spec, *found.stored[:3], found.stored.mixed)
    assert size / 1e9 == pytest.approx(gigabytes, abs=1), source


def test_a_checkpoint_of_which_a_few_layers_are_not_known_has_nearly_its_published_size() -> None:
    """331 GB were measured (NVIDIA-NeMo/Nemotron pull request 257); some of its layers of Mamba and of what makes latents, which
    were chosen by a search, are in another format than the others."""
    found = resolve("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4", allow_files=False)
    assert found.stored is not None
    assert stored_bytes(found.spec, *found.stored[:3], found.stored.mixed) / 1e9 == pytest.approx(331, rel=0.006)


LINEAR = ("in_proj_qkv", "in_proj_z", "out_proj")


def test_what_modelopt_lists_with_several_formats_is_read() -> None:
    """As nvidia/Qwen3.6-35B-A3B-NVFP4 lists its layers; what it does not list is whole."""
    spec = resolve("qwen3.5-35b-a3b").spec
    listed: dict[str, dict[str, str]] = {}
    for layer in range(40):
        path = f"model.language_model.layers.{layer}"
        attends = [f"self_attn.{x}_proj" for x in "qkvo"] if layer % 4 == 3 else [f"linear_attn.{x}" for x in LINEAR]
        listed |= {f"{path}.{name}": {"quant_algo": "FP8"} for name in attends}
        fed = [f"mlp.experts.{expert}.up_proj" for expert in range(2)] + [
            f"mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")
        ]
        listed |= {f"{path}.{name}": {"quant_algo": "W4A16_NVFP4"} for name in fed}
    listed["lm_head"] = {"quant_algo": "W4A16_NVFP4"}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": listed}
    found, known = (
        stored_as({"num_hidden_layers": 40, "quantization_config": config}, spec),
        resolve("nvidia/Qwen3.6-35B-A3B-NVFP4").stored,
    )
    assert found is not None
    assert known is not None
    assert (found.format, set(found.whole)) == ("nvfp4", {*known.whole, "mlp.shared_expert_gate"} - {"visual"})
    assert stored_bytes(spec, *known[:3], found.mixed) == stored_bytes(spec, *known[:3], known.mixed)
    odd = config | {"quantized_layers": listed | {"model.layers.0.mlp.up_proj": {"quant_algo": "W8A8_SQ_PER_CHANNEL"}}}
    assert stored_as({"num_hidden_layers": 40, "quantization_config": odd}, spec) is None


def test_layers_may_be_in_other_formats() -> None:
    """A byte of a weight in fp8, half a byte and a sixteenth in nvfp4; and the output layer, where it is named."""

    def resident(**serving: Any) -> int:
        asked = {"model": "llama-3.1-8b", "task": "serve", "serving": {"weights": "nvfp4", "context": 256, **serving}}
        answer = estimate(asked).memory.engine
        assert answer is not None
        return answer.weights_bytes

    plain, attends, table = 32 * 4096 * (4096 + 4096 + 2 * 1024), 9 / 16, 128256 * 4096
    more = resident(mixed_weights={"fp8": ["self_attn"]}) - resident()
    assert more == pytest.approx(plain * (1 - attends), rel=1e-3)
    assert resident() - resident(mixed_weights={"nvfp4": ["lm_head"]}) == pytest.approx(table * (2 - attends), rel=1e-3)
    for engine in ("transformers", "llama.cpp"):
        with pytest.raises(InvalidJob, match="it is vLLM's and SGLang's"):
            resident(engine=engine, weights="nf4" if engine == "transformers" else "q4_k_m", mixed_weights={"fp8": ["self_attn"]})
    with pytest.raises(InvalidJob, match="beside others"):
        resident(mixed_weights={"mxfp4": ["self_attn"]})
    with pytest.raises(InvalidJob, match="nothing is quantized"):
        resident(weights="bf16", mixed_weights={"fp8": ["self_attn"]})


def test_a_config_of_layers_by_number_is_of_all_layers_that_have_them() -> None:
    """Of a hybrid whose linear attention is excepted in each layer that has it; and of one layer's experts."""
    spec = resolve("qwen3.5-35b-a3b").spec
    kinds = ["self_attn" if layer % 4 == 3 else "linear_attn" for layer in range(40)]
    config = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": [f"model.layers.{n}.{k}*" for n, k in enumerate(kinds)],
    }
    stored = stored_as({"num_hidden_layers": 40, "quantization_config": config}, spec)
    assert stored is not None
    assert set(stored.whole) == {"self_attn", "linear_attn"}


@pytest.mark.parametrize("name", ["nvfp4", "fp8"])
def test_exceptions_may_be_of_one_layer(name: str) -> None:
    def resident(*unquantized: str) -> int:
        serving = {"weights": name, "context": 256, "unquantized": list(unquantized)}
        job = {"model": "qwen3-30b-a3b", "task": "serve", "hardware": {"gpu": "h200"}, "serving": serving}
        answer = estimate(job).memory.engine
        assert answer is not None
        return answer.weights_bytes

    one, plain, every = resident("layers.3.mlp.experts", "layers.7.mlp.experts"), resident(), resident("mlp.experts")
    assert every - plain == pytest.approx(24 * (one - plain), rel=1e-3)
    assert resident("layers.99.mlp") == plain


def test_what_modelopt_says_beside_a_config_counts(tmp_path: Path) -> None:
    config = {**published("llama-3-8b").architecture.model_dump(mode="json"), "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert resolve(str(tmp_path)).stored is None
    said = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", "model.layers.1.self_attn*"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": said}))
    found = resolve(str(tmp_path)).stored
    assert found is not None
    assert (found.format, found.group, found.whole) == ("nvfp4", None, ("lm_head", "layers.1.self_attn"))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {**said, "quant_algo": "MIXED_PRECISION"}}))
    assert resolve(str(tmp_path)).stored is None
    assert "no format here has its name" in resolve(str(tmp_path)).assumptions[0]
