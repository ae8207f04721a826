"""How names are compared: spaces, dashes and capitals do not matter; what tells two of them apart does."""

from __future__ import annotations

import re
from unicodedata import normalize

LONGEST = 80
"""Characters of a name that an error repeats, and that are compared for nearness."""
MOST = 200
"""Characters of the longest text that can be a name at all."""
_SIGNS = str.maketrans({"×": "x", "✕": "x", "+": " plus ", "®": " ", "™": " ", "©": " "})
_BETWEEN = re.compile(r"[\s\-_,;:/()\[\]'\"\u2010-\u2015]+|(?<![0-9])\.|\.(?![0-9])")
"""What separates words. A dot within a number is part of it."""


def words(text: str) -> list[str]:
    """The words of a name, in lower case: "Llama-3.1 8B" has llama, 3.1 and 8b. What is no separator stays: 💥 is a word.

    A text that is too long to be a name has none.
    """
    plain = text.lower() if len(text) <= MOST else ""
    if "+" in plain or not plain.isascii():
        plain = normalize("NFKC", plain.translate(_SIGNS)).lower()
    return [word for word in _BETWEEN.split(plain) if word] if len(plain) <= 2 * MOST else []


def joined(parts: list[str]) -> str:
    """Words as one, as they are compared: together, but for two numbers, of which 2 and 7 are not 27."""
    found = ""
    for part in parts:
        found += f"-{part}" if found[-1:].isdigit() and part[0].isdigit() else part
    return found


def folded(name: str) -> str:
    """A name as it is compared: empty where it has no words."""
    return joined(words(name))


def sought(search: str) -> list[str]:
    """The words of a search, as they are compared; an empty one where no name can have it."""
    return [folded(word) for word in search.split()] if len(search) <= MOST else [""]


def shown(name: str) -> str:
    """A name as an error repeats it."""
    return repr(name if len(name) <= LONGEST else f"{name[:LONGEST]}…")
