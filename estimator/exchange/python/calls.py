"""What a script's calls make: objects by the name of what was called, and what functions of its own give back."""

from __future__ import annotations

import ast
from typing import Any

from estimator.exchange.python import expressions
from estimator.exchange.python.evaluator import Evaluator
from estimator.exchange.python.source import Source
from estimator.exchange.python.values import Class, Function, Made, Named, Unread, bounded, plain, size

DEEPEST_CALLS, MOST_CALLS = 5, 300
SAME = ("to", "cuda", "half", "bfloat16", "eval", "train", "float", "copy", "with_format")
"""Methods that give back what they are called on."""
PARSERS = ("ArgumentParser",)
_AT_ONCE = ("parse_args_into_dataclasses", "parse_args_and_config", "parse_args")


class Calls(Evaluator):
    """Calls, and the functions that they go into."""

    def __init__(self, found: Source, options: dict[str, Any] | None = None):
        super().__init__(found, options)
        self.made: list[Made] = []
        self.calls = 0
        self.returned: list[Any] = []
        self.seen: set[int] = set()
        self.within: list[Function] = []

    def block(self, body: list[ast.stmt]) -> bool:
        """Go through statements; whether they end in a return that is certain."""
        raise NotImplementedError

    def call(self, node: ast.Call) -> Any:
        """What a call makes, or comes to."""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        holder = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        target = expressions.attribute(holder, method) if method else self.value(node.func)
        made = self._arguments(node)
        if isinstance(holder, str) and not isinstance(holder, Named):
            return expressions.of_text(holder, method, made.positional)
        if isinstance(target, Function):
            return self.enter(target, made)
        if isinstance(target, Class):
            self.step(len(target.fields))
            made.name, made.keywords = target.name, {**target.fields, **made.keywords}
            made.keywords |= dict(zip(target.fields, made.positional, strict=False))
        elif isinstance(target, Named):
            if (found := self._known(target, made, node)) is not made:
                return found
            made.name = str(target)
        elif isinstance(holder, Made):
            holder.done.append(method)
            made.name, made.of = f".{method}", holder
            if method in SAME:
                return holder
            if method == "add_argument":
                return self._argument(holder, made)
            if method in _AT_ONCE:
                return self._parsed(holder, method)
        elif isinstance(holder, dict) and method == "get" and made.positional:
            found = expressions.item(holder, made.positional[0])
            return made.argument("default", 1) if isinstance(found, Unread) else found
        elif isinstance(holder, dict) and method == "update" and made.positional and isinstance(made.positional[0], dict):
            given = made.positional[0]
            self.step(len(given))
            if plain(given) and len(holder) + len(given) < 500:
                holder |= dict(given)
            return None
        else:
            made.name = self.shown(node.func)
        self.made.append(made)
        return made

    def _arguments(self, node: ast.Call) -> Made:
        made = Made("", line=node.lineno)
        for one in node.args[:200]:
            found = self.value(one.value if isinstance(one, ast.Starred) else one)
            if isinstance(one, ast.Starred):
                self.step(size(found))
                made.positional += found if isinstance(found, list) else [Unread(self.shown(one))]
            else:
                made.positional.append(found)
        for keyword in node.keywords[:500]:
            found = self.value(keyword.value)
            if keyword.arg is not None:
                made.keywords[keyword.arg], made.lines[keyword.arg] = found, keyword.value.lineno
            elif isinstance(found, dict):
                self.step(len(found))
                made.keywords |= {str(key): value for key, value in found.items()}
                made.lines |= dict.fromkeys(map(str, found), keyword.value.lineno)
            else:
                made.hidden.append(self.shown(keyword.value))
        return made

    def _known(self, name: Named, made: Made, node: ast.Call) -> Any:
        """What a few functions that everybody calls come to; the call itself for any other."""
        last, given = name.rpartition(".")[2], made.positional
        if name == "dict" and not made.hidden and all(isinstance(one, dict) for one in given):
            return {**{key: value for one in given for key, value in one.items()}, **made.keywords}
        if name == "getattr" and len(given) >= 2 and isinstance(given[1], str):
            return expressions.attribute(given[0], given[1])
        if name in expressions.BUILTINS:
            found = expressions.cast(name, given)
            return Unread(self.shown(node)) if isinstance(found, Unread) else found
        if name in ("os.environ.get", "os.getenv", "os.environ.setdefault"):
            key, usual = made.argument("key", 0), made.argument("default", 1)
            found = self.environment.get(key, usual) if isinstance(key, str) else Unread(self.shown(node))
            if name.endswith("setdefault") and isinstance(key, str) and isinstance(found, str):
                self.environment[key] = found
            return found
        if name == "os.path.join" and given and all(isinstance(one, str) for one in given):
            return bounded("/".join(given))
        if name in ("copy.deepcopy", "copy.copy") and given:
            return given[0]
        if name.startswith("torch.device") or last == "device":
            return Unread(self.shown(node))
        if last in expressions.SINCE_AMPERE and ("cuda" in name or "bf" in last):
            self.assumed[last] = "a GPU with bf16, as all since Ampere have it"
            return expressions.SINCE_AMPERE[last]
        if name in ("torch.cuda.device_count", "time.time", "torch.manual_seed"):
            return Unread(self.shown(node))
        return made

    def _argument(self, parser: Made, made: Made) -> Any:
        """An option of argparse, and what it is unless a command says otherwise."""
        names = [one for one in made.positional if isinstance(one, str)]
        if not names:
            return None
        name = made.keywords.get("dest") or max(names, key=len).lstrip("-").replace("-", "_")
        action = made.keywords.get("action")
        usual = made.keywords.get("default", False if action == "store_true" else True if action == "store_false" else None)
        if usual is None and "default" not in made.keywords:
            usual = (
                Unread(f"--{name[:40]}, an argument of the command")
                if made.keywords.get("required") or not names[0].startswith("-")
                else None
            )
        if isinstance(name, str):
            parser.keywords[name] = self.options.get(name, usual)
        return None

    def _parsed(self, parser: Made, method: str) -> Any:
        """What argparse, or transformers' HfArgumentParser and TRL's, make of a command."""
        if parser.last in PARSERS:
            self.step(len(parser.keywords))
            return Made("argparse.Namespace", keywords=dict(parser.keywords), lines=dict(parser.lines), line=parser.line)
        asked = parser.argument("dataclass_types", 0)
        kinds = asked if isinstance(asked, list) else [asked]
        found: list[Any] = []
        for kind in kinds:
            fields = kind.fields if isinstance(kind, Class) else {}
            self.step(len(fields) + len(self.options))
            name = kind.name if isinstance(kind, Class) else str(kind) if isinstance(kind, Named) else "arguments"
            one = Made(name, keywords={**fields, **self.options}, line=parser.line)
            if not isinstance(kind, Class) and not self.options:
                one.hidden.append("the command's arguments")
            found.append(one)
        self.made += found
        return found if len(found) > 1 or method != "parse_args" else found[0]

    def enter(self, function: Function, made: Made) -> Any:
        """Go into a function with what it is given."""
        self.seen.add(id(function))
        node = function.node
        self.calls += 1
        if self.calls > MOST_CALLS or len(self.returned) >= DEEPEST_CALLS or function in self.within:
            return Unread(f"{node.name[:40]}(…)")
        scope: dict[str, Any] = {}
        names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        usual = dict(zip(reversed(names), reversed(node.args.defaults), strict=False))
        usual |= {one.arg: value for one, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value}
        for name in (*names, *(one.arg for one in node.args.kwonlyargs)):
            given = self.options.get(name) if not made.name and not made.positional else None
            scope[name] = (
                given
                if given is not None
                else self.value(usual[name])
                if name in usual
                else Unread(f"{name[:40]}, which {node.name[:40]} is given")
            )
        for name, found in (*zip(names, made.positional, strict=False), *made.keywords.items()):
            if name in scope:
                scope[name] = found
        if node.args.vararg:
            scope[node.args.vararg.arg] = made.positional[len(names) :]
        if node.args.kwarg:
            scope[node.args.kwarg.arg] = {name: found for name, found in made.keywords.items() if name not in scope}
        self.scopes.append(scope)
        self.returned.append(None)
        self.within.append(function)
        before, self.unsure = self.unsure, 0
        try:
            self.block(node.body)
        finally:
            self.unsure = before
            self.within.pop()
            self.scopes.pop()
            found = self.returned.pop()
        return found
