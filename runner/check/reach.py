"""Which functions of a file run when one of them runs: calls followed within the file, not further."""

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property

from runner.check.source import Function, SourceFile

__all__ = ["Reach"]

_BY_ITSELF = ("__init__", "__post_init__", "__enter__", "__aenter__", "__exit__", "__aexit__", "__call__")


class Reach:
    """Follows calls within one file."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source

    def of(self, start: Function) -> list[Function]:
        """Return `start` and every function of the file that it may run, each once."""
        return self._closure([start])

    def at_import(self) -> list[Function]:
        """Return every function of the file that its import calls."""
        called = [node.func for node in self._source.at_import() if isinstance(node, ast.Call)]
        names = [func.id for func in called if isinstance(func, ast.Name)]
        return self._closure(function for name in names for function in self._named(name))

    def _closure(self, start: Iterable[Function]) -> list[Function]:
        found: list[Function] = []
        waiting = list(start)
        while waiting:
            function = waiting.pop(0)
            if function not in found:
                found.append(function)
                waiting += self._mentioned(function)
        return found

    def _mentioned(self, function: Function) -> Iterator[Function]:
        """Yield what a function calls or hands on: `save(x)`, `to_thread(save, x)`, `Report().save()`."""
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield from self._named(node.id)
            elif isinstance(node, ast.Attribute):
                for owner in self._classes_of(node.value):
                    yield from self._method(owner, node.attr)

    def _named(self, name: str) -> Iterator[Function]:
        yield from self._source.functions.get(name, [])
        if name in self._source.classes:
            for method in _BY_ITSELF:
                yield from self._method(name, method)

    def _method(self, owner: str, name: str) -> Iterator[Function]:
        definition = self._source.classes[owner]
        found = [item for item in definition.body if isinstance(item, Function) and item.name == name]
        yield from found
        if not found:
            for base in definition.bases:
                if isinstance(base, ast.Name) and base.id in self._source.classes and base.id != owner:
                    yield from self._method(base.id, name)

    def _classes_of(self, expression: ast.AST) -> set[str]:
        """Return the classes of the file that a value may belong to."""
        if isinstance(expression, ast.Call):
            return self._class_named(expression.func)
        if isinstance(expression, ast.Attribute):
            return self._held.get(expression.attr, set())
        if not isinstance(expression, ast.Name):
            return set()
        if expression.id in ("self", "cls"):
            return self._class_around(expression)
        return self._class_named(expression) | self._held.get(expression.id, set())

    @cached_property
    def _held(self) -> dict[str, set[str]]:
        """Classes of the file whose instances a name holds, wherever it is given one."""
        found: dict[str, set[str]] = {}
        for node in self._source.nodes:
            for target, value in _bindings(node):
                name = getattr(target, "id", getattr(target, "attr", getattr(target, "arg", None)))
                if name is not None and value is not None:
                    found.setdefault(name, set()).update(self._class_named(value))
        return found

    def _class_named(self, expression: ast.AST) -> set[str]:
        if isinstance(expression, ast.Attribute):
            # An alternative constructor: `Report.of(x)`.
            return self._class_named(expression.value)
        name = getattr(expression, "id", None)
        return {name} if name in self._source.classes else set()

    def _class_around(self, node: ast.AST) -> set[str]:
        parent = self._source.parents.get(node)
        while parent is not None and not isinstance(parent, ast.ClassDef):
            parent = self._source.parents.get(parent)
        return {parent.name} if parent is not None else set()


def _bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Yield each name that a node binds, with the class or the constructor that its value comes from."""
    if isinstance(node, ast.arg):
        yield node, node.annotation
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and isinstance(node.value, ast.Call):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield target, node.value.func
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        called = node.context_expr
        yield node.optional_vars, called.func if isinstance(called, ast.Call) else None
