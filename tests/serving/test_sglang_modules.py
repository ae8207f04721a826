"""Models that SGLang runs as transformers' modules: what each rank holds, against transformers' classes and their plan."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import pytest
import torch
import transformers

from estimator import InvalidJob, NotModelled
from estimator.serving.sglang.backend import held_by_sglang
from estimator.serving.sglang.ranks import Ranks
from estimator.specs.resolve import resolve
from estimator.verify.model import config
from tests.serving.questions import asked

NAMES = (
    *("pythia-410m", "minitron-4b", "nanochat-d20", "smollm3-3b", "helium-1-preview-2b", "seed-oss-36b", "cwm-32b"),
    *("paligemma2-3b", "internvl3-1b", "smolvlm2-2.2b", "llava-v1.6-mistral-7b"),
    *("dots.llm1", "solar-open-100b", "vaultgemma-1b"),
)


def _modules(name: str, tensor: int) -> int:
    """Numbers of a rank: each linear layer divided as the plan of transformers says, embeddings in multiples of 64 rows."""
    made: Any = config(resolve(name).spec, "eager")
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(made)
    plan = {pattern.removeprefix("model."): style for pattern, style in model.tp_plan.items()}
    text = made.get_text_config()
    rows = -(-text.vocab_size // 64) * 64 // tensor * text.hidden_size
    seen, total = {id(model.get_input_embeddings().weight)}, rows if text.tie_word_embeddings else 2 * rows
    for path, module in model.named_modules():
        style = next((style for pattern, style in plan.items() if re.match(pattern, path)), "replicate")
        for kind, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            linear = isinstance(module, torch.nn.Linear)
            whole = not (linear or parameter.ndim == 3) or style == "replicate" or (style == "rowwise" and kind == "bias")
            total += prod(parameter.shape) // (1 if whole else tensor)
    return total


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tensor", [1, 2])
def test_ranks_hold_what_the_plan_of_transformers_gives_them(name: str, tensor: int) -> None:
    assert sum(each.numel * each.times for each in held_by_sglang(resolve(name).spec, Ranks(tensor))) == _modules(name, tensor)


def test_what_it_does_not_run_so() -> None:
    with pytest.raises(NotModelled, match="no attention of a server's"):
        asked("sglang", "falcon-7b")
    with pytest.raises(NotModelled, match=r"as SGLang 0\.5\.23 runs them"):
        asked("sglang", "pythia-410m", engine_version="0.5.9")
    with pytest.raises(InvalidJob, match="4 key heads of transformers' modules evenly"):
        asked("sglang", "smollm3-3b", 8)


def test_prompts_with_images_are_not_cut() -> None:
    """Its pass is as long as the prompts of a batch may be, or one prompt."""
    assert any("passes of 16384 tokens" in one for one in asked("sglang", "paligemma2-3b", context=4096).assumptions)
    assert any("passes of 8192 tokens" in one for one in asked("sglang", "pythia-410m", context=2048).assumptions)
