"""What an expression is, found by the type of its node and remembered."""

import ast
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

__all__ = ["ByType"]

T = TypeVar("T")


class ByType(Generic[T]):
    """Answers about expressions, each answered once.

    Args:
        find: What answers, for each type of node; of other types nothing is known.
    """

    def __init__(self, find: Mapping[type[ast.AST], Callable[[ast.AST], T | None]]) -> None:
        self._find = find
        self._known: dict[ast.AST, T | None] = {}

    def __call__(self, expression: ast.AST | None) -> T | None:
        """Return the answer for an expression, or None if there is none."""
        if expression is None:
            return None
        if expression not in self._known:
            # Until it is known: a name may be bound to something made of itself.
            self._known[expression] = None
            find = self._find.get(type(expression))
            self._known[expression] = find(expression) if find is not None else None
        return self._known[expression]
