"""Models of several parts: their parameters and buffers as transformers builds them, and what is said of what is not modelled."""

from __future__ import annotations

import ast
import copy
import json
import math
import random
import re
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.vision_utils import get_vision_window_index

from estimator import InvalidJob, NotModelled, estimate, fit
from estimator.contract.job.audio import Audio
from estimator.contract.job.images import Images
from estimator.families import FAMILIES, build_model, count, heads, parameters, spec_class
from estimator.families.aya_vision import least_enlarged
from estimator.families.build import Builder
from estimator.families.idefics3 import LONGEST as LONGEST_IN_TILES
from estimator.families.idefics3 import cut
from estimator.families.internvl import MOST_TILES
from estimator.families.internvl import cut as cut_to_fit
from estimator.families.kimi_k25 import MOST_ASIDE, MOST_PATCHES, padded
from estimator.families.llama4 import cut as tiles_of
from estimator.families.llava_next import LlavaNextSpec, LlavaOnevisionSpec
from estimator.families.pixtral import resized as whole_squares
from estimator.families.qwen_vl import LONGEST, resized
from estimator.families.qwen_vl_vision import Qwen25VisionSpec
from estimator.families.spec import ModelSpec
from estimator.specs.published import published
from estimator.specs.resolve import resolve
from estimator.tape.dtypes import DType, bfloat16
from estimator.tape.layout import Shape
from estimator.tape.tape import Tape
from estimator.tape.tensor import Tensor
from estimator.verify.model import AUTO, config, defaulting_to
from tests.jobs import cases

CASES: dict[str, Any] = {case["name"]: case["model"] for case in cases("multimodal")}
COMPOSED = [
    kind
    for kind in FAMILIES
    if {"vision_config", "audio_config"} & {*spec_class(kind).model_fields} and kind not in ("clip", "metaclip_2")
]
ANY = {kind: next(model for model in CASES.values() if model["model_type"] == kind) for kind in COMPOSED}


def runs(model: dict[str, Any]) -> bool:
    return resolve(model).spec.forward_modelled


COUNTED = {name: model for name, model in CASES.items() if "vision_config" in model and not runs(model)}
RUN = [kind for kind in COMPOSED if spec_class(kind).runs and spec_class(kind).sees]
IN_PARTS = [kind for kind in COMPOSED if spec_class(kind).runs]


class Noting(Builder):
    """A builder that keeps what each buffer is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.noted: Counter[tuple[Shape, str]] = Counter()

    def buffer(self, name: str, shape: Shape, dtype: DType) -> Tensor:
        self.noted[shape, dtype.name] += 1 if self.tape.slot is None else self.tape.slot.total
        return super().buffer(name, shape, dtype)


def real(spec: ModelSpec, made: Any) -> Any:
    """transformers' model of a configuration, in bfloat16."""
    with torch.device("meta"), defaulting_to(torch.bfloat16):
        return AUTO[next(iter(heads(spec.model_type)))].from_config(made)


@pytest.mark.parametrize("name", CASES)
def test_it_has_the_parameters_and_buffers_that_transformers_makes(name: str) -> None:
    given = CASES[name]
    spec = resolve(given).spec
    build = Noting(Tape(), bfloat16)
    build_model(spec, build, next(iter(heads(spec.model_type))))
    own = transformers.AutoConfig.for_model(**copy.deepcopy(given))
    for made in (own, config(spec, "eager")):
        model = real(spec, made)
        assert count(spec) == sum(p.numel() for p in model.parameters())
        size = sum(p.total * p.tensor.dtype.itemsize for p in parameters(spec))
        kept = tuple(model._keep_in_fp32_modules_strict or ())  # which are so where a checkpoint is loaded
        wide = {name: any(part in name for part in kept) for name, _ in model.named_parameters()}
        assert size == sum(p.numel() * (4 if wide[name] else p.itemsize) for name, p in model.named_parameters())
        buffers = Counter(
            (tuple(b.shape), "float32" if name.endswith(kept) else str(b.dtype).removeprefix("torch."))
            for name, b in model.named_buffers()
        )
        assert build.noted == buffers


