"""Which cases a run asks that asks a share of them: others after each change of the estimator's code."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path


def turn() -> int:
    """A number that is another one after each change of the estimator's code."""
    code = sha256()
    for path in sorted((Path(__file__).parents[1] / "estimator").rglob("*.py")):
        code.update(path.read_bytes())
    return int.from_bytes(code.digest()[:4])
