"""`willitfit bundle DIR`: a static folder that answers without a server, and within it the npm package that does."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import NamedTuple

import estimator
from estimator.contract.version import DATA_VERSION, SOFTWARE_VERSION
from estimator.facts.catalogue import folder

from .packages import LIBRARY, NODE, PYODIDE, Missing, NoSnapshot, default_cache, node, pyodide, python_packages
from .typescript import declarations

HERE = Path(__file__).parent
SERVICE = HERE.parent
NAME = "willitfit"
"""Of the npm package."""
RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
ENGINE = ("index.mjs", "worker.mjs", "runtime.mjs", "index.d.mts")
MAKER = "make.mjs"
SOURCE = 1000
"""Characters from which on a line of an error is a library's source."""
KEPT = (".py", ".yaml", ".html", ".typed")
"""Files of the estimator that a snapshot is taken with."""
LICENCES = {
    "willitfit": "Apache-2.0",
    "Pyodide": "MPL-2.0, https://github.com/pyodide/pyodide",
    "CPython": "PSF-2.0",
    "pydantic, pydantic-core, annotated-types, typing-inspection, PyYAML": "MIT",
    "typing-extensions": "PSF-2.0",
    "Jinja2, MarkupSafe": "BSD-3-Clause",
}


class Made(NamedTuple):
    """A bundle: where it is, and the bytes of its files."""

    folder: Path
    bytes: int


def bundle(directory: Path, cache: Path | None = None) -> Made:
    """Make the bundle in a folder that is not there, is empty, or has an older one. Raises `Missing`."""
    _check(directory)
    command, runtime, packages = node(), pyodide(cache or default_cache()), python_packages(cache or default_cache())
    with TemporaryDirectory() as work:
        site, made = Path(work) / "site", Path(work) / "made"
        installed(site, packages)
        engine = made / "engine"
        engine.mkdir(parents=True)
        _assemble(engine, runtime, site)
        _static(made)
        _snapshot(command, engine, site, made)
        (engine / MAKER).unlink()
        (made / "sw.js").write_text(_worker(made), encoding="utf-8")
        try:
            if directory.exists():
                shutil.rmtree(directory)
            shutil.copytree(made, directory)
        except OSError as error:
            raise Missing(f"{directory} cannot be written: {error.strerror or error}") from None
    return Made(directory, sum(path.stat().st_size for path in _files(directory)))


def installed(site: Path, packages: Path) -> None:
    """The estimator, its service and the specs as a wheel installs them, with what they import."""

    def others(_: str, names: list[str]) -> list[str]:
        return [name for name in names if name == "__pycache__" or name.endswith("linux-gnu.so")]

    def sources(where: str, names: list[str]) -> list[str]:
        return [name for name in names if not (Path(where, name).is_dir() or name.endswith(KEPT)) or name == "__pycache__"]

    shutil.copytree(packages, site, ignore=others)
    package = Path(str(estimator.__file__)).parent
    shutil.copytree(package, site / "estimator", ignore=sources)
    shutil.copytree(SERVICE, site / "estimator" / "api", ignore=sources, dirs_exist_ok=True)
    shutil.copytree(folder("model_specs"), site / "estimator" / "model_specs", ignore=sources, dirs_exist_ok=True)


def _check(directory: Path) -> None:
    """Nothing of anyone else's is overwritten."""
    if directory.exists() and not directory.is_dir():
        raise Missing(f"{directory} is a file: name a folder")
    if directory.is_dir() and any(directory.iterdir()) and not _is_ours(directory / "engine" / "package.json"):
        raise Missing(f"{directory} has other files in it: name a folder that is not there, is empty, or has a bundle")