@pytest.mark.parametrize("kind", IN_PARTS)
def test_its_parameters_are_called_as_in_transformers(kind: str) -> None:
    """So that patterns of targets, parts that are trained and what a checkpoint leaves whole mean the same."""
    spec = resolve(next(model for model in CASES.values() if model["model_type"] == kind and runs(model))).spec
    build = Builder(Tape(), bfloat16)
    build_model(spec, build, next(iter(heads(kind))))
    names = {re.sub(r"\.\d+\.", ".*.", name) for name, _ in real(spec, config(spec, "eager")).named_parameters()}
    assert {re.sub(r"\.\d+\.", ".*.", p.path) for p in build.parameters} == names


@pytest.mark.parametrize("kind", COMPOSED)
def test_every_kind_has_two_cases(kind: str) -> None:
    assert sum(model["model_type"] == kind for model in CASES.values()) >= 2


@pytest.mark.parametrize("name", CASES)
def test_its_spec_is_read_again_as_itself(name: str, tmp_path: Path) -> None:
    spec = resolve(CASES[name]).spec
    assert resolve(spec.model_dump(mode="json")).spec == spec
    config(spec, "eager").save_pretrained(tmp_path)
    assert count(resolve(str(tmp_path)).spec) == count(spec)


SPARSE: dict[str, dict[str, Any]] = {
    "gemma-3-4b": {
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34},
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "vision_use_head": False,
        },
    },
    "llava-1.5-7b": {
        "model_type": "llava",
        "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": 1024,
            "image_size": 336,
            "intermediate_size": 4096,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "patch_size": 14,
            "projection_dim": 768,
            "vocab_size": 32000,
        },
        "vision_feature_layer": -2,
    },
    "llama-3.2-11b-vision": {"model_type": "mllama", "text_config": {}, "vision_config": {}},
}
"""Configurations as they were published: what is usual is left out."""


@pytest.mark.parametrize("name", SPARSE)
def test_a_published_configuration_may_leave_out_what_is_usual(name: str) -> None:
    assert count(resolve(SPARSE[name]).spec) == count(published(name).architecture)


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("job", [{"task": "train"}, {"task": "serve", "serving": {"engine": "transformers"}}])
def test_it_is_not_run(name: str, job: dict[str, Any]) -> None:
    kind = COUNTED[name]["model_type"]
    with pytest.raises(NotModelled, match=f"forward pass of {kind} models .*is not modelled") as refused:
        estimate({"model": COUNTED[name], "hardware": {"gpu": "h100"}, **job})
    assert refused.value.where == "model"


@pytest.mark.parametrize("kind", RUN)
def test_one_that_is_trained_is_not_served_by_transformers(kind: str) -> None:
    model = next(model for model in CASES.values() if model["model_type"] == kind and runs(model))
    alone = "; for its language model alone" if resolve(model).spec.instead else "$"
    with pytest.raises(NotModelled, match=f"serving {kind} with transformers is not modelled yet{alone}"):
        estimate({"model": model, "hardware": {"gpu": "h100"}, "task": "serve", "serving": {"engine": "transformers"}})


TOKENS = [
    ("llava-1.5-7b", 640, 480, 576),
    ("llava-1.5-7b", 20, 20, 576),
    ("gemma-3-4b", 1920, 1080, 256),
    ("qwen3-vl-8b", 640, 480, 300),
    ("glm-4.1v-9b", 640, 480, 391),
    ("glm-4.5v", 10000, 8000, 6090),
    ("pixtral-12b", 640, 480, 1200),
    ("paligemma2-3b", 640, 480, 256),
    ("llama-4-scout", 640, 480, 5 * 144),
    ("mistral-small-3.1-24b", 1540, 3080, 1540),
    ("llava-v1.6-mistral-7b", 640, 480, 2340),
    ("internvl3-1b", 640, 480, 3328),
    ("internvl3.5-8b", 448, 448, 256),
    ("aya-vision-8b", 1092, 728, 7 * 169),
    ("command-a-vision", 512, 512, 256),
    ("kimi-k2.5", 640, 480, 414),
    ("kimi-k2.5", 4000, 3000, 4200),
    ("minimax-m3", 640, 480, 391),
    ("paddleocr-vl", 640, 480, 391),
    ("lightonocr-1b", 1190, 1540, 2365),
    ("command-a-vision", 1024, 600, 5 * 256),
]


@pytest.mark.parametrize(("name", "width", "height", "tokens"), TOKENS)
def test_an_image_has_the_tokens_that_its_processor_makes(name: str, width: int, height: int, tokens: int) -> None:
    assert published(name).architecture.image_tokens(Images(width=width, height=height)) == tokens


