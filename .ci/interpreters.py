"""Recorded cases on other interpreters: all must say what torch said, and the same in every answer.

`python .ci/interpreters.py [--share] [TREE]`, by a Python that has pip, whose own answers are the tests' to hold. Every case is
asked; with `--share` of those that are not in `WHOLE` one in three, others after each change of the estimator's code. From
Debian's suites come CPythons as they are in their packages, unpacked into a folder and run from there; from npm comes
Pyodide, CPython in WebAssembly. All that was fetched stays in ${XDG_CACHE_HOME:-~/.cache}/willitfit-ci. Needs mmdebstrap, node
and npm, which are installed where one is root on Debian. WILLITFIT_INTERPRETERS=skip leaves other interpreters out, and says so.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from api.browser.packages import PYTHON, TAG, Missing  # noqa: E402
from api.browser.packages import pyodide as fetched  # noqa: E402

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "willitfit-ci"
DEBIAN = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
SUITES = {"3.13": "trixie", "3.14": "forky", "3.15": "forky"}
"""Where Debian has which CPython."""
WHOLE = {"3.13", "3.14"}
"""Which are asked every case in any case."""
LINUX = f"manylinux2014_{platform.machine()}"
TOOLS = {"mmdebstrap": "mmdebstrap", "node": "nodejs", "npm": "npm"}
"""Commands, and Debian's packages that have them."""
MERGED = 'mkdir -p "$1/usr/lib" "$1/usr/lib64" && ln -s usr/lib "$1/lib" && ln -s usr/lib64 "$1/lib64"'

SHARE = "--share"
LEAVE_OUT = "\nto leave other interpreters out: WILLITFIT_INTERPRETERS=skip"
Command = list[str | Path]
Asked = tuple[Command, dict[str, str], bool]
"""A command, the environment variables that it needs, and whether a share is enough."""


def run(*command: str | Path) -> None:
    """A command that must succeed, and is heard only if it does not."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        what = " ".join(map(str, command))
        sys.exit(f"{done.stdout}failed: {what}{LEAVE_OUT}")


def install_tools() -> None:
    """Install the commands that are missing."""
    missing = [package for tool, package in TOOLS.items() if not shutil.which(tool)]
    if missing and (os.getuid() or not shutil.which("apt-get")):
        sys.exit(f"needed and not installed: {', '.join(missing)}{LEAVE_OUT}")
    if missing:
        run("apt-get", "-qq", "update")
        run("apt-get", "-qq", "install", "-y", *missing)


def kept(name: str, fetch: Callable[[Path], None]) -> Path:
    """A folder of the cache, fetched if it is not there."""
    folder = CACHE / name
    if not folder.exists():
        with TemporaryDirectory(dir=CACHE) as part:
            fetch(Path(part) / name)
            (Path(part) / name).rename(folder)
    return folder


def packages(version: str, tag: str) -> Path:
    """The dependencies for another interpreter. Of PyYAML the half in Python is enough."""

    def fetch(folder: Path) -> None:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--target", folder)
        run(*pip, "--python-version", version, "--platform", tag, "pydantic>=2.9")
        run(*pip, "--python-version", "3.14", "--platform", LINUX, "--no-deps", "pyyaml>=6")

    return kept(f"packages-{version}-{tag}", fetch)


def cpython(version: str, suite: str) -> Asked:
    """Debian's CPython, with the libraries that it was linked to."""

    def fetch(folder: Path) -> None:
        # mirrors of suites in the making may be older than they say they should be
        options = ["--variant=extract", '--aptopt=Acquire::Check-Valid-Until "false"', f"--setup-hook={MERGED}"]
        run("mmdebstrap", *options, f"--include=python{version}", suite, folder, DEBIAN)

    usr = kept(f"cpython-{version}-{suite}", fetch) / "usr"
    loader, libraries = next(usr.glob("lib*/ld-linux-*.so.*")), next(usr.glob("lib/*-linux-gnu"))
    command: Command = [loader, "--library-path", libraries, usr / "bin" / f"python{version}", "-m", "tests.records"]
    return command, {"PYTHONHOME": str(usr), "PYTHONPATH": str(packages(version, LINUX))}, version not in WHOLE


def pyodide(tree: Path) -> Asked:
    """CPython in WebAssembly."""
    try:
        at = fetched(CACHE)
    except Missing as missing:
        sys.exit(f"{missing}{LEAVE_OUT}")
    return ["node", HERE / "pyodide.mjs", at, tree, packages(PYTHON, TAG)], {}, True


def main() -> None:
    """Ask each interpreter, as many at once as there are cores."""
    if os.environ.get("WILLITFIT_INTERPRETERS") == "skip":
        print("not tried on other interpreters: WILLITFIT_INTERPRETERS=skip")
        return
    shares = SHARE in sys.argv[1:]
    tree = Path(next((word for word in sys.argv[1:] if word != SHARE), HERE.parent)).resolve()
    install_tools()
    CACHE.mkdir(parents=True, exist_ok=True)
    asked = [pyodide(tree), *(cpython(*one) for one in SUITES.items())]

    def ask(one: Asked) -> subprocess.CompletedProcess[str]:
        command, variables, enough = one
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
        words = [SHARE] if shares and enough else []
        return subprocess.run(
            [*command, *words], cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(ask, asked))
    print(*(answer.stdout for answer in answers), sep="", end="")
    if any(answer.returncode for answer in answers):
        sys.exit("an interpreter does not say what was recorded")
    said = {(shares and enough, answer.stdout.splitlines()[-1]) for (*_, enough), answer in zip(asked, answers, strict=True)}
    if len(said) > len({part for part, _ in said}):
        sys.exit("interpreters differ from each other in what was not recorded")


if __name__ == "__main__":
    main()
