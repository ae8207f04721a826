"""What imports what: the calculator needs neither torch nor the service's libraries, and starts without its own modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

import estimator

HEAVY = ("torch", "transformers", "fastapi", "starlette", "jinja2", "uvicorn", "numpy", "mcp", "prometheus_client")
EVERYTHING = """
import importlib, pkgutil, sys, estimator
for module in pkgutil.walk_packages(estimator.__path__, "estimator."):
    if not module.name.startswith("estimator.verify."):
        importlib.import_module(module.name)
"""
QUESTION = "import sys; from estimator import fit; assert fit('llama-2-13b', '2x24GB').rows"


def imported(code: str) -> list[str]:
    """Which of the heavy libraries a fresh interpreter has loaded after running some code."""
    report = f"\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code + report], capture_output=True, text=True, check=True)
    return list(eval(run.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("code", [EVERYTHING, QUESTION], ids=["every module", "a question"])
def test_the_calculator_imports_nothing_heavy(code: str) -> None:
    assert imported(code) == []


@pytest.mark.slow
def test_the_headline_of_a_decoder_loads_neither_megatron_nor_hybrids() -> None:
    left_out = (
        "estimator.megatron",
        "estimator.serving.llamacpp.hybrids",
        "estimator.families.parts",
        "estimator.families.jamba",
    )
    code = f"{QUESTION}\nfrom estimator.families import jamba\nprint([name for name in {left_out!r} if name in sys.modules])"
    before = code.replace("from estimator.families import jamba\n", "")
    asked = [subprocess.run([sys.executable, "-c", each], capture_output=True, text=True, check=True) for each in (before, code)]
    assert [one.stdout.strip() for one in asked] == ["[]", "['estimator.families.jamba']"]


def test_a_command_that_names_no_model_loads_neither_models_nor_hardware() -> None:
    """The help is there at once: what reads questions by their names is loaded where there is one."""
    loaded = "[name for name in sys.modules if name.startswith(('estimator.families', 'estimator.specs', 'estimator.hardware'))]"
    code = f"import sys; from estimator.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\nprint({loaded})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_the_test_can_fail() -> None:
    assert imported("import sys, jinja2") == ["jinja2"]


@pytest.mark.slow
def test_exported_members_exist_whatever_was_imported_before() -> None:
    code = EVERYTHING + "\nfor name in estimator.__all__: assert getattr(estimator, name).__doc__, name\n"
    code += "assert callable(estimator.estimate) and callable(estimator.fit)"
    assert imported(code) == []
    for name in estimator.__all__:
        assert name == "__version__" or name in dir(estimator) or hasattr(estimator, name)


def test_an_unknown_member_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'estimat'"):
        estimator.estimat  # noqa: B018


def test_serving_without_its_libraries_says_what_to_install() -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from estimator.cli.main import main; assert main(['serve']) == 2"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'willitfit[service]'" in run.stderr