HEARD = [
    ("voxtral-mini-3b", 30, 375),
    ("voxtral-mini-3b", 30.01, 750),
    ("voxtral-small-24b", 0.5, 375),
    ("qwen2.5-omni-7b", 10, 250),
    ("qwen3-omni-30b-a3b", 10.5, 137),
    ("qwen2-audio-7b", 10, 250),
    ("qwen2-audio-7b", 60, 750),
    ("qwen3-asr-0.6b", 10.5, 137),
    ("qwen3-asr-1.7b", 0.1, 7),
]


@pytest.mark.parametrize(("name", "seconds", "tokens"), HEARD)
def test_a_clip_has_the_tokens_that_its_processor_makes(name: str, seconds: float, tokens: int) -> None:
    assert published(name).architecture.audio_tokens(Audio(seconds=seconds)) == tokens


def test_a_model_that_hears_says_what_it_is_trained_on() -> None:
    job: dict[str, Any] = {"model": "voxtral-mini-3b", "training": {"adapter": {}}}
    assert any("text alone: what hears is loaded" in said for said in estimate(job).assumptions)
    heard = estimate({**job, "training": {**job["training"], "audio": {"count": 2, "seconds": 20}}})
    assert any("2 clips in each sequence, of 20 s: 375 tokens each" in said for said in heard.assumptions)
    assert any("with what hears in memory" in said for said in fit("voxtral-mini-3b", "24GB").assumptions)


@pytest.mark.parametrize("window", [56, 112, 130])
def test_windows_are_as_transformers_cuts_them(window: int) -> None:
    spec = Qwen25VisionSpec(
        model_type="qwen2_5_vl_vision", hidden_size=64, num_attention_heads=4, num_hidden_layers=1, window_size=window
    )
    rng = random.Random(window)
    for _ in range(50):
        rows, columns = 2 * rng.randint(1, 40), 2 * rng.randint(1, 40)
        _, ends = get_vision_window_index(torch.tensor([[1, rows, columns]]), 2, window, 14)
        assert spec.window_lengths(rows, columns) == tuple(ends.diff().tolist())


def of_processor(family: str, *names: str, file: str = "") -> dict[str, Any]:
    """Functions, methods and numbers of a family's image processor, or another `file`, without the libraries that read images."""
    folder = Path(transformers.__file__).parent / (f"models/{family}" if family else "")
    source = folder / (file or f"image_processing_{family}.py")
    parsed = ast.walk(ast.parse(source.read_text(encoding="utf-8")))
    found = [node for node in parsed if isinstance(node, ast.stmt) and _name(node) in names]
    made: dict[str, Any] = {"math": math, "np": np, "torch": torch, "SizeDict": lambda **sides: sides}
    made |= {"defaultdict": defaultdict, "lru_cache": lambda **settings: lambda function: function}
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, *found], []), family, "exec"), made)
    return made


def _name(node: ast.AST) -> str:
    """What a statement defines."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node
    return str(getattr(target, "name", getattr(target, "id", "")))


class Resized:
    """An image of which only the size is known."""

    def __init__(self, height: int, width: int):
        self.shape = (height, width)

    def size(self) -> tuple[int, int]:
        return self.shape

    def resize(self, image: Resized, size: dict[str, int], resample: object = None) -> Resized:
        return Resized(size["height"], size["width"])


def smart_resize() -> Any:
    """The function by which the processor of Qwen's models sizes images."""
    return of_processor("qwen2_vl", "smart_resize")["smart_resize"]


