"""A script gone through once, from its first line to its last, and what its calls make.

Functions are gone into where they are called with what is read, those that nothing calls at the end; of a condition that is not
known both sides are, and what they leave different is not read. Loops are gone through once.
"""

from __future__ import annotations

import ast
from typing import Any

from estimator.contract.errors import Unreadable
from estimator.exchange.python import expressions
from estimator.exchange.python.source import Source, tree
from estimator.exchange.python.values import Class, Function, Made, Named, Unread, bounded, plain, same, size

MOST_STEPS = 100_000
DEEPEST_CALLS, MOST_CALLS = 5, 300
LONGEST_SHOWN = 60
SAME = ("to", "cuda", "half", "bfloat16", "eval", "train", "float", "copy", "with_format")
"""Methods that give back what they are called on."""
PARSERS = ("ArgumentParser",)
_AT_ONCE = ("parse_args_into_dataclasses", "parse_args_and_config", "parse_args")


class Reader:
    """What a script makes."""

    def __init__(self, found: Source, options: dict[str, Any] | None = None):
        self.lines = found.text.split("\n")
        self.options = options or {}
        """What a command says to the script."""
        self.made: list[Made] = []
        self.environment: dict[str, str] = {}
        self.assumed: dict[str, str] = {}
        """What was taken for true, and why."""
        self.stars: list[str] = []
        self.scopes: list[dict[str, Any]] = [{**expressions.BUILTINS, "__name__": "__main__"}]
        self.steps = self.depth = self.calls = self.unsure = 0
        self.returned: list[Any] = []
        self.functions: list[Function] = []
        self.seen: set[int] = set()
        self.within: list[Function] = []
        self.block(tree(found).body)
        for function in self.functions:
            if id(function) not in self.seen:
                self.enter(function, Made("", keywords={}))

    # Statements

    def block(self, body: list[ast.stmt]) -> bool:
        """Go through statements; whether they end in a return that is certain."""
        return any(self.statement(one) for one in body)

    def statement(self, node: ast.stmt) -> bool:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Unreadable(f"takes more than {MOST_STEPS:,} steps to follow", "script")
        if self.depth > expressions.DEEPEST:
            return False
        self.depth += 1
        try:
            return self._statement(node)
        finally:
            self.depth -= 1

    def _statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.Import():
                for name in node.names:
                    self.bind(
                        name.asname or name.name.partition(".")[0],
                        Named(name.name if name.asname else name.name.partition(".")[0]),
                    )
            case ast.ImportFrom():
                self._imported(node)
            case ast.Assign():
                value = self.value(node.value)
                for target in node.targets:
                    self.assign(target, value)
            case ast.AnnAssign() if node.value is not None:
                self.assign(node.target, self.value(node.value))
            case ast.AugAssign():
                changed = ast.BinOp(left=ast.Name("", ast.Load()), op=node.op, right=node.value)
                before = self.value(node.target)
                self.assign(node.target, self._binary(changed, before, self.value(node.value), node))
            case ast.Expr():
                self.value(node.value)
            case ast.Return():
                found = None if node.value is None else self.value(node.value)
                if self.returned and self.returned[-1] is None:
                    self.returned[-1] = found
                return not self.unsure and bool(self.returned)
            case ast.If():
                return self._either(node)
            case ast.For() | ast.AsyncFor():
                self.value(node.iter)
                self.assign(node.target, Unread("what a loop goes through"))
                self.block(node.body)
                self.block(node.orelse)
            case ast.While():
                self.block(node.body)
            case ast.With() | ast.AsyncWith():
                for one in node.items:
                    found = self.value(one.context_expr)
                    if one.optional_vars is not None:
                        self.assign(one.optional_vars, found)
                return self.block(node.body)
            case ast.Try():
                return self.block([*node.body, *node.orelse, *node.finalbody])
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                function = Function(node)
                self.functions.append(function)
                self.bind(node.name, function)
            case ast.ClassDef():
                self._class(node)
        return False

    def _imported(self, node: ast.ImportFrom) -> None:
        for name in node.names:
            if name.name == "*":
                self.stars.append(node.module or "")
            else:
                self.bind(name.asname or name.name, Named(f"{node.module or ''}.{name.name}"))

    def _either(self, node: ast.If) -> bool:
        test = self.value(node.test)
        if not isinstance(test, Unread | Made | Named | Function | Class):
            return self.block(node.body if test else node.orelse)
        before = dict(self.scopes[-1])
        self.steps += len(before) // 10
        self.unsure += 1
        try:
            self.block(node.body)
            left = self.scopes[-1]
            self.scopes[-1] = before
            before = dict(before)
            self.block(node.orelse)
        finally:
            self.unsure -= 1
        for name, value in left.items():
            here = self.scopes[-1].get(name, before)
            if not same(here, value):
                certain = here is before and isinstance(value, Named | Function | Class)
                self.scopes[-1][name] = value if certain else Unread(f"{name}, set under a condition (line {node.lineno})")
        for name in self.scopes[-1].keys() - left.keys():
            if not isinstance(self.scopes[-1][name], Named | Function | Class):
                self.scopes[-1][name] = Unread(f"{name}, set under a condition (line {node.lineno})")
        return False

    def _class(self, node: ast.ClassDef) -> None:
        fields: dict[str, Any] = {}
        for one in node.body:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions.append(Function(one))
            elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                given = self.value(one.value) if one.value is not None else Unread(f"{one.target.id}, which has no default")
                if isinstance(given, Made) and given.last == "field":
                    given = given.keywords.get("default", Unread(f"{one.target.id}, a field"))
                fields[one.target.id] = given
            elif isinstance(one, ast.Assign) and len(one.targets) == 1 and isinstance(one.targets[0], ast.Name):
                fields[one.targets[0].id] = self.value(one.value)
        self.bind(node.name, Class(node.name, fields))

    def bind(self, name: str, value: Any) -> None:
        self.scopes[-1][name] = value

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name():
                self.bind(target.id, value)
            case ast.Tuple() | ast.List():
                for place, one in enumerate(target.elts):
                    if isinstance(value, list) and len(value) == len(target.elts):
                        self.assign(one, value[place])
                    elif isinstance(value, Made):
                        self.assign(one, value if place == 0 else Made(f"{value.name}[{place}]", of=value))
                    else:
                        self.assign(one, Unread(self.shown(target)))
            case ast.Starred():
                self.assign(target.value, Unread(self.shown(target)))
            case ast.Attribute():
                holder = self.value(target.value)
                if isinstance(holder, Made):
                    holder.keywords[target.attr] = Unread(f"{target.attr}, set under a condition") if self.unsure else value
                    holder.lines[target.attr] = target.lineno
            case ast.Subscript():
                holder, key = self.value(target.value), self.value(target.slice)
                if holder == "os.environ" and isinstance(key, str) and isinstance(value, str) and not self.unsure:
                    self.environment[key] = value
                elif isinstance(holder, dict) and isinstance(key, str) and len(holder) < 2000:
                    fits = not isinstance(value, list | dict) or (len(value) <= 50 and plain(value))
                    unread = Unread(f"{key[:40]}, set under a condition" if self.unsure else self.shown(target))
                    holder[key] = value if fits and not self.unsure else unread

    # Expressions

    def value(self, node: ast.expr | None) -> Any:
        """What an expression comes to, as far as that is plain."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Unreadable(f"takes more than {MOST_STEPS:,} steps to follow", "script")
        if node is None or self.depth > expressions.DEEPEST:
            return Unread("expressions within expressions")
        self.depth += 1
        try:
            found = self._value(node)
        finally:
            self.depth -= 1
        if not isinstance(node, ast.Name | ast.Constant | ast.Attribute):
            self.steps += size(found)
        return found

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str()):
                return bounded(node.value)
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                found = expressions.attribute(self.value(node.value), node.attr)
                return Unread(self.shown(node)) if isinstance(found, Unread) else found
            case ast.List() | ast.Tuple() | ast.Set():
                if len(node.elts) > 2000:
                    return Unread("a long list")
                return [self.value(one) for one in node.elts]
            case ast.Dict():
                return self._mapping(node)
            case ast.JoinedStr():
                parts = [self._formatted(one) for one in node.values]
                return bounded("".join(parts)) if all(isinstance(one, str) for one in parts) else Unread(self.shown(node))
            case ast.BinOp():
                return self._binary(node, self.value(node.left), self.value(node.right), node)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.BoolOp():
                return self._both(node)
            case ast.Compare():
                found = expressions.compared(node, [self.value(one) for one in (node.left, *node.comparators)])
                return Unread(self.shown(node)) if isinstance(found, Unread) else found
            case ast.IfExp():
                test = self.value(node.test)
                if isinstance(test, Unread | Made | Named):
                    left, right = self.value(node.body), self.value(node.orelse)
                    return left if same(left, right) else Unread(self.shown(node))
                return self.value(node.body if test else node.orelse)
            case ast.Subscript():
                found = expressions.item(self.value(node.value), self.value(node.slice))
                return Unread(self.shown(node)) if isinstance(found, Unread) else found
            case ast.NamedExpr():
                found = self.value(node.value)
                self.assign(node.target, found)
                return found
            case ast.Await():
                return self.value(node.value)
            case ast.Call():
                return self._call(node)
        return Unread(self.shown(node))

    def _name(self, node: ast.Name) -> Any:
        for scope in (self.scopes[-1], self.scopes[0]):
            if node.id in scope:
                return scope[node.id]
        if self.stars and node.id[:1].isupper():
            return Named(f"{self.stars[-1]}.{node.id}")
        return Unread(node.id[:LONGEST_SHOWN])

    def _mapping(self, node: ast.Dict) -> Any:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys[:2000], node.values[:2000], strict=False):
            given = self.value(value)
            if key is None:
                if not isinstance(given, dict):
                    return Unread(self.shown(node))
                found |= given
                continue
            name = self.value(key)
            if not isinstance(name, str | int | float):
                return Unread(self.shown(node))
            found[name] = given
        return bounded(found)

    def _formatted(self, node: ast.expr) -> Any:
        if not isinstance(node, ast.FormattedValue):
            return self.value(node)
        found = self.value(node.value)
        simple = node.format_spec is None and isinstance(found, str | int | float)
        return str(found) if simple else found if isinstance(found, Unread) else Unread(self.shown(node.value))

    def _binary(self, node: ast.BinOp, left: Any, right: Any, shown: ast.AST) -> Any:
        found = expressions.binary(node, left, right)
        return Unread(self.shown(shown)) if isinstance(found, Unread) else found

    def _unary(self, node: ast.UnaryOp) -> Any:
        found = self.value(node.operand)
        if isinstance(node.op, ast.Not) and not isinstance(found, Unread | Made | Named):
            return not found
        if isinstance(node.op, ast.USub) and isinstance(found, int | float):
            return -found
        return Unread(self.shown(node))

    def _both(self, node: ast.BoolOp) -> Any:
        every = isinstance(node.op, ast.And)
        found: Any = Unread("")
        for one in node.values:
            found = self.value(one)
            if isinstance(found, Unread | Named):
                return Unread(self.shown(node))
            true = bool(found) if not isinstance(found, Made) else True
            if true is not every:
                return found
        return found

    def shown(self, node: ast.AST) -> str:
        """An expression as it is written, cut."""
        row = getattr(node, "lineno", 0) - 1
        if not 0 <= row < len(self.lines):
            return "an expression"
        line = self.lines[row][:2000].encode()
        start, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
        whole = line[start : end if getattr(node, "end_lineno", 0) == row + 1 else None].decode(errors="ignore").strip()
        return whole if len(whole) <= LONGEST_SHOWN else f"{whole[: LONGEST_SHOWN - 1]}…"

    # Calls

    def _call(self, node: ast.Call) -> Any:
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        holder = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        target = expressions.attribute(holder, method) if method else self.value(node.func)
        made = self._arguments(node)
        if isinstance(holder, str) and not isinstance(holder, Named):
            return expressions.of_text(holder, method, made.positional)
        if isinstance(target, Function):
            return self.enter(target, made)
        if isinstance(target, Class):
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
            self.steps += len(given)
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
                made.positional += found if isinstance(found, list) else [Unread(self.shown(one))]
            else:
                made.positional.append(found)
        for keyword in node.keywords[:500]:
            found = self.value(keyword.value)
            if keyword.arg is not None:
                made.keywords[keyword.arg], made.lines[keyword.arg] = found, keyword.value.lineno
            elif isinstance(found, dict):
                self.steps += len(found)
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
            return Made("argparse.Namespace", keywords=dict(parser.keywords), lines=dict(parser.lines), line=parser.line)
        asked = parser.argument("dataclass_types", 0)
        kinds = asked if isinstance(asked, list) else [asked]
        found: list[Any] = []
        for kind in kinds:
            fields = dict(kind.fields) if isinstance(kind, Class) else {}
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
