"""A script gone through once, from its first line to its last, and what its calls make.

Functions are gone into where they are called with what is read, those that nothing calls at the end; of a condition that is not
known both sides are, and what they leave different is not read. Loops are gone through once.
"""

from __future__ import annotations

import ast
from typing import Any

from estimator.exchange.python import expressions
from estimator.exchange.python.calls import Calls
from estimator.exchange.python.source import Source, tree
from estimator.exchange.python.values import Class, Function, Made, Named, Unread, same


class Reader(Calls):
    """What a script makes."""

    def __init__(self, found: Source, options: dict[str, Any] | None = None):
        super().__init__(found, options)
        self.functions: list[Function] = []
        self.block(tree(found).body)
        for function in self.functions:
            if id(function) not in self.seen:
                self.enter(function, Made("", keywords={}))

    def block(self, body: list[ast.stmt]) -> bool:
        """Go through statements; whether they end in a return that is certain."""
        return any(self.statement(one) for one in body)

    def statement(self, node: ast.stmt) -> bool:
        """Go through one statement; whether it ends in a return that is certain."""
        self.step()
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
