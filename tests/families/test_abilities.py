"""What a family can do is said on its spec: no other module asks for a model type by its name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import estimator
from estimator.families import FAMILIES, having, spec_class
from estimator.families.abilities import Abilities
from estimator.families.llama import LlamaSpec

ROOT = Path(estimator.__file__).parent
ALLOWED = {
    "exchange/documents.py": (2, "any model, for a job that is read without one"),
    "exchange/frameworks/llm_foundry.py": (4, "models by the names that LLM Foundry has for its own"),
    "exchange/frameworks/torchtune.py": (1, "a word in the names of torchtune's modules"),
    "exchange/megatron_model.py": (8, "which architecture Megatron-LM's arguments describe: a table of names"),
    "planner/cases.py": (1, "any model, for settings that are read without one"),
    "planner/headline.py": (1, "any model, for settings that are read without one"),
    "quantization/gguf_mixtures.py": (4, "rules of llama.cpp by its own names of architectures"),
    "serving/drafts.py": (1, "an EAGLE head is a layer of Llama's kind"),
    "serving/llamacpp/mixers.py": (1, "graphs that are called as the one family that has them"),
    "serving/llamacpp/special.py": (3, "graphs that are called as the one family that has them"),
    "serving/sglang/speculation.py": (1, "a default that SGLang takes by its own name of the architecture"),
    "serving/tensorrt_llm/kernels.py": (1, "the one class of TensorRT-LLM's that norms within an all-reduce"),
    "specs/generic.py": (2, "what a size alone is taken for"),
    "verify/adapters.py": (1, "asks transformers' own model"),
    "verify/nemotron_nas.py": (2, "the name that its config has, which transformers is told"),
    "weights/gguf_config.py": (61, "which type a GGUF file's architecture is: a table of names"),
    "weights/gguf_encoders.py": (16, "which type a GGUF file's architecture is: a table of names"),
    "weights/gguf_layered.py": (14, "which type a GGUF file's architecture is: a table of names"),
    "weights/gguf_states.py": (3, "which type a GGUF file's architecture is: a table of names"),
}
"""How many names stand in a module, and why they may. The numbers fall, and do not rise."""
NAMED = re.compile(f"""["'](?:{"|".join(map(re.escape, FAMILIES))})["']""")
"""What a module without any such name is not parsed for."""


def _names(path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    if not NAMED.search(text):
        return 0
    tree = ast.parse(text)
    return sum(
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in FAMILIES for node in ast.walk(tree)
    )


def test_no_module_outside_the_families_names_a_model_type() -> None:
    outside = [path for path in ROOT.rglob("*.py") if ROOT / "families" not in path.parents]
    found = Counter({path.relative_to(ROOT).as_posix(): _names(path) for path in outside})
    assert +found == Counter({path: count for path, (count, _) in ALLOWED.items()}), "say it on the spec (families/abilities.py)"


def test_a_name_would_be_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('KNOWN = ("llama", "t5")\n"""Llama and t5."""\n', encoding="utf-8")
    assert _names(module) == 2


def test_a_family_does_not_inherit_what_was_judged_of_another() -> None:
    class TensorGroup(LlamaSpec):
        """A model of the same layers, of which nothing was judged."""

    assert LlamaSpec.can.prompts
    assert TensorGroup.can == Abilities()


def test_every_ability_is_one_of_some_family() -> None:
    nothing = Abilities()
    for ability in Abilities.__dataclass_fields__:
        assert having(lambda kind, name=ability: getattr(kind.can, name) != getattr(nothing, name)), ability  # type: ignore[misc]


def test_what_cannot_be_run_can_do_nothing_else() -> None:
    """But lie in a GGUF file, which llama.cpp runs."""
    for kind in FAMILIES:
        spec = spec_class(kind)
        assert spec.runs or replace(spec.can, gguf=False, graph=None, routing=Abilities().routing) == Abilities(), kind
