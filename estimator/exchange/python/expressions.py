"""Expressions of a script, as far as they are plain: constants, names, arithmetic, and a few calls that everybody writes."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from estimator.exchange.python.values import Class, Made, Named, Unread, bounded

DEEPEST = 60
"""Expressions within each other."""
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda left, right: left is right if left is None or right is None else left == right,
    ast.IsNot: lambda left, right: left is not right if left is None or right is None else left != right,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
BUILTINS = {
    name: Named(name) for name in ("dict", "list", "tuple", "int", "float", "str", "bool", "len", "min", "max", "getattr")
}
_CAST: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
SINCE_AMPERE: dict[str, Any] = {
    "is_bf16_supported": True,
    "is_bfloat16_supported": True,
    "is_torch_bf16_gpu_available": True,
    "is_torch_bf16_available": True,
    "get_device_capability": [8, 0],
    "is_available": True,
}
"""What scripts ask of the GPU on which they run."""


def binary(node: ast.BinOp, left: Any, right: Any) -> Any:
    """Arithmetic of numbers, and texts or lists put together."""
    found = _BINARY.get(type(node.op))
    numbers = all(isinstance(one, int | float) for one in (left, right))
    if isinstance(node.op, ast.Pow) and numbers and isinstance(right, int) and abs(left) <= 10**4 and 0 <= right <= 64:
        return bounded(left**right)
    alike = any(all(isinstance(one, kind) for one in (left, right)) for kind in (str, list))
    if found is None or not (numbers or (alike and isinstance(node.op, ast.Add))):
        return Unread("arithmetic")
    try:
        value = found(left, right)
    except (ArithmeticError, ValueError):
        return Unread("arithmetic")
    return bounded(str(value) if isinstance(value, Named) else value)


def compared(node: ast.Compare, values: list[Any]) -> Any:
    """A comparison of values that are read."""
    if not all(_simple(one) or (isinstance(one, list) and all(map(_simple, one))) for one in values):
        return Unread("a comparison")
    try:
        pairs = zip(values, values[1:], node.ops, strict=False)
        return all(bool(_COMPARED[type(kind)](left, right)) for left, right, kind in pairs)
    except (TypeError, ValueError):
        return Unread("a comparison")


def _simple(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def item(value: Any, key: Any) -> Any:
    """What stands at a key, or a place, of what is read."""
    try:
        if isinstance(value, dict) and isinstance(key, str | int | float):
            return value[key]
        if isinstance(value, list | str) and isinstance(key, int):
            return value[key]
    except (KeyError, IndexError):
        pass
    return Unread("an item")


def cast(name: str, given: list[Any]) -> Any:
    """Python's own functions of plain values."""
    if any(isinstance(one, Unread | Made) for one in given):
        return Unread(f"{name}(…)")
    try:
        if name in _CAST and len(given) == 1 and (given[0] is None or isinstance(given[0], str | int | float)):
            return bounded(_CAST[name](given[0]))
        if name in ("min", "max") and len(given) > 1 and all(isinstance(one, int | float) for one in given):
            return min(given) if name == "min" else max(given)
        if name == "len" and len(given) == 1 and isinstance(given[0], str | list | dict):
            return len(given[0])
        if name in ("list", "tuple") and len(given) == 1 and isinstance(given[0], list):
            return given[0]
    except (ValueError, ArithmeticError, TypeError):
        pass
    return Unread(f"{name}(…)")


def of_text(text: str, method: str, given: list[Any]) -> Any:
    """A method of a text."""
    if not all(isinstance(one, str) for one in given):
        return Unread(f"a text's {method}")
    if method == "split" and len(given) <= 1:
        return bounded(text.split(*given)) if given != [""] else Unread("a text's split")
    if method in ("lower", "upper", "strip") and not given:
        return getattr(text, method)()
    if method in ("startswith", "endswith") and len(given) == 1:
        return getattr(text, method)(given[0])
    if method == "replace" and len(given) == 2 and given[0]:
        return bounded(text.replace(*given)) if len(text) * (len(given[1]) + 1) < 10**6 else Unread("a text's replace")
    return Unread(f"a text's {method}")


def attribute(value: Any, name: str) -> Any:
    """An attribute of what is read."""
    if isinstance(value, Named):
        return Named(f"{value}.{name}")
    if isinstance(value, Made) and name in value.keywords:
        return value.keywords[name]
    if isinstance(value, Class) and name in value.fields:
        return value.fields[name]
    return Unread(f".{name}")
