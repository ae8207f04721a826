"""What a bundle is made of, from the packages' registries: Pyodide from npm, and Python packages from where pip looks.

All is kept in a folder, and fetched once. Of PyYAML and MarkupSafe, which have no wheel for WebAssembly, the halves in Python
are enough.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

PYODIDE = "314.0.7"
"""CPython as WebAssembly: its version on npm. The number before the first dot says which CPython: 3.14."""
PYTHON = "3.14"
TAG = "pyemscripten_2026_0_wasm32"
"""The platform of the wheels that it takes (PEP 783)."""
NODE = 18
"""The least major version of Node, which takes the snapshot."""
COMPILED = ("pydantic>=2.9",)
PURE = ("pyyaml>=6", "jinja2>=3.1", "markupsafe")
LIBRARY = "pydantic_core/_pydantic_core.cpython-314-wasm32-emscripten.so"
"""The one library that is not Python, within its package."""


class Missing(Exception):
    """Something that a bundle is made with cannot be had; the message says what, and what to do."""


class NoSnapshot(Missing):
    """All is there, and the estimator does not run in WebAssembly; the message has what Python said."""


def default_cache() -> Path:
    """Where fetched packages are kept unless a folder is named."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "willitfit" / "browser"


def node() -> str:
    """The command that runs JavaScript. Raises `Missing`."""
    found = _command("node")
    version = _run([found, "--version"], "node").strip()
    if int(version.lstrip("v").partition(".")[0]) < NODE:
        raise Missing(f"Node {NODE} or later is needed to take the snapshot; {found} is {version}")
    return found


def pyodide(cache: Path) -> Path:
    """The folder of Pyodide's npm package. Raises `Missing`."""

    def fetch(folder: Path) -> None:
        what = f"npm cannot fetch pyodide {PYODIDE}"
        _run([_command("npm"), "install", "--silent", "--no-audit", "--prefix", str(folder), f"pyodide@{PYODIDE}"], what)

    return _kept(cache, f"pyodide-{PYODIDE}", fetch) / "node_modules" / "pyodide"


def python_packages(cache: Path) -> Path:
    """A folder with the Python packages that the estimator and its pages import, for WebAssembly. Raises `Missing`."""

    def fetch(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--python-version", PYTHON]
        pip += ["--target", str(folder)]
        what = "pip cannot fetch the packages for WebAssembly"
        _run([*pip, "--platform", TAG, *COMPILED], what)
        _run([*pip, "--platform", "manylinux2014_x86_64", "--no-deps", *PURE], what)

    return _kept(cache, f"python-{PYTHON}-{TAG}", fetch)


def _kept(cache: Path, name: str, fetch: Callable[[Path], None]) -> Path:
    """A folder of the cache, fetched if it is not there; nothing is left of one that could not be."""
    folder = cache / name
    if not folder.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Missing(f"{cache} cannot be made: {error.strerror}") from None
        with TemporaryDirectory(dir=cache) as part:
            fetch(Path(part) / name)
            (Path(part) / name).rename(folder)
    return folder


def _command(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Missing(f"no command {name}: install Node.js {NODE} or later, which brings node and npm")
    return found


def _run(command: Sequence[str], what: str) -> str:
    """What a command prints. Raises `Missing` with `what` and the command's last words, where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise Missing(f"{what}: {' '.join(line.strip()[:300] for line in said) or f'it ended with {done.returncode}'}")
    return done.stdout
