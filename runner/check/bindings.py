"""Which values a name of a tool file is given, in its function or else at the top level."""

import ast
from collections.abc import Iterator
from functools import cached_property

from runner.check.source import Function, SourceFile

__all__ = ["LISTING", "Bindings", "argument", "parameters"]

LISTING = frozenset({"iterdir", "glob", "rglob"})
"""Methods of a path that yield paths."""


class Bindings:
    """Finds what the names and attributes of one file stand for."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source

    def of(self, name: ast.Name) -> list[ast.expr]:
        """Return every value that the file gives a name."""
        function = self._source.function_around(name)
        while function is not None:
            if found := self._bound.get((function, name.id)):
                return found
            if any(arg.arg == name.id for arg in parameters(function)):
                return []
            function = self._source.function_around(function)
        return self._bound.get((None, name.id), [])

    def of_attribute(self, name: str) -> list[ast.expr]:
        """Return every value that the file gives an attribute of that name."""
        return self._attributes.get(name, [])

    def parameter(self, name: ast.Name) -> ast.arg | None:
        """Return the parameter that a name is, if it is one."""
        function = self._source.function_around(name)
        while function is not None:
            for arg in parameters(function):
                if arg.arg == name.id:
                    return arg
            function = self._source.function_around(function)
        return None

    def passed(self, name: ast.Name) -> list[ast.expr]:
        """Return what the file passes for the parameter that a name is, where it is no method's."""
        function, parameter = self._source.function_around(name), self.parameter(name)
        if function is None or parameter is None or parameter not in parameters(function):
            return []
        position = parameters(function).index(parameter)
        calls = self._calls.get(function.name, [])
        return [given for call in calls if (given := argument(call, position, parameter.arg)) is not None]

    @cached_property
    def _calls(self) -> dict[str, list[ast.Call]]:
        found: dict[str, list[ast.Call]] = {}
        for node in self._source.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found.setdefault(node.func.id, []).append(node)
        return found

    def default(self, name: ast.Name) -> ast.expr | None:
        """Return the default of the parameter that a name is, if it is one and has one."""
        function, parameter = self._source.function_around(name), self.parameter(name)
        if function is None or parameter is None:
            return None
        args = function.args
        plain = [*args.posonlyargs, *args.args][-len(args.defaults) :] if args.defaults else []
        pairs = [
            *zip(plain, args.defaults, strict=True),
            *zip(args.kwonlyargs, args.kw_defaults, strict=True),
        ]
        return next((default for arg, default in pairs if arg is parameter), None)

    @cached_property
    def _bound(self) -> dict[tuple[Function | None, str], list[ast.expr]]:
        found: dict[tuple[Function | None, str], list[ast.expr]] = {}
        for node in self._source.nodes:
            for target, value in _assignments(node):
                if isinstance(target, ast.Name):
                    key = (self._source.function_around(node), target.id)
                    found.setdefault(key, []).append(value)
        return found

    @cached_property
    def _attributes(self) -> dict[str, list[ast.expr]]:
        found: dict[str, list[ast.expr]] = {}
        for node in self._source.nodes:
            for target, value in _assignments(node):
                if isinstance(target, ast.Attribute):
                    found.setdefault(target.attr, []).append(value)
        return found


def argument(call: ast.Call, position: int, *names: str) -> ast.expr | None:
    """Return an argument given by position or by one of its names."""
    for word in call.keywords:
        if word.arg in names:
            return word.value
    if any(isinstance(arg, ast.Starred) for arg in call.args[: position + 1]):
        return None
    return call.args[position] if 0 <= position < len(call.args) else None


def parameters(function: Function) -> list[ast.arg]:
    """Return the named parameters of a function."""
    args = function.args
    return [*args.posonlyargs, *args.args, *args.kwonlyargs]


def _assignments(node: ast.AST) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Yield what a node gives a value, and the value; for a loop the thing it goes through."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from _elements(node.target, node.iter)


def _elements(target: ast.AST, iterated: ast.expr) -> Iterator[tuple[ast.AST, ast.expr]]:
    if isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name) and iterated.args:
        if iterated.func.id in ("sorted", "list", "tuple", "reversed", "set"):
            yield from _elements(target, iterated.args[0])
        elif iterated.func.id == "enumerate" and isinstance(target, ast.Tuple):
            yield from _elements(target.elts[-1], iterated.args[0])
    elif isinstance(iterated, ast.Call) and getattr(iterated.func, "attr", "") in LISTING:
        yield target, iterated
    elif isinstance(iterated, ast.Tuple | ast.List | ast.Set):
        for element in iterated.elts:
            yield target, element
