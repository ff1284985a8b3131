"""What a file offers over MCP: the functions that are tools, resources and prompts, found in its text."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from runner.check.source import Function, SourceFile

__all__ = ["Offer", "Offers", "is_context"]

_KINDS = {"tool": "tool", "add_tool": "tool", "resource": "resource", "prompt": "prompt"}
_FREE = {
    f"{package}.{kind}": kind
    for kind in ("tool", "resource", "prompt")
    for package in ("fastmcp", f"fastmcp.{kind}s")
}
_SERVERS = frozenset({"FastMCP", "LocalProvider"})
_INJECTED = frozenset(
    {
        "Depends", "Shared", "CurrentAccessToken", "CurrentContext", "CurrentFastMCP", "CurrentHeaders",
        "CurrentRequest", "Progress", "TokenClaim",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One function that clients can reach.

    Attributes:
        kind: `tool`, `resource` or `prompt`.
        name: Its name on the wire, as far as the text says.
        function: Its definition.
        described: Whether the registration gives a description.
        identity: The parameter of tools that is filled in with who calls.
    """

    kind: str
    name: str
    function: Function
    described: bool
    identity: str

    @property
    def parameters(self) -> list[ast.arg]:
        """Its parameters that callers fill in, without `self` and what FastMCP injects."""
        args = self.function.args
        plain = [*args.posonlyargs, *args.args]
        defaults = [*[None] * (len(plain) - len(args.defaults)), *args.defaults]
        pairs = [*zip(plain, defaults, strict=True), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
        return [
            arg
            for arg, default in pairs
            if arg.arg not in ("self", "cls") and not _injected(default) and not is_context(arg.annotation)
        ]

    @property
    def has_home(self) -> bool:
        """Whether it is a tool that is given its user's home."""
        return self.kind == "tool" and self.takes(self.identity)

    def takes(self, name: str) -> bool:
        """Say whether it has a parameter of that name."""
        return any(arg.arg == name for arg in self.parameters)


class Offers:
    """Finds what a file offers."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source

    def found(self) -> list[Offer]:
        """Return what the file offers, in the order of its text."""
        offers: dict[tuple[Function, str], Offer] = {}
        for offer in (*self._decorated(), *self._registered()):
            offers.setdefault((offer.function, offer.kind), offer)
        return sorted(offers.values(), key=lambda offer: offer.function.lineno)

    def _decorated(self) -> Iterator[Offer]:
        for node in self._source.nodes:
            if isinstance(node, Function):
                for decorator in node.decorator_list:
                    if kind := self._kind(decorator):
                        yield self._offer(kind, node, decorator)

    def _registered(self) -> Iterator[Offer]:
        """Yield what calls register: `mcp.tool(f)`, `mcp.tool(name="x")(f)`, `mcp.add_tool(…(f))`."""
        for node in self._source.nodes:
            if isinstance(node, ast.Call) and (kind := self._kind(node.func)):
                for function in self._functions_in(node.args):
                    yield self._offer(kind, function, node)

    def _functions_in(self, arguments: list[ast.expr]) -> Iterator[Function]:
        for argument in arguments:
            if isinstance(argument, ast.Call):
                yield from self._functions_in(argument.args)
            elif isinstance(argument, ast.Name):
                for name in self._loop_names(argument.id):
                    yield from self._source.functions.get(name, [])[-1:]
            elif isinstance(argument, ast.Attribute):
                yield from self._methods(argument)

    def _methods(self, argument: ast.Attribute) -> Iterator[Function]:
        for node in self._source.classes.values():
            yield from (
                item for item in node.body if isinstance(item, Function) and item.name == argument.attr
            )

    def _loop_names(self, name: str) -> list[str]:
        """Return the functions a loop variable stands for, as in `for f in (a, b): mcp.tool(f)`."""
        found = [name]
        for node in self._source.nodes:
            if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and node.target.id == name:
                elements = node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List | ast.Set) else []
                found += [element.id for element in elements if isinstance(element, ast.Name)]
        return found

    def _offer(self, kind: str, function: Function, registration: ast.AST) -> Offer:
        name, described = _named(kind, function, registration)
        identity = self._source.identity
        return Offer(kind=kind, name=name, function=function, described=described, identity=identity)

    def _kind(self, expression: ast.AST) -> str | None:
        """Say what is registered by `expression`, called or used as a decorator."""
        called = expression.func if isinstance(expression, ast.Call) else expression
        if isinstance(called, ast.Attribute):
            return _KINDS.get(called.attr) if self._is_server(called.value) else None
        if isinstance(called, ast.Name):
            return _FREE.get(self._source.dotted(called) or "") or self._aliases.get(called.id)
        return None

    @cached_property
    def _aliases(self) -> dict[str, str]:
        """Names that stand for a registration: `tool = mcp.tool`."""
        return {
            name: _KINDS[value.attr]
            for name, value in self._assigned()
            if isinstance(value, ast.Attribute) and value.attr in _KINDS and self._is_server(value.value)
        }

    def _is_server(self, expression: ast.AST) -> bool:
        if isinstance(expression, ast.Name):
            return expression.id in self._servers or self._is_foreign(expression)
        if isinstance(expression, ast.Attribute):
            return expression.attr in self._servers
        return isinstance(expression, ast.Call) and self._makes_server(expression)

    def _is_foreign(self, name: ast.Name) -> bool:
        """Say whether it comes from a module of the author, where it may well be a server."""
        imported = self._source.imports.get(name.id, "")
        return imported.endswith((".mcp", ".server", ".app")) or (name.id == "mcp" and bool(imported))

    @cached_property
    def _servers(self) -> set[str]:
        """Names of variables, parameters and attributes that hold a server."""
        found = set()
        for node in self._source.nodes:
            if isinstance(node, ast.arg) and self._is_server_type(node.annotation):
                found.add(node.arg)
        assigned = list(self._assigned())
        found |= {
            name for name, value in assigned if isinstance(value, ast.Call) and self._makes_server(value)
        }
        for name, value in assigned:
            if isinstance(value, ast.Name) and value.id in found:
                found.add(name)
        return found

    def _makes_server(self, call: ast.Call) -> bool:
        if self._is_server_type(call.func):
            return True
        called = call.func.id if isinstance(call.func, ast.Name) else ""
        return any(
            self._is_server_type(function.returns) or self._returns_server(function)
            for function in self._source.functions.get(called, [])
        )

    def _returns_server(self, function: Function) -> bool:
        made = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign | ast.Return) and node.value
        ]
        return any(isinstance(value, ast.Call) and self._is_server_type(value.func) for value in made)

    def _is_server_type(self, expression: ast.AST | None) -> bool:
        if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
            return expression.value.rpartition(".")[2] in _SERVERS
        if isinstance(expression, ast.Subscript):
            return self._is_server_type(expression.value)
        if isinstance(expression, ast.Name) and expression.id in self._source.classes:
            return any(self._is_server_type(base) for base in self._source.classes[expression.id].bases)
        return (self._source.dotted(expression) or "").rpartition(".")[2] in _SERVERS

    def _assigned(self) -> Iterator[tuple[str, ast.expr]]:
        for node in self._source.nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        yield target.id, node.value
                    elif isinstance(target, ast.Attribute):
                        yield target.attr, node.value


def is_context(annotation: ast.AST | None) -> bool:
    """Say whether an annotation names FastMCP's Context or Progress, perhaps optional."""
    if annotation is None:
        return False
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(annotation) if isinstance(node, ast.Attribute)}
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(node.value.replace("|", " ").replace(".", " ").split())
    return bool(names & {"Context", "Progress"})


def _injected(default: ast.AST | None) -> bool:
    if not isinstance(default, ast.Call):
        return False
    name = default.func.id if isinstance(default.func, ast.Name) else getattr(default.func, "attr", "")
    return name in _INJECTED


def _named(kind: str, function: Function, registration: ast.AST) -> tuple[str, bool]:
    """Return under which name something is registered, and whether with a description."""
    name, described = function.name, False
    if isinstance(registration, ast.Call):
        words = {word.arg: word.value for word in registration.keywords}
        # `tool(name="x")(f)` and `add_tool(Tool.from_function(f, name="x"))`.
        for inner in (registration.func, *registration.args):
            if isinstance(inner, ast.Call):
                words |= {word.arg: word.value for word in inner.keywords}
        described = "description" in words
        given = words.get("name", registration.args[0] if registration.args and kind == "tool" else None)
        if isinstance(given, ast.Constant) and isinstance(given.value, str):
            name = given.value
    return name, described