def test_an_image_is_cut_into_tiles_as_its_processor_does() -> None:
    names = "_resize_output_size_rescale_to_max_len", "_resize_output_size_scale_below_upper_bound", "MAX_IMAGE_SIZE"
    theirs = of_processor("idefics3", *names, "get_resize_output_image_size", "resize_for_vision_encoder")
    rng = random.Random(0)
    for _ in range(2000):
        height, width, side = int(2 ** rng.uniform(0, 13)), int(2 ** rng.uniform(0, 13)), rng.choice([364, 384, 512, 1100])
        first = Resized(*theirs["get_resize_output_image_size"](Resized(height, width), LONGEST_IN_TILES * side))
        tall, wide = theirs["resize_for_vision_encoder"](first, first, side).shape
        assert cut(height, width, side) == (tall // side, wide // side)


def test_an_image_is_cut_into_the_tiles_that_distort_it_least() -> None:
    theirs = of_processor("llama4", "get_factors", "find_supported_resolutions", "get_best_fit")
    rng = random.Random(0)
    for _ in range(500):
        height, width, side = int(2 ** rng.uniform(0, 13)), int(2 ** rng.uniform(0, 13)), rng.choice([56, 336])
        shapes = torch.tensor(theirs["find_supported_resolutions"](16, SimpleNamespace(height=side, width=side)))
        rows, columns = (theirs["get_best_fit"]((height, width), shapes) // side).tolist()
        assert tiles_of(height, width, side) == (rows, columns)


def test_an_image_becomes_whole_squares_as_its_processor_makes_them() -> None:
    theirs = of_processor("pixtral", "get_resize_output_image_size", "_num_image_tokens")
    theirs["get_image_size"] = lambda image, layout: image.shape
    rng = random.Random(0)
    for _ in range(2000):
        height, width, longest = int(2 ** rng.uniform(0, 13)), int(2 ** rng.uniform(0, 13)), rng.choice([336, 1024, 1540])
        asked = theirs["get_resize_output_image_size"](Resized(height, width), longest, 28)
        if min(asked):
            assert whole_squares(height, width, longest, 28) == asked
        else:
            with pytest.raises(InvalidJob, match="too long"):
                whole_squares(height, width, longest, 28)


def test_an_image_is_cut_into_the_tiles_that_fit_it_best() -> None:
    theirs = of_processor("got_ocr2", "get_all_supported_aspect_ratios", "get_optimal_tiled_canvas")["get_optimal_tiled_canvas"]
    rng = random.Random(0)
    for _ in range(2000):
        height, width, side = int(2 ** rng.uniform(0, 13)), int(2 ** rng.uniform(0, 13)), rng.choice([56, 448])
        assert cut_to_fit(height, width, side) == theirs((height, width), (side, side), 1, MOST_TILES)


def test_an_image_is_cut_into_the_tiles_that_enlarge_it_least() -> None:
    names = "get_all_supported_aspect_ratios", "get_optimal_tiled_canvas"
    theirs = of_processor("cohere2_vision", *names)["get_optimal_tiled_canvas"]
    rng = random.Random(0)
    for _ in range(2000):
        height, width, side = int(2 ** rng.uniform(0, 13)), int(2 ** rng.uniform(0, 13)), rng.choice([56, 512])
        assert least_enlarged(height, width, side) == theirs((height, width), (side, side), 1, MOST_TILES)


def test_an_image_in_tiles_is_put_together_without_what_only_pads() -> None:
    of_images = of_processor("llava_next", "_get_number_of_features", "_get_unpadded_features", file="processing_llava_next.py")
    select = of_processor("", "select_best_resolution", file="image_processing_utils.py")["select_best_resolution"]
    of_images["select_best_resolution"] = select
    spec = published("llava-v1.6-mistral-7b").architecture
    assert isinstance(spec, LlavaNextSpec)
    processor = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=spec.image_grid_pinpoints),
        patch_size=14,
        num_additional_image_tokens=1,
        _get_unpadded_features=lambda *sizes: of_images["_get_unpadded_features"](None, *sizes),
    )
    rng = random.Random(0)
    for _ in range(2000):
        height, width = int(2 ** rng.uniform(7, 12)), int(2 ** rng.uniform(7, 12))
        tokens = of_images["_get_number_of_features"](processor, height, width, 336, 336) - 1  # of the class token
        assert spec.image_tokens(Images(width=width, height=height)) == tokens
    with pytest.raises(InvalidJob, match="too long"):
        spec.image_tokens(Images(width=44, height=3299))


def test_an_image_in_many_tiles_is_made_smaller() -> None:
    of_images = of_processor(
        "llava_onevision", "_get_number_of_features", "_get_unpadded_features", file="processing_llava_onevision.py"
    )
    select = of_processor("", "select_best_resolution", file="image_processing_utils.py")["select_best_resolution"]
    of_images["select_best_resolution"] = select
    spec = published("llava-onevision-qwen2-7b").architecture
    assert isinstance(spec, LlavaOnevisionSpec)
    processor = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=spec.image_grid_pinpoints),
        num_image_tokens=729,
        vision_aspect_ratio="anyres_max_9",
    )
    processor._get_unpadded_features = lambda *sizes: of_images["_get_unpadded_features"](processor, *sizes)
    rng = random.Random(0)
    for _ in range(2000):
        height, width = int(2 ** rng.uniform(7, 12)), int(2 ** rng.uniform(7, 12))
        tokens = of_images["_get_number_of_features"](processor, height, width, 384, 384)
        assert spec.image_tokens(Images(width=width, height=height)) == tokens
    assert spec.image_tokens(Images(width=640, height=480, count=2)) == 730


