"""A rule on what a file keeps in memory for its tools: a process keeps it, and a user may have several."""

import ast
from collections.abc import Iterator

from runner.check.offers import Offer
from runner.check.rules import Finding
from runner.check.source import Function, SourceFile

__all__ = ["stores_in_memory"]

_CHANGES = frozenset(
    {
        *("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault"),
        *("pop", "popleft", "popitem", "remove", "discard", "clear"),
    }
)
_CURE = (
    "keep what must last in a file below `/tmp/{}/`, or by `await ctx.set_state(…)`; "
    "where it may be lost, set `max_calls_per_user = 1`, so that a user has one process"
)


def stores_in_memory(source: SourceFile, reached: list[tuple[Offer, list[Function]]]) -> Iterator[Finding]:
    """Yield module-level names that one tool, resource or prompt changes and another one uses.

    What one function changes and reads by itself is taken for a cache, which may be lost.
    """
    by_function: dict[Function, list[str]] = {}
    for offer, functions in reached:
        for function in functions:
            by_function.setdefault(function, []).append(offer.name)
    cure = _CURE.format(f"{{{source.identity}}}")
    mentioned = {function: _mentioned(function) for function in by_function}
    for name, methods in _names(source).items():
        users = [
            function for function in by_function if name in mentioned[function] and not _hides(function, name)
        ]
        changes = [place for function in users for place in _changes(function, name, methods)]
        offers = dict.fromkeys(offer for function in users for offer in by_function[function])
        if changes and len(users) > 1 and len(offers) > 1:
            yield Finding.at(min(changes, key=_place), "store-in-memory", _message(name, list(offers)), cure)


def _message(name: str, offers: list[str]) -> str:
    shown = " and ".join(f"`{offer}`" for offer in offers[:3])
    return (
        f"`{name}` is kept in the memory of one process, and {shown} may run in different ones of the same "
        "user: two calls at once are two processes, and a process can end between two calls"
    )


def _names(source: SourceFile) -> dict[str, frozenset[str]]:
    """Return the names that the file's top level gives a value, each with what is called to change that."""
    classes = {each.name: _changing(each) for each in source.tree.body if isinstance(each, ast.ClassDef)}
    found: dict[str, frozenset[str]] = {}
    for statement in source.tree.body:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        else:
            continue
        made = statement.value.func if isinstance(statement.value, ast.Call) else None
        methods = _CHANGES | classes.get(made.id if isinstance(made, ast.Name) else "", frozenset())
        found |= {target.id: methods for target in targets if isinstance(target, ast.Name)}
    return found


def _changing(made: ast.ClassDef) -> frozenset[str]:
    """Return the methods of a class that change what an object of it holds."""
    return frozenset(
        method.name
        for method in made.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and method.args.args
        and any(_changes_itself(node, method.args.args[0].arg) for node in ast.walk(method))
    )


def _changes_itself(node: ast.AST, itself: str) -> bool:
    """Say whether something is put into, or taken out of, an attribute of the object."""
    if isinstance(node, ast.Attribute):
        return not isinstance(node.ctx, ast.Load) and _is(node.value, itself)
    if isinstance(node, ast.Subscript):
        held, changes = node.value, not isinstance(node.ctx, ast.Load)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        held, changes = node.func.value, node.func.attr in _CHANGES
    else:
        return False
    return changes and isinstance(held, ast.Attribute) and _is(held.value, itself)


def _mentioned(function: Function) -> set[str]:
    """Return every name that stands in a function."""
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}


def _changes(function: Function, name: str, methods: frozenset[str]) -> list[ast.AST]:
    """Return where a function changes what a module-level name means or holds."""
    return [node for node in ast.walk(function) if _is_change(function, node, name, methods)]


def _is_change(function: Function, node: ast.AST, name: str, methods: frozenset[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load) and _is_global(function, name)
    if isinstance(node, ast.Subscript | ast.Attribute):
        return not isinstance(node.ctx, ast.Load) and _is(node.value, name)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in methods and _is(node.func.value, name)
    return False


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _is_global(function: Function, name: str) -> bool:
    return any(name in node.names for node in ast.walk(function) if isinstance(node, ast.Global))


def _hides(function: Function, name: str) -> bool:
    """Say whether a function has a parameter or variable of its own of that name."""
    every = function.args
    parameters = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
    if any(parameter is not None and parameter.arg == name for parameter in parameters):
        return True
    stored = any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(function)
    )
    return stored and not _is_global(function, name)


def _place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