def _is_ours(package: Path) -> bool:
    try:
        content = json.loads(package.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("name") == NAME


def _assemble(engine: Path, runtime: Path, site: Path) -> None:
    """The npm package but for its memory."""
    for name in RUNTIME:
        shutil.copyfile(runtime / name, engine / name)
    for name in (*ENGINE, MAKER):
        shutil.copyfile(HERE / "engine" / name, engine / name)
    shutil.copyfile(site / LIBRARY, engine / "pydantic_core.wasm")
    if (licence := _licence()) is not None:
        (engine / "LICENSE").write_text(licence, encoding="utf-8")
    (engine / "types.d.mts").write_text(declarations(), encoding="utf-8")
    (engine / "README.md").write_text(_readme(), encoding="utf-8")
    (engine / "package.json").write_text(json.dumps(_package(), indent=2) + "\n", encoding="utf-8")


def _licence() -> str | None:
    """The text of our licence, which a checkout has at its top, and a wheel beside it."""
    ours = Path(str(estimator.__file__)).parents[1] / "LICENSE"
    if ours.is_file():
        return ours.read_text(encoding="utf-8")
    try:
        return distribution("willitfit").read_text("licenses/LICENSE")
    except PackageNotFoundError:
        return None


def _package() -> dict[str, object]:
    return {
        "name": NAME,
        "version": SOFTWARE_VERSION,
        "description": "Does a transformer fit on a GPU, why, what would make it fit, how long, how much: in Node or a browser",
        "license": "Apache-2.0",
        "type": "module",
        "main": "./index.mjs",
        "types": "./index.d.mts",
        "exports": {".": {"types": "./index.d.mts", "default": "./index.mjs"}, "./package.json": "./package.json"},
        "engines": {"node": f">={NODE}"},
        "sideEffects": False,
        "keywords": ["gpu", "memory", "transformer", "llm", "estimate"],
    }


def _readme() -> str:
    licences = "\n".join(f"- {name}: {text}" for name, text in LICENCES.items())
    return f"""# {NAME}

Whether training or serving a transformer fits on a GPU, why, what would make it fit, how long it takes and what it costs:
worked out in Node {NODE} or later, or in a browser, without a server. Release {SOFTWARE_VERSION}, data of {DATA_VERSION}.

```js
import {{ estimate, fit }} from "{NAME}";

const answer = await estimate({{ model: "llama-2-13b", hardware: {{ gpu: "a100-80gb" }} }});
console.log(answer.fits, answer.memory.peak_bytes);
const usual = await fit({{ model: "llama-2-13b", on: "2x24GB" }});
console.log(usual.rows.map((row) => [row.way, row.verdict]));
```

A question that is refused rejects with `WillItFitError`; its message says what was wrong, where, and what to write instead.

## What is in it

Made with Pyodide {PYODIDE}. Licences:

{licences}
"""


def _static(made: Path) -> None:
    """The page's look, and its scripts."""
    for path in [*(SERVICE / "static").iterdir(), HERE / "page" / "app.mjs"]:
        (made / "static").mkdir(exist_ok=True)
        shutil.copyfile(path, made / "static" / path.name)


def _snapshot(command: str, engine: Path, site: Path, pages: Path) -> None:
    """Run Python until it knows all that it will, and keep its memory."""
    with TemporaryFile("w+", encoding="utf-8") as said:  # which node writes whole into a file, and not into a pipe
        done = subprocess.run([command, str(engine / MAKER), str(site), str(pages)], stdout=said, stderr=said)
        if done.returncode:
            said.seek(0)
            lines = [line for line in said.read().splitlines() if len(line) < SOURCE]
            raise NoSnapshot("the snapshot cannot be taken:\n" + "\n".join(lines)[-2000:])


def _worker(made: Path) -> str:
    """The service worker, with the files that it keeps; their digest says whether there are newer ones."""
    names = [str(path.relative_to(made).as_posix()) for path in _files(made) if path.suffix not in (".mts", ".json", ".md", "")]
    digest = sha256()
    for name in names:
        digest.update(name.encode() + sha256((made / name).read_bytes()).digest())
    kept = {"digest": digest.hexdigest()[:16], "files": ["./", *names]}
    return f"const BUNDLE = {json.dumps(kept)};\n{(HERE / 'page' / 'sw.js').read_text(encoding='utf-8')}"


def _files(directory: Path) -> Iterable[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())
