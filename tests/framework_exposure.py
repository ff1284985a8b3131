"""Names that we use although FastMCP, the MCP SDK, Starlette and uvicorn may change them at any time.

`exposure()` counts pairs of a module below `runner/` and a name. A pair counts once:

- an attribute with a leading underscore, unless the module, or one of ours that it imports from, defines it;
- an imported name, or a part of an imported module's path, with a leading underscore;
- a method with a leading underscore that overrides one of a framework class;
- a string with a leading underscore that is an argument of `getattr`, `hasattr`, `setattr` or `delattr`, or a
  key of a mapping that is read or written; except `_meta`, which is defined by the protocol;
- a monkeypatch, that is, an assignment to a name of a framework module or class, as it is written.

Not counted are names of Python's own library; public attributes that are set on an object; and modules whose
path has no leading underscore, since the API references of FastMCP and the SDK list them. Modules that no
guide describes are imported in `internals` folders only, which `tests/test_house_rules.py` enforces.

usage: python tests/framework_exposure.py     prints each pair, and their number last
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from framework_patches import tree_of

__all__ = ["MODULES", "THEIRS", "exposure", "is_private", "own_names", "private_names"]

ROOT = Path(__file__).parents[1]
MODULES = sorted(path.relative_to(ROOT) for path in (ROOT / "runner").rglob("*.py"))
THEIRS = frozenset({"fastmcp", "mcp", "mcp_types", "starlette", "uvicorn"})

_BY_TEXT = frozenset({"delattr", "getattr", "hasattr", "setattr"})
_BY_KEY = frozenset({"get", "pop", "setdefault"})
_OF_PROTOCOL = frozenset({"_meta"})
_OF_PYTHON = frozenset({"_exit_callbacks"})


def exposure(modules: list[Path] | None = None) -> list[tuple[str, str]]:
    """Return each pair of a module of ours and a private framework name."""
    chosen = MODULES if modules is None else modules
    return sorted({(str(module), name) for module in chosen for name in private_names(module)})


def is_private(name: str) -> bool:
    """Return whether a name has a leading underscore and is neither `_` nor a dunder name."""
    return name.startswith("_") and not name.endswith("__") and name != "_"


def private_names(module: Path) -> Iterator[str]:
    """Yield the private framework names in a module, once per occurrence."""
    tree = tree_of(module)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    beside = [Path(f"{(node.module or '').replace('.', '/')}.py") for node in imports]
    own = own_names(module).union(*(own_names(path) for path in beside if (ROOT / path).exists()))
    if _uses_them(tree):
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom(module=str(path), names=names) if _is_theirs(path):
                    yield from filter(is_private, [*path.split("."), *(alias.name for alias in names)])
                case ast.Import(names=names):
                    for alias in names:
                        if _is_theirs(alias.name):
                            yield from filter(is_private, alias.name.split("."))
                case ast.Attribute(value=value, attr=name) if is_private(name) and name not in own:
                    if not (isinstance(value, ast.Name) and value.id in {"self", "cls", "os", "sys"}):
                        yield name
                case ast.ClassDef():
                    yield from _overridden(node, imports)
                case _:
                    yield from (
                        name
                        for name in _texts(node)
                        if is_private(name) and name not in _OF_PROTOCOL | _OF_PYTHON
                    )
        yield from _patched(tree)


@cache
def own_names(module: Path) -> frozenset[str]:
    """Return the names that a module defines: functions, classes, fields and attributes of `self`."""
    named: set[str] = set()
    for node in ast.walk(tree_of(module)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                named.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                named.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                named.add(name)
    return frozenset(named)


def _is_theirs(path: str) -> bool:
    return path.partition(".")[0] in THEIRS


def _uses_them(tree: ast.Module) -> bool:
    """Return whether a module can hold a framework object, as it imports one or an `internals` module."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(_is_theirs(name) or ".internals" in name for name in names):
            return True
    return False


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the names that a call or subscript gives as a string."""
    match node:
        case ast.Call(func=ast.Name(id=function), args=[_, ast.Constant(value=str(text)), *_]):
            if function in _BY_TEXT:
                yield text
        case ast.Call(func=ast.Attribute(attr=function), args=[ast.Constant(value=str(text)), *_]):
            if function in _BY_KEY:
                yield text
        case ast.Subscript(slice=ast.Constant(value=str(text))):
            yield text


def _overridden(node: ast.ClassDef, imports: list[ast.ImportFrom]) -> Iterator[str]:
    """Yield the private methods of a class that override one of its framework base."""
    sources = {
        alias.asname or alias.name: (item.module or "", alias.name)
        for item in imports
        if _is_theirs(item.module or "")
        for alias in item.names
    }
    for base in node.bases:
        named = ast.unparse(base).partition("[")[0]
        if named in sources:
            module, name = sources[named]
            theirs = getattr(import_module(module), name)
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            yield from (each.name for each in methods if is_private(each.name) and hasattr(theirs, each.name))


def _patched(tree: ast.Module) -> Iterator[str]:
    """Yield the patched names of framework modules and classes, also those held by a loop or mapping."""
    holders = _holders(tree)
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            match target:
                case ast.Subscript(value=ast.Call(func=ast.Name(id="vars"), args=[ast.Name(id=name)])) if (
                    name in holders
                ):
                    yield ast.unparse(target)
                case ast.Attribute(value=ast.Name(id=name)) if name in holders:
                    yield ast.unparse(target)
        match node:
            case ast.Call(
                func=ast.Name(id="setattr" | "delattr"), args=[ast.Name(id=name), ast.expr() as attribute, *_]
            ) if name in holders:
                yield f"{name}.{ast.unparse(attribute)}"


def _holders(tree: ast.Module) -> set[str]:
    """Return the names that refer to framework modules and classes."""
    found = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(path), names=names) if _is_theirs(path):
                found |= {
                    alias.asname or alias.name
                    for alias in names
                    if isinstance(_imported(path, alias.name), type | ModuleType)
                }
            case ast.arg(arg=name, annotation=ast.Subscript(value=ast.Name(id="type"))):
                found.add(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            parts = {
                ast.unparse(part)
                for part in ast.walk(node.iter)
                if isinstance(part, ast.Name | ast.Attribute)
            }
            if parts & found or any(map(_is_theirs, parts)):
                found.add(node.target.id)
    return found


def _imported(path: str, name: str) -> object:
    module = import_module(path)
    return getattr(module, name, None) or import_module(f"{path}.{name}")


if __name__ == "__main__":
    found = exposure()
    for where, what in found:
        sys.stdout.write(f"{where}: {what}\n")
    sys.stdout.write(f"{len(found)}\n")
