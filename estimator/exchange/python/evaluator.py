"""What a script's expressions come to, with the names that it has set so far."""

from __future__ import annotations

import ast
from typing import Any

from estimator.contract.errors import Unreadable
from estimator.exchange.python import expressions
from estimator.exchange.python.source import Source
from estimator.exchange.python.values import Made, Named, Unread, bounded, plain, same, size

MOST_STEPS = 100_000
LONGEST_SHOWN = 60


class Evaluator:
    """The names of a script, and the expressions over them; calls are another's."""

    def __init__(self, found: Source, options: dict[str, Any] | None = None):
        self.lines = found.text.split("\n")
        self.options = options or {}
        """What a command says to the script."""
        self.environment: dict[str, str] = {}
        self.assumed: dict[str, str] = {}
        """What was taken for true, and why."""
        self.stars: list[str] = []
        self.scopes: list[dict[str, Any]] = [{**expressions.BUILTINS, "__name__": "__main__"}]
        self.steps = self.depth = self.unsure = 0

    def call(self, node: ast.Call) -> Any:
        """What a call makes."""
        raise NotImplementedError

    def step(self, kept: int = 0) -> None:
        """Count a step, and `kept`: the values that it copies. Raises `Unreadable` for more than any script needs."""
        self.steps += 1 + kept
        if self.steps > MOST_STEPS:
            raise Unreadable(f"takes more than {MOST_STEPS:,} steps to follow", "script")

    def bind(self, name: str, value: Any) -> None:
        """Set a name."""
        self.scopes[-1][name] = value

    def assign(self, target: ast.expr, value: Any) -> None:
        """Set what stands on the left of an assignment."""
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

    def value(self, node: ast.expr | None) -> Any:
        """What an expression comes to, as far as that is plain."""
        self.step()
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
                return self.call(node)
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
