"""Shell scripts as the commands that they hold: read, never run. Plain variables are put in, and whole numbers reckoned with.

What only a shell could know (the output of a command, an argument of the script without a default) stays as it is written.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from estimator.contract.errors import Unreadable

MOST_COMMANDS, MOST_WORDS, MOST_EXPANDED, MOST_SCRIPT = 2_000, 20_000, 1 << 18, 1 << 16
"""Bounds of what a script is expanded to."""
MOST_WITHIN = 3
"""How deep a variable's default may have others within it."""
MOST_GIVEN = 100_000
"""Variables that all commands together are given: each has every one that was set before it."""
MOST_DIGITS = 18
"""Digits of a number that is reckoned with."""
_NAME = r"[A-Za-z_]\w*"
_ASSIGNED = re.compile(rf"({_NAME})\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    rf"\$(?:(?P<plain>{_NAME}|\d)|\{{(?P<braced>{_NAME}|\d)(?:\[[@*]\])?(?::?[-=](?P<default>(?:[^{{}}]|\$\{{{_NAME}\}})*))?\}}"
    r"|\(\((?P<sum>(?:[^()]|\([^()]{0,200}\)){0,200})\)\)|\(expr (?P<expr>[^()]{0,200})\))"
)
_NAMED = re.compile(rf"(?<![\w$]){_NAME}")
_SUM = re.compile(r"[\d\s+*/%()-]{1,400}")
"""What may be reckoned with: whole numbers, the four operations, what is left of a division, parentheses."""
_LEXEME = re.compile(
    r"(?P<space>[ \t]+|\\\n)|(?P<newline>\n)|(?P<operator>&&|\|\||;;|<<-?|[0-9]?>>?&?[0-9-]?|[;&|()<])"
    r"|(?P<single>'[^']*')|(?P<double>\"(?:[^\"\\]|\\.)*\")|(?P<dollar>\$(?:\w+|[@#*?$!])|\$\(\((?:[^()]|\([^()]{0,200}\)){0,200}\)\)|\$\((?:[^()]|\([^()]*\))*\)|\$\{(?:[^{}\n]|\$\{(?:[^{}\n]|\$\{[^{}\n]*\})*\})*\})"
    r"|(?P<escaped>\\.)|(?P<plain>[^\s'\"\\;&|()<>$]+|.)",
    re.DOTALL,
)
_RUNS = re.compile(r"\$\([^(]")
"""What begins a command whose output stands in its place; `$((` begins a sum."""
_QUOTED = re.compile(r"\\(?:([\"\\$`])|\n)")
_ARRAY = re.compile(rf'"\$\{{{_NAME}\[@\]\}}"')
_HEREDOC = re.compile(r"[ \t]*(['\"]?)(\w+)\1([^\n]*)\n")
_SBATCH = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
KEYWORDS = frozenset(
    (
        "if",
        "then",
        "else",
        "elif",
        "do",
        "while",
        "until",
        "for",
        "{",
        "}",
        "!",
        "time",
        "exec",
        "export",
        "local",
        "fi",
        "done",
        "esac",
    )
)


@dataclass(slots=True)
class Word:
    """A word of a command, the line that it stands in, and the characters of the script that it was written in."""

    text: str
    line: int
    start: int = 0
    end: int = 0
    alone: bool = True
    """Whether those characters stand for this word only, and not for several that a variable has."""


@dataclass(slots=True)
class Command:
    """One command: the variables that it is given, and its words."""

    words: list[Word] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """The words alone."""
        return [word.text for word in self.words]


class _Script:
    """A script that is gone through once."""

    def __init__(self) -> None:
        self.variables: dict[str, list[str]] = {}
        self.exported: dict[str, str] = {}
        self.done: list[Command] = []
        self.expanded = self.given = 0

    def expand(self, text: str) -> str:
        """A text with the variables that are known in their places."""

        def value(match: re.Match[str]) -> str:
            if self.expanded > MOST_EXPANDED:
                return match[0]
            if (formula := match["sum"] or match["expr"]) is not None:
                formula = _VARIABLE.sub(value, formula)
                if match["sum"] is not None:
                    formula = _NAMED.sub(self._number, formula)
                return _reckoned(formula) or match[0]
            name = match["plain"] or match["braced"]
            known = self.variables.get(name)
            if known is not None:
                self.expanded += sum(map(len, known)) + len(known)
                return " ".join(known)
            return match["default"].replace('"', "") if match["default"] is not None else match[0]

        for _ in range(MOST_WITHIN if ":-" in text else 1):
            before, text = text, _VARIABLE.sub(value, text) if "$" in text else text
            if text == before:
                break
        return text

    def _number(self, name: re.Match[str]) -> str:
        """The whole number that a variable of a sum has; its name where it has none."""
        known = self.variables.get(name[0], [])
        return known[0] if len(known) == 1 and len(known[0]) <= MOST_DIGITS and known[0].isdigit() else name[0]

    def finish(self, words: list[Word]) -> None:
        """End a command: assignments alone change the script's variables, before a command they are its own."""
        start, assigned = 0, dict[str, str]()
        while start < len(words) and words[start].text in KEYWORDS:
            start += 1
        while start < len(words) and (match := _ASSIGNED.fullmatch(words[start].text)):
            assigned[match[1]] = match[2]
            start += 1
        words = words[start : start + MOST_WORDS]
        if not words:
            self.variables |= {name: [value] for name, value in assigned.items()}
        self.exported |= {} if words else assigned
        if words and len(self.done) < MOST_COMMANDS:
            self.given += len(self.exported) + len(assigned)
            if self.given > MOST_GIVEN:
                raise Unreadable(f"gives its commands more than {MOST_GIVEN:,} variables, as no script needs", "script")
            self.done.append(Command(words, self.exported | assigned))


def _reckoned(formula: str) -> str | None:
    """What a formula of whole numbers comes to; nothing for any other, and for one whose numbers grow out of use."""
    formula = formula.replace("\\*", "*").strip()
    if not _SUM.fullmatch(formula) or "**" in formula or "//" in formula:
        return None
    try:
        return str(_value(ast.parse(formula, mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(part: ast.expr) -> int:
    """A formula's value. Raises `ValueError` for what is none of a shell's, and beyond `MOST_DIGITS`."""
    if isinstance(part, ast.Constant) and isinstance(part.value, int):
        found = part.value
    elif isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub | ast.UAdd):
        found = _value(part.operand) * (-1 if isinstance(part.op, ast.USub) else 1)
    elif isinstance(part, ast.BinOp) and type(part.op) in _OPERATIONS:
        found = _OPERATIONS[type(part.op)](_value(part.left), _value(part.right))
    else:
        raise ValueError
    if abs(found) >= 10**MOST_DIGITS:
        raise ValueError
    return found


def _divided(left: int, right: int) -> int:
    """A quotient, towards zero as a shell has it."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divided,
    ast.Mod: lambda left, right: left - right * _divided(left, right),
}


def commands(text: str) -> list[Command]:
    """The commands of a script, in their order. Raises `InvalidJob` for one of more than `MOST_SCRIPT` characters."""
    if len(text) > MOST_SCRIPT:
        raise Unreadable(f"has more than {MOST_SCRIPT:,} characters, as no command needs", "script")
    script = _Script()
    _gone_through(script, text, 1)
    return script.done


def _gone_through(script: _Script, text: str, line: int, outer: bool = True) -> None:
    """Take a script's commands. Within `$(…)` (not `outer`) words have no place of their own in the script."""
    words: list[Word] = []
    parts: list[tuple[str, bool]] = []
    place, array, begun, first = 0, None, line, 0
    redirected = False
    while place < len(text):
        if text[place] == "#" and not parts:
            place = end if (end := text.find("\n", place)) >= 0 else len(text)
            continue
        match = _LEXEME.match(text, place)
        assert match is not None
        kind, lexeme, start, place = match.lastgroup, match[0], place, match.end()
        if kind in ("space", "newline", "operator"):
            if lexeme == "(" and parts and array is None and parts[-1][0].endswith("="):
                array, words, parts = "".join(part for part, _ in parts).rstrip("+="), [], []
            elif parts:
                words += [] if redirected else _split(parts, begun, first, start, outer)
                parts, redirected = [], False
            if lexeme == ")" and array is not None:
                script.variables[array] = [word.text for word in words]
                array, words = None, []
            elif lexeme.startswith("<<") and (document := _HEREDOC.match(text, place)):
                body, place = _document(text, document)
                if words and words[0].text == "read":
                    script.variables[words[-1].text] = script.expand(body.replace("\\\n", " ")).split()[:MOST_WORDS]
                line += body.count("\n") + 1
                words = []
            elif array is None and (kind == "newline" or lexeme in ("&&", "||", ";", ";;", "&", "|", "(", ")")):
                script.finish(words)
                words = []
            redirected = redirected if kind == "space" else kind == "operator" and lexeme.strip("0123456789") in (">", ">>", "<")
        else:
            if not parts:
                begun, first = line, start
            if outer and _RUNS.match(lexeme):
                _gone_through(script, lexeme[2:-1], line, outer=False)
            parts.append(_part(script, kind, lexeme))
        line += lexeme.count("\n")
    if parts and not redirected:
        words += _split(parts, begun, first, place, outer)
    script.finish(words)


def _part(script: _Script, kind: str | None, lexeme: str) -> tuple[str, bool]:
    """A piece of a word, with its variables put in, and whether what it became may be several words."""
    if kind == "single":
        return lexeme[1:-1], False
    if kind == "double":
        return script.expand(_QUOTED.sub(lambda match: match[1] or "", lexeme[1:-1])), bool(_ARRAY.fullmatch(lexeme))
    if kind == "escaped":
        return lexeme[1:], False
    found = script.expand(lexeme) if kind == "dollar" else lexeme
    return found, found != lexeme


def _split(parts: list[tuple[str, bool]], line: int, start: int, end: int, outer: bool) -> list[Word]:
    """A word, or the several that a variable without quotation marks stands for."""
    whole = "".join(text for text, _ in parts)
    texts = whole.split() if len(parts) == 1 and parts[0][1] else [whole]
    if not outer:
        return [Word(text, line, alone=False) for text in texts]
    return [Word(text, line, start, end, len(texts) == 1) for text in texts]


def _document(text: str, opened: re.Match[str]) -> tuple[str, int]:
    """A here-document's body, and where it ends."""
    end = re.compile(rf"^[ \t]*{opened[2]}[ \t]*$", re.MULTILINE).search(text, opened.end())
    return (text[opened.end() :], len(text)) if end is None else (text[opened.end() : end.start()], end.end())


def sbatch(text: str) -> dict[str, str]:
    """Slurm's options in the header of a script, by their long names."""
    found: dict[str, str] = {}
    for line in _SBATCH.findall(text):
        for option in re.findall(r"(--?[\w-]+)(?:[= ]\s*([^\s-]\S*))?", line):
            found[{"-N": "--nodes", "-G": "--gpus", "-n": "--ntasks"}.get(option[0], option[0])] = option[1]
    return found