def test_an_image_is_resized_as_its_processor_does() -> None:
    theirs, rng = smart_resize(), random.Random(0)
    for _ in range(2000):
        sides = int(2 ** rng.uniform(0, 13)), int(2 ** rng.uniform(0, 13))
        asked = *sides, rng.choice([28, 32]), rng.choice([3136, 65536, 200704]), rng.choice([1003520, 12845056, 16777216])
        if max(sides) > LONGEST * min(sides):
            with pytest.raises(ValueError, match="aspect ratio"):
                theirs(*asked)
            with pytest.raises(InvalidJob, match="too long"):
                resized(*asked)
        else:
            assert resized(*asked) == theirs(*asked)


def test_an_image_is_resized_as_glm_does() -> None:
    theirs, rng = of_processor("glm4v", "smart_resize")["smart_resize"], random.Random(0)
    spec = published("glm-4.1v-9b").architecture
    for _ in range(2000):
        height, width = int(2 ** rng.uniform(0, 13)), int(2 ** rng.uniform(0, 13))
        images = Images(height=height, width=width)
        try:
            tall, wide = theirs(2, height, width)
        except ValueError:
            with pytest.raises(InvalidJob, match="too long"):
                spec.image_tokens(images)
        else:
            assert spec.image_tokens(images) == tall // 28 * (wide // 28)


def test_an_image_is_filled_up_to_whole_squares() -> None:
    theirs, rng = of_processor("kimi_k25", "navit_resize")["navit_resize"], random.Random(0)
    for _ in range(2000):
        height, width, patch = int(2 ** rng.uniform(0, 14)), int(2 ** rng.uniform(0, 14)), rng.choice([7, 14])
        assert padded(height, width, patch) == theirs(height, width, patch, 2, MOST_PATCHES, MOST_ASIDE)[1]


def test_an_image_is_resized_as_paddleocr_does() -> None:
    theirs, rng = of_processor("paddleocr_vl", "smart_resize")["smart_resize"], random.Random(0)
    spec = resolve(ANY["paddleocr_vl"]).spec
    for _ in range(2000):
        height, width = int(2 ** rng.uniform(0, 13)), int(2 ** rng.uniform(0, 13))
        images = Images(height=height, width=width)
        try:
            tall, wide = theirs(height, width, 28)
        except ValueError:
            with pytest.raises(InvalidJob, match="too long"):
                spec.image_tokens(images)
        else:
            assert spec.image_tokens(images) == tall // 28 * (wide // 28)


def test_an_image_is_resized_as_minimax_does() -> None:
    theirs, rng = of_processor("minimax_m3_vl", "smart_resize")["smart_resize"], random.Random(0)
    spec = resolve(ANY["minimax_m3_vl"]).spec
    for _ in range(2000):
        height, width = int(2 ** rng.uniform(3, 13)), int(2 ** rng.uniform(3, 13))
        if max(height, width) <= LONGEST * min(height, width):
            tall, wide = theirs(height, width, 28, 4 * 28 * 28, 451584)
            assert spec.image_tokens(Images(height=height, width=width)) == tall // 28 * (wide // 28)


@pytest.mark.parametrize("most", [None, 400_000])
def test_a_processor_may_be_told_how_many_pixels(most: int | None) -> None:
    spec = published("qwen2.5-vl-7b").architecture
    tall, wide = smart_resize()(1080, 1920, 28, 3136, most or 12845056)
    assert spec.image_tokens(Images(width=1920, height=1080, max_pixels=most)) == tall // 28 * (wide // 28)


