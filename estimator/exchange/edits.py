"""Settings of a file, or options of a command, changed where they stand; every other character stays as it is.

A key that is there gets another value, a key that is missing a line of its own at the end of its section, and an option that is
missing, or whose value only a variable has, is written after a command's last word, where parsers take the last one.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from estimator.contract.errors import NotModelled
from estimator.exchange import recognise
from estimator.exchange.configuration import Framework, Lines
from estimator.exchange.documents import names_model, programs_of
from estimator.exchange.launch import Program, arguments
from estimator.exchange.nested import overrides
from estimator.exchange.python.source import source
from estimator.exchange.readers import FILES, OVERRIDES, PLATFORMS, SCRIPTED, SHORT
from estimator.exchange.shell import Word

_ALIAS = re.compile(r"\s*:\s*(\*[^\s,\]}]+)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a setting stands: its key, its line from 1 on, what it says; a key that is missing has no line."""

    key: str
    line: int | None
    value: Any


class SettingsText:
    """A file of settings in YAML or JSON."""

    def __init__(self, text: str, facts: Framework):
        self.text, self.facts = text, facts
        self.json = text.lstrip().startswith("{")

    def place(self, key: str) -> Place:
        """What the file says of a key, which may stand within a section: train.micro_batch_size."""
        settings: Any = recognise.settings(self.text, "file")
        lines, written = Lines.of(self.text).found, []
        for name in key.split("."):
            known = self._written(settings, name)
            if known is None:
                return Place(key, None, None)
            written.append(known)
            settings = settings[known]
        found = ".".join(written)
        return Place(found, lines.get(found), settings)

    def changed(self, key: str, value: Any) -> str | None:
        """The text with a key set; None where it cannot be set without more than that."""
        source = self.text.replace("\t", " ") if self.json else self.text
        node = yaml.compose(source, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        names = key.split(".")
        for depth, name in enumerate(names):
            if not isinstance(node, yaml.MappingNode):
                return None
            pairs = [pair for pair in node.value if self._name(str(pair[0].value)) == name]
            if not pairs:
                return self._inserted(node, names[depth:], value)
            at, inner = pairs[-1]
            if depth < len(names) - 1:
                if inner.start_mark.index < at.start_mark.index:
                    return None
                node = inner
                continue
            return self._replaced(at, inner, value)
        return None

    def _written(self, settings: Any, name: str) -> str | None:
        """A key as the file has it, an older name of it among them; the first that says something, as readers take it."""
        if not isinstance(settings, Mapping):
            return None
        found = [str(one) for one in settings if self._name(str(one)) == name]
        return next((one for one in found if settings[one] is not None), found[0] if found else None)

    def _name(self, written: str) -> str:
        plain = written.replace("-", "_") if self.facts.dashes else written
        return self.facts.aliases.get(plain, plain)

    def _replaced(self, key: Any, node: Any, value: Any) -> str | None:
        start, end = node.start_mark.index, node.end_mark.index
        if start < key.start_mark.index:  # an alias: its own text is put in the place of the name
            match = _ALIAS.match(self.text, key.end_mark.index)
            if match is None:
                return None
            start, end = match.span(1)
        elif not isinstance(node, yaml.ScalarNode) or node.style in ("|", ">"):
            return None
        shown = self._shown(value)
        return self.text[:start] + (shown if end > start else f" {shown}") + self.text[end:]

    def _inserted(self, node: Any, names: list[str], value: Any) -> str | None:
        """A key, with the sections around it, after all others of a mapping."""
        if node.flow_style:
            for name in reversed(names[1:]):
                value = {name: value}
            key = json.dumps(names[0]) if self.json else names[0]
            entry = f"{key}: {self._shown(value)}"
            if not node.value:
                at = node.end_mark.index - 1
                return self.text[:at] + entry + self.text[at:]
            (first, _), (last, inner) = node.value[0], node.value[-1]
            at = max(last.end_mark.index, inner.end_mark.index)
            several = first.start_mark.line != node.start_mark.line
            return self.text[:at] + (f",\n{' ' * first.start_mark.column}" if several else ", ") + entry + self.text[at:]
        indent = node.value[0][0].start_mark.column
        lines = [f"{' ' * (indent + 2 * depth)}{name}:" for depth, name in enumerate(names)]
        lines[-1] += f" {self._shown(value)}"
        at = self.text.find("\n", _end(node))
        if at < 0:
            return self.text + "".join(f"\n{line}" for line in lines)
        return self.text[: at + 1] + "".join(f"{line}\n" for line in lines) + self.text[at + 1 :]

    def _shown(self, value: Any) -> str:
        if self.json:
            return json.dumps(value)
        return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("\n...")


def _end(node: Any) -> int:
    """Where the last value of a block ends."""
    while isinstance(node, yaml.MappingNode | yaml.SequenceNode) and not node.flow_style and node.value:
        last = node.value[-1]
        if isinstance(node, yaml.MappingNode):
            key, node = last
            if node.start_mark.index < key.start_mark.index:
                return int(key.end_mark.index)
        else:
            node = last
    block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    return int(node.end_mark.index) - block


class CommandText:
    """A command, or a script that holds one."""

    def __init__(self, text: str, facts: Framework, whose: str, program: Program):
        self.text, self.facts, self.program = text, facts, program
        self.short = SHORT.get(whose)

    def place(self, key: str) -> Place:
        """What the command says of an option."""
        options, lines, _ = arguments(self.program.arguments, self.short)
        known = {self.facts.aliases.get(name, name): name for name in reversed(options)}
        name = known.get(key)
        return Place(self._as_written(key), None, None) if name is None else Place(name, lines.get(name), options[name])

    def changed(self, key: str, value: Any) -> str | None:
        """The text with an option set."""
        words, shown = self.program.arguments, shlex.quote(_shown(value))
        at = next((index for index in reversed(range(len(words))) if self._name(words[index]) == key), None)
        if at is not None:
            option, _, given = words[at].text.partition("=")
            following = words[at + 1] if at + 1 < len(words) else None
            if words[at].alone and given:
                return self._put(words[at], f"{option}={shown}")
            if following is not None and following.alone and self._name(following) is None:
                return self._put(following, shown)
        if value is False and at is None:
            return self.text
        end = max((word.end for word in words), default=0)
        if not end:
            return None
        option = f"--{key.replace('_', '-') if self.facts.dashes else self._as_written(key)}"
        return self.text[:end] + f" {option}" + ("" if value is True and self.facts.switches else f" {shown}") + self.text[end:]

    def _name(self, word: Word) -> str | None:
        """The option that a word is; None for a value."""
        name = word.text.partition("=")[0]
        if self.short is not None and name in self.short:
            plain = self.short[name]
        elif name.startswith("--") and len(name) > 2:
            plain = name[2:].replace("-", "_")
        else:
            return None
        return self.facts.aliases.get(plain, plain)

    def _as_written(self, key: str) -> str:
        """A key that has a section and an older name without one, in the way in which the command has its other options."""
        flat = next((old for old, new in self.facts.aliases.items() if new == key and "." not in old), None)
        options = [word.text for word in self.program.arguments if word.text.startswith("--")]
        return flat if flat and "." in key and not any("." in option.partition("=")[0] for option in options) else key

    def _put(self, word: Word, text: str) -> str:
        return self.text[: word.start] + text + self.text[word.end :]


class OverridesText(CommandText):
    """A command whose words are settings with their values: `a.b=c`."""

    def place(self, key: str) -> Place:
        """What the command says of a setting."""
        options, lines = overrides(self.program.arguments)
        name = next((one for one in options if self.facts.aliases.get(one, one) == key), None)
        return Place(key, None, None) if name is None else Place(name, lines.get(name), options[name])

    def changed(self, key: str, value: Any) -> str | None:
        """The text with a setting changed; one that is missing comes after the last of those that are there."""
        words = [word for word in self.program.arguments if overrides([word])[0]]
        shown = shlex.quote(_shown(value))
        for word in reversed(words):
            name, _, given = word.text.partition("=")
            plain = name.lstrip("+-")
            if self.facts.aliases.get(plain, plain) == key:
                return self._put(word, f"{name}={shown}") if word.alone and given else None
        if not words:
            return None
        end = words[-1].end
        return f"{self.text[:end]} {key}={shown}{self.text[end:]}"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def opened(text: str, whose: str, facts: Framework, given: str | None) -> SettingsText | CommandText:
    """A file in which settings can be changed. Raises `NotModelled` for what cannot be edited in place."""
    if source(text) is not None:
        raise NotModelled("a script in Python is read, but not edited yet: set by hand what `willitfit plan` names", "file")
    settings = recognise.settings(text, "file")
    if settings is not None and recognise.file(settings) in PLATFORMS:
        raise NotModelled("a command within a platform's file is read, but not edited yet: fix the command alone", "file")
    if settings is not None:
        if recognise.is_toml(text):
            raise NotModelled("TOML is read, but not edited yet", "file")
        return SettingsText(text, facts)
    known = programs_of(text, given)
    if not known or (known[0][0] in SCRIPTED and not names_model(known[0][1])):
        raise NotModelled("the settings are in the script that the command starts, which is read, but not edited yet", "file")
    name, program = known[0]
    options, _, words = arguments(program.arguments, SHORT.get(name))
    named = [word for word in words if re.search(r"\.(ya?ml|json)$", word)] if name in FILES else []
    if path := options.get("config") or next(iter(named), None):
        path = path[0] if isinstance(path, list) else path
        raise NotModelled(f"the command's settings are in {path}: fix that file", "file")
    return (OverridesText if whose in OVERRIDES else CommandText)(text, facts, whose, program)
