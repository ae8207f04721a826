"""The commands that the documents show, taken apart so that tests can run them without a shell or a server."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```(sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HOST = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class Command:
    """One simple command of a line: its words, what is piped into it, the file that its output goes to, and in a `console` block
    what is shown below it."""

    words: list[str]
    stdin: str = ""
    to: str = ""
    shown: str = ""
    place: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {shlex.join(self.words)}"


def shown_commands(path: Path) -> Iterator[Command]:
    """Every command of a page's `sh` and `console` blocks."""
    for kind, text in BLOCK.findall(path.read_text(encoding="utf-8")):
        lines = text.splitlines() if kind == "sh" else [line for line in re.split(r"^\$ ", text, flags=re.MULTILINE) if line]
        for line in lines:
            asked, _, shown = line.partition("\n")
            yield from _simple(asked, shown, path.name)


def _simple(line: str, shown: str, place: str) -> Iterator[Command]:
    """The simple commands of a line, in order. Of pipes those from `echo` and `head -c N /dev/zero` are known."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|>")
    lexer.whitespace_split = True
    words: list[str] = []
    stdin, to = "", ""
    for word in [*lexer, ";"]:
        if word == "|":
            assert words[0] in ("echo", "head"), f"{place}: who writes into the pipe? {line}"
            stdin, words = words[1] + "\n" if words[0] == "echo" else "\0" * int(words[2]), []
        elif word in (";", "&&"):
            if words:
                yield Command(words, stdin, to, shown, place)
            words, stdin, to = [], "", ""
        elif word == ">" or to == ">":
            to = word
        else:
            words.append(word)


def request(command: Command) -> tuple[str, str, str | None]:
    """What a curl command asks: method, address without the host, body."""
    method, address, body = "", "", None
    words = iter(command.words[1:])
    for word in words:
        if word == "-X":
            method = next(words)
        elif word in ("-d", "--data-binary"):
            body = next(words)
        else:
            assert word.startswith(HOST), f"{command}: {word}?"
            address = word.removeprefix(HOST) or "/"
    if body is not None and body.startswith("@"):
        body = command.stdin if body == "@-" else Path(body[1:]).read_text(encoding="utf-8")
    return method or ("GET" if body is None else "POST"), address, body
