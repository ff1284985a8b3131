"""Changes that a module of ours makes to FastMCP, the SDK and Starlette, found in its source text.

A value counts as theirs if its annotation names a framework class, if it is the result of a framework call or
of a function of ours annotated with such a class, or if it was read from such a value.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["FRAMEWORK", "patches", "tree_of"]

ROOT = Path(__file__).parents[1]
FRAMEWORK = {"fastmcp", "mcp", "mcp_types", "starlette"}
# Dictionaries and functions of ASGI, which is a standard.
_NOT_THEIRS = {"starlette.types"}
# The documented way to set headers.
_TO_BE_WRITTEN = {"MutableHeaders"}

# Python's generic classes: a dictionary of SDK sessions is not theirs, nor a function that takes one.
_OURS = {"Callable", "Mapping", "dict", "frozenset", "list", "set"}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree_of(module: Path) -> ast.Module:
    """Return a module of the tree, parsed once; its path is relative to the root."""
    return ast.parse((ROOT / module).read_text())


def patches(tree: ast.Module) -> Iterator[str]:
    """Yield each target on a framework object that a module writes to, as source text."""
    names = _Names(tree)
    yield from _Scope(names, names.theirs, tree.body).patches()


class _Names:
    """Imports of a module: framework names, and functions of ours that return framework objects."""

    def __init__(self, tree: ast.Module) -> None:
        self.theirs = frozenset(_imported_from_them(tree))
        self.makers = frozenset(_makers(tree, self.theirs)) | {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (source := _source(node)) is not None
            for alias in node.names
            if alias.name in _makers_of(source)
        }


def _imported_from_them(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            for alias in [each for each in node.names if each.name not in _TO_BE_WRITTEN]:
                named = source or alias.name
                if named.partition(".")[0] in FRAMEWORK and named not in _NOT_THEIRS:
                    yield (alias.asname or alias.name).partition(".")[0]


def _source(node: ast.ImportFrom) -> Path | None:
    path = Path(f"{(node.module or '').replace('.', '/')}.py")
    return path if path.parts[0] == "runner" and (ROOT / path).exists() else None


@cache
def _makers_of(module: Path) -> frozenset[str]:
    tree = tree_of(module)
    return frozenset(_makers(tree, frozenset(_imported_from_them(tree))))


def _makers(tree: ast.Module, theirs: frozenset[str]) -> Iterator[str]:
    """Yield the functions and methods that return a framework object."""
    for node in ast.walk(tree):
        if isinstance(node, _Function) and _names_one(node.returns, theirs):
            yield node.name


def _names_one(annotation: ast.expr | None, theirs: frozenset[str]) -> bool:
    """Return whether an annotation is a framework class, or a union or tuple with one."""
    match annotation:
        case ast.Name(id=name):
            return name in theirs
        case ast.Attribute(value=value):
            return _names_one(value, theirs)
        case ast.Constant(value=str(text)):
            return _names_one(ast.parse(text, mode="eval").body, theirs)
        case ast.BinOp(left=left, right=right):
            return _names_one(left, theirs) or _names_one(right, theirs)
        case ast.Subscript(value=value, slice=inner):
            if ast.unparse(value).rpartition(".")[2] in _OURS:
                return False
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return _names_one(value, theirs) or any(_names_one(part, theirs) for part in parts)
        case _:
            return False


class _Scope:
    """A module, class or function, with those of its names that hold framework objects."""

    def __init__(self, names: _Names, theirs: frozenset[str], body: list[ast.stmt]) -> None:
        self._names = names
        self.theirs = set(theirs)
        self._body = body
        self._own = list(_statements(body))

    def patches(self) -> Iterator[str]:
        self.learn()
        for node in self._own:
            if isinstance(node, ast.ClassDef):
                yield from _Scope(self._names, self._known() | self._fields(node), node.body).patches()
            elif isinstance(node, _Function):
                inner = self._known() - _parameters(node, self._names.theirs, theirs=False)
                inner |= _parameters(node, self._names.theirs, theirs=True)
                yield from _Scope(self._names, inner, node.body).patches()
            else:
                yield from self._written(node)

    def _known(self) -> frozenset[str]:
        return frozenset(self.theirs)

    def _fields(self, node: ast.ClassDef) -> frozenset[str]:
        """Return `self.x` for each field `x` of a class that holds a framework object."""
        fields = {
            f"self.{each.target.id}"
            for each in node.body
            if isinstance(each, ast.AnnAssign)
            and isinstance(each.target, ast.Name)
            and _names_one(each.annotation, self._names.theirs)
        }
        for method in [each for each in node.body if isinstance(each, _Function)]:
            scope = _Scope(
                self._names, self._known() | _parameters(method, self._names.theirs, theirs=True), method.body
            )
            scope.learn()
            fields |= {name for name in scope.theirs if name.startswith("self.")}
        return frozenset(fields)

    def learn(self) -> None:
        for _ in range(3):  # for chains of reads
            for node in self._own:
                for target, value in _bound(node):
                    if value is not None and self._is_theirs(value):
                        self.theirs |= set(_names_in(target))
                if isinstance(node, ast.AnnAssign):
                    # The annotation of a value overrides its origin.
                    names = set(_names_in(node.target))
                    self.theirs -= names
                    self.theirs |= names if _names_one(node.annotation, self._names.theirs) else set()

    def _is_theirs(self, node: ast.expr) -> bool:
        """Return whether an expression is, or is read from, a framework object; `len` of one is not."""
        match node:
            case ast.Name(id=name):
                return name in self.theirs
            case ast.Attribute(value=value):
                return ast.unparse(node) in self.theirs or self._is_theirs(value)
            case ast.Subscript(value=value) | ast.Await(value=value) | ast.NamedExpr(value=value):
                return self._is_theirs(value)
            case ast.Call(func=function, args=arguments):
                return self._gives_theirs(function, arguments)
            case ast.BoolOp(values=values):
                return any(map(self._is_theirs, values))
            case ast.IfExp(body=body, orelse=orelse):
                return self._is_theirs(body) or self._is_theirs(orelse)
            case _:
                return False

    def _gives_theirs(self, function: ast.expr, arguments: list[ast.expr]) -> bool:
        match function:
            case ast.Name(id="vars" | "getattr" | "cast"):
                return any(map(self._is_theirs, arguments))
            case ast.Name(id=name):
                return name in self.theirs or name in self._names.makers
            case ast.Attribute(value=value, attr=name):
                return name in self._names.makers or self._is_theirs(value)
            case _:
                return False

    def _written(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
            for target in [part for each in targets for part in _parts(each)]:
                if isinstance(target, ast.Attribute | ast.Subscript) and self._is_theirs(target.value):
                    yield ast.unparse(target)
        for call in _calls(node):
            if ast.unparse(call.func) in {"setattr", "object.__setattr__", "delattr"} and self._is_theirs(
                call.args[0]
            ):
                yield ast.unparse(call)


def _parameters(node: _Function, classes: frozenset[str], *, theirs: bool) -> frozenset[str]:
    """Return the parameters of a function that are framework objects, or those that are not."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return frozenset(each.arg for each in every if _names_one(each.annotation, classes) is theirs)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield all statements of a body except those within its functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, _Function | ast.ClassDef):
            for inner in ast.walk(node):
                for part in ("body", "orelse", "finalbody"):
                    nested = getattr(inner, part, None)
                    if inner is node and isinstance(nested, list):
                        yield from _statements(nested)
            for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
                yield from _statements(handler.body)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in a statement, without those in its nested statements."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            if isinstance(child, ast.Call):
                yield child
            yield from _calls(child)


def _bound(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
            yield target, value
        case ast.With(items=items) | ast.AsyncWith(items=items):
            yield from (
                (item.optional_vars, item.context_expr) for item in items if item.optional_vars is not None
            )
        case _:
            pass


def _names_in(target: ast.expr) -> Iterator[str]:
    for part in _parts(target):
        if isinstance(part, ast.Name) or (
            isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self"
        ):
            yield ast.unparse(part)


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _parts(each)
    elif isinstance(target, ast.Starred):
        yield from _parts(target.value)
    else:
        yield target
