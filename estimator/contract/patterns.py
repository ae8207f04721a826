"""Patterns of names, as adapters' targets and `--override-tensor` take them: regular expressions that need one look at a name.

A pattern comes from a stranger. It is turned into states that are all followed at once, so that a name is searched in one pass
over it, whatever the pattern is. Understood are characters, `.`, `\\d`, `\\w`, `[a-c]`, `(a|b)`, `*`, `+`, `?`, `{2,3}`, `^`
and `$`; where a whole name must match, also `(?!a)` and `(?=a)` at the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

LONGEST, DEEPEST, STATES = 500, 8, 20_000
"""Characters of a pattern, brackets within brackets, and states that it may come to."""
Matches = Callable[[str], bool]
ESCAPED: dict[str, Matches] = {
    "d": str.isdigit,
    "w": lambda c: c.isalnum() or c == "_",
    "s": str.isspace,
}
START, END = "\x02", "\x03"
"""Stand before and after a name, for `^` and `$`."""


class Pattern:
    """States of a pattern; each has what it takes and where that leads (or nothing, and leads on at once)."""

    def __init__(self, text: str):
        if len(text) > LONGEST:
            raise ValueError(f"a pattern of {len(text)} characters is too long: write at most {LONGEST}")
        self.steps: list[tuple[Matches | None, list[int]]] = []
        self._text, self._at, self._depth = text, 0, 0
        self._seen: dict[tuple[frozenset[int], str, bool], frozenset[int]] = {}
        self.last = self._state()
        self.first = self._either(self.last)
        if self._at < len(text):
            raise ValueError(f"it has a ) that closes nothing, at character {self._at + 1}")
        self._begin = self._reached([self.first])

    def found(self, name: str) -> bool:
        """Whether any part of a name matches."""
        states = self._begin
        for char in START + name + END:
            if self.last in states:
                return True
            states = self._then(states, char, anew=True)
        return self.last in states

    def whole(self, name: str) -> bool:
        """Whether all of a name matches."""
        states = self._from(self._begin, START)
        for char in name:
            states = self._then(states, char)
        return self.last in self._from(states, END)

    def prefix(self, name: str) -> bool:
        """Whether the name begins with what matches."""
        states = self._from(self._begin, START)
        for char in name:
            if self.last in states:
                return True
            states = self._then(states, char)
        return self.last in self._from(states, END)

    def _from(self, states: frozenset[int], mark: str) -> frozenset[int]:
        """States, and those behind `^` or `$`, which take nothing of a name, however many stand there."""
        while (more := states | self._then(states, mark)) != states:
            states = more
        return states

    def _then(self, states: frozenset[int], char: str, anew: bool = False) -> frozenset[int]:
        """The states after a character; `anew`: what matches may also begin behind it."""
        key = states, char, anew
        if key not in self._seen:
            after = self._reached([step for state in states for step in self._after(state, char)])
            self._seen[key] = after | self._begin if anew else after
        return self._seen[key]

    def _after(self, state: int, char: str) -> list[int]:
        takes, leads = self.steps[state]
        return leads if takes is not None and takes(char) else []

    def _reached(self, states: list[int]) -> frozenset[int]:
        found: set[int] = set()
        while states:
            state = states.pop()
            if state not in found:
                found.add(state)
                takes, leads = self.steps[state]
                states.extend(leads if takes is None else [])
        return frozenset(found)

    def _state(self, takes: Matches | None = None, *leads: int) -> int:
        if len(self.steps) >= STATES:
            raise ValueError("it repeats too much")
        self.steps.append((takes, list(leads)))
        return len(self.steps) - 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise ValueError("it ends too early")
        self._at += 1
        return char

    def _either(self, then: int) -> int:
        """`a|b`: the state that begins it, where `then` comes after."""
        begins = [self._sequence(then)]
        while self._peek() == "|":
            self._next()
            begins.append(self._sequence(then))
        return self._state(None, *begins)

    def _sequence(self, then: int) -> int:
        parts: list[tuple[int, int]] = []
        while self._peek() not in ("", "|", ")"):
            start = self._at
            self._repeated(self._state())  # to find where it ends; its states are never reached
            parts.append((start, self._at))
        end = self._at
        for start, _ in reversed(parts):
            self._at = start
            then = self._repeated(then)
        self._at = end
        return then

    def _repeated(self, then: int) -> int:
        start = self._at
        self._one(self._state())
        least, most = self._times()
        end = self._at

        def again(after: int) -> int:
            self._at = start
            return self._one(after)

        if most is None:
            loop = self._state()
            self.steps[loop][1].extend([again(loop), then])
            then = loop
        for _ in range((most or least) - least):
            then = self._state(None, again(then), then)
        for _ in range(least):
            then = again(then)
        self._at = end
        return then

    def _times(self) -> tuple[int, int | None]:
        found: tuple[int, int | None] = (1, 1)
        char = self._peek()
        if char and char in "*+?":
            self._next()
            found = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        elif char == "{":
            least, comma, most = self._until("}")[1:-1].partition(",")
            if not least.isdecimal() or (most and not most.isdecimal()) or (most and int(most) < int(least)):
                raise ValueError("it has {…} without numbers: write {2} or {2,3}")
            found = int(least), (int(most) if most else None) if comma else int(least)
        if self._peek() == "?" and found != (1, 1):
            self._next()  # lazy: which part matches does not matter
        return found

    def _until(self, closing: str) -> str:
        end = self._text.find(closing, self._at + 1)
        if end < 0:
            raise ValueError(f"it has no {closing} for the {self._peek()} at character {self._at + 1}")
        found = self._text[self._at : end + 1]
        self._at = end + 1
        return found

    def _one(self, then: int) -> int:
        char = self._next()
        if char == "(":
            if self._text.startswith("?:", self._at):
                self._at += 2
            elif self._peek() == "?":
                raise ValueError("it looks ahead or behind, which is not understood")
            self._depth += 1
            if self._depth > DEEPEST:
                raise ValueError(f"it has more than {DEEPEST} brackets within brackets")
            begin = self._either(then)
            self._depth -= 1
            if self._peek() != ")":
                raise ValueError("it has a ( that is not closed")
            self._next()
            return begin
        if char in "*+?{":
            raise ValueError(f"it has a {char} after nothing, at character {self._at}")
        return self._state(self._class() if char == "[" else self._takes(char), then)

    def _takes(self, char: str) -> Matches:
        if char == ".":
            return lambda c: c not in START + END
        if char == "\\":
            char = self._next()
            if char in ESCAPED:
                return ESCAPED[char]
            if char.isalnum():
                raise ValueError(f"it has \\{char}, which is not understood")
        else:
            char = {"^": START, "$": END}.get(char, char)
        return lambda c: c == char

    def _class(self) -> Matches:
        self._at -= 1
        inside = self._until("]")[1:-1]
        negated = inside.startswith("^")
        members: list[Matches] = []
        chars = list(inside[negated:])
        while chars:
            char = chars.pop(0)
            if char == "\\" and chars:
                char = chars.pop(0)
                if char in ESCAPED:
                    members.append(ESCAPED[char])
                    continue
            if len(chars) > 1 and chars[0] == "-":
                last = chars[1]
                del chars[:2]
                members.append(lambda c, low=char, high=last: low <= c <= high)  # type: ignore[misc]
            else:
                members.append(lambda c, one=char: c == one)  # type: ignore[misc]
        return lambda c: c not in START + END and any(member(c) for member in members) != negated


@lru_cache(maxsize=64)
def pattern(text: str) -> Pattern:
    """The states of a pattern. Raises `ValueError` for one that is not understood."""
    return Pattern(text)


@lru_cache(maxsize=64)
def _parts(text: str) -> tuple[tuple[tuple[bool, Pattern], ...], Pattern]:
    """What must stand, or must not, where a name begins, and the pattern of all of it."""
    conditions = []
    rest = text.removeprefix("^")
    while rest.startswith(("(?!", "(?=")):
        end = _closing(rest)
        conditions.append((rest[2] == "=", pattern(rest[3:end])))
        rest = rest[end + 1 :]
    return tuple(conditions), pattern(rest if conditions else text)


def _closing(text: str) -> int:
    """Where the bracket ends that a text begins with."""
    depth = at = 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "[":
            at = max(at, text.find("]", at + 2))
        else:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            if not depth:
                return at
        at += 1
    raise ValueError("it has a ( that is not closed")


def understood(text: str) -> str:
    """A pattern that whole names are held against, as it is. Raises `ValueError` for one that is not understood."""
    _parts(text)
    return text


def fits_whole(text: str, name: str) -> bool:
    """Whether all of a name matches a pattern, in time by the name's length. Raises `ValueError` as `understood`."""
    conditions, whole = _parts(text)
    return all(one.prefix(name) is wanted for wanted, one in conditions) and whole.whole(name)