@pytest.mark.parametrize("name", ["llava-1.5-7b", "gemma-3-4b", "qwen2.5-vl-7b"])
def test_images_take_more_than_texts_alone_and_their_number_is_said(name: str) -> None:
    job = {"model": name, "hardware": {"gpu": "h100"}, "training": {"adapter": {"rank": 8}, "activation_checkpointing": "none"}}
    alone = estimate(job)
    seen = estimate({**job, "training": {**job["training"], "images": {"count": 2, "width": 640, "height": 480}}})  # type: ignore[dict-item]
    assert seen.memory.phases["forward"] > alone.memory.phases["forward"]
    assert seen.memory.resident_bytes >= alone.memory.resident_bytes
    assert any("text alone" in said for said in alone.assumptions)
    assert any("2 images in each sequence" in said for said in seen.assumptions)


@pytest.mark.parametrize("name", [name for name in CASES if "{" in resolve(CASES[name]).spec.instead])
def test_what_it_names_instead_is_answered(name: str) -> None:
    said = resolve(CASES[name]).spec.instead
    alone = json.loads(said[said.index("{") :])
    answer = estimate({"model": alone, "hardware": {"gpu": "h100"}, "training": {"sequence_length": 64}})
    assert answer.parameters.total == count(resolve(alone).spec) < count(resolve(CASES[name]).spec)


def test_the_headline_answers_one_that_sees_on_texts_alone() -> None:
    found = fit("gemma-3-4b", "h100")
    assert found.parameters == count(published("gemma-3-4b").architecture)
    assert {row.verdict for row in found.rows} <= {"fits", "does not fit", "tight"}
    assert any("texts alone" in said for said in found.assumptions)


def test_the_headline_counts_one_that_is_not_trained_here() -> None:
    found = fit(CASES["gemma 3 untied with biases and the pooling head"], "h100")
    assert {row.verdict for row in found.rows if not row.way.startswith("serve")} <= {"unknown", "does not fit"}
    assert any("language model alone" in said for said in found.assumptions)


def test_a_head_by_itself_has_no_forward_pass() -> None:
    spec = resolve(ANY["step3p7"]).spec
    model = build_model(spec, Builder(Tape(), bfloat16), "image-text-to-text")
    with pytest.raises(NotModelled, match="step3p7"):
        model.forward()


LLAVA = ANY["llava"]
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a language model that is unknown": ({"text_config": {"model_type": "rwkv"}}, NotModelled, "text_config: model_type 'rwkv'"),
    "a language model that is none": ({"text_config": {"model_type": "t5"}}, NotModelled, "text_config: .* type 't5'"),
    "a model within itself": ({"text_config": LLAVA}, NotModelled, "text_config: .* type 'llava'"),
    "a tower that is unknown": ({"vision_config": {"model_type": "resnet"}}, NotModelled, "vision_config: model_type 'resnet'"),
    "a tower that is none": ({"vision_config": {"model_type": "vit"}}, NotModelled, "vision_config: .* type 'vit'"),
    "no tower": ({"vision_config": None}, InvalidJob, "vision_config"),
    "a tower of text": ({"vision_config": "clip"}, InvalidJob, "vision_config"),
    "a type of no kind": ({"text_config": {"model_type": ["llama"]}}, NotModelled, "text_config"),
    "heads that do not divide": ({"vision_config": {"hidden_size": 50}}, InvalidJob, "50 is not a multiple of 12 heads"),
    "patches larger than images": ({"vision_config": {"image_size": 8}}, InvalidJob, "larger than image_size 8"),
    "a size of a part": ({"vision_config": {"image_size": [56, 28]}}, InvalidJob, "image_size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_are_none_are_refused(name: str) -> None:
    changed, kind, said = REFUSED[name]
    with pytest.raises(kind, match=said):
        resolve({**LLAVA, **changed})


def test_a_model_that_speaks_is_read_as_what_thinks() -> None:
    thinker = ANY["qwen2_5_omni_thinker"]
    found = resolve({"model_type": "qwen2_5_omni", "thinker_config": {**thinker, "model_type": "qwen2_5_omni_thinker"}})
    assert found.spec == resolve(thinker).spec
    assert any("its thinker alone" in said for said in found.assumptions)


def test_the_headline_adapts_by_name_what_peft_takes_by_name_alone() -> None:
    found = fit("qwen3-omni-30b-a3b", "80GB", task="qlora")
    assert {row.verdict for row in found.rows} <= {"fits", "tight", "does not fit"}
    assert any("LoRA: rank 16 on q_proj, k_proj, v_proj, o_proj" in said for said in found.assumptions)
    assert any("with what sees images and hears in memory" in said for said in found.assumptions)
