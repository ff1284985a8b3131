"""The text of one tool file, parsed: names, functions, and the tools, resources and prompts it defines.

Names are looked up in the whole file, not scope by scope, and calls are followed by name within the file.
"""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

__all__ = ["Function", "Offer", "SourceFile", "own_nodes"]

Function = ast.FunctionDef | ast.AsyncFunctionDef

_IGNORE = re.compile(r"#\s*runner:\s*ignore\[([\w\-, ]+)\]")
_BUILTINS = frozenset(dir(builtins))
_KINDS = {"tool": "tool", "add_tool": "tool", "resource": "resource", "prompt": "prompt"}


class Offer(NamedTuple):
    """One function that clients can reach."""

    kind: str  # `tool`, `resource` or `prompt`.
    name: str  # On the wire, as far as the text gives it.
    function: Function
    has_home: bool  # Whether it is a tool with the parameter of the user's name.


class SourceFile:
    """One parsed file.

    Args:
        text: Its text.
        name: Its name.
        identity: The parameter of tools that is filled in with the user's name.

    Raises:
        SyntaxError: The text is not Python.
        ValueError: The text holds a NUL character.
    """

    def __init__(self, text: str, *, name: str = "", identity: str = "username") -> None:
        self.name = name
        self.identity = identity
        self.tree = ast.parse(text)
        self.nodes = list(ast.walk(self.tree))
        self.lines = text.splitlines()
        self.classes = {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}
        methods = {item for each in self.classes.values() for item in each.body if isinstance(item, Function)}
        self._methods: dict[str, list[Function]] = {}
        self._functions: dict[str, list[Function]] = {}
        for node in self.nodes:
            if isinstance(node, Function):
                (self._methods if node in methods else self._functions).setdefault(node.name, []).append(node)

    @cached_property
    def imports(self) -> dict[str, str]:
        """Full name of each imported name: `pd` → `pandas`, `Path` → `pathlib.Path`."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    found[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return found

    @property
    def waived(self) -> dict[int, set[str]]:
        """Rules that a comment waives, by line."""
        found = ((number, _IGNORE.search(line)) for number, line in enumerate(self.lines, start=1))
        return {number: {name.strip() for name in match[1].split(",")} for number, match in found if match}

    def dotted(self, expression: ast.AST | None) -> str:
        """Return the full name of something imported or built in, as `os.path.join`; else an empty text."""
        if isinstance(expression, ast.Attribute):
            inner = self.dotted(expression.value)
            return f"{inner}.{expression.attr}" if inner else ""
        name = expression.id if isinstance(expression, ast.Name) else ""
        return self.imports.get(name, name if name in _BUILTINS and name not in self._functions else "")

    def called(self, name: ast.expr) -> list[Function]:
        """Return the functions of the file that an expression may name: `f`, `Class`, `self.method`."""
        if isinstance(name, ast.Attribute):
            is_own = isinstance(name.value, ast.Name) and name.value.id in ("self", "cls")
            return self._methods.get(name.attr, []) if is_own else []
        if not isinstance(name, ast.Name):
            return []
        body = self.classes[name.id].body if name.id in self.classes else []
        return [*self._functions.get(name.id, []), *(item for item in body if isinstance(item, Function))]

    def reached(self, *starts: Function) -> list[Function]:
        """Return every function of the file that may run when some run: called, mentioned or handed on."""
        found: list[Function] = []
        waiting = list(starts)
        while waiting:
            function = waiting.pop(0)
            if function not in found:
                found.append(function)
                for part in ast.walk(function):
                    if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Load):
                        waiting += self.called(part)
        return found

    @cached_property
    def at_import(self) -> list[ast.AST]:
        """Every node that runs when the file is imported, in the functions that are called there, too."""
        nodes = list(own_nodes(self.tree))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        for function in self.reached(*(function for call in calls for function in self.called(call.func))):
            nodes += own_nodes(function)
        return nodes

    @cached_property
    def offers(self) -> list[Offer]:
        """Return the file's components: decorated functions, and those given to `tool` or `add_tool`."""
        offers: dict[tuple[Function, str], Offer] = {}
        for node in self.nodes:
            for registration in node.decorator_list if isinstance(node, Function) else []:
                if kind := self._kind(registration):
                    offers.setdefault((node, kind), self._offer(kind, node, registration))  # type: ignore[arg-type]
            if isinstance(node, ast.Call) and (kind := self._kind(node.func)):
                for part in (part for argument in node.args for part in ast.walk(argument)):
                    named = part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
                    for function in (self._functions.get(named) or self._methods.get(named, []))[-1:]:
                        offers.setdefault((function, kind), self._offer(kind, function, node))
        return sorted(offers.values(), key=lambda offer: offer.function.lineno)

    def _kind(self, expression: ast.AST) -> str | None:
        """Return the kind of component that an expression registers, called or as a decorator: `tool(…)`."""
        while isinstance(expression, ast.Call):
            expression = expression.func
        if isinstance(expression, ast.Attribute):
            return _KINDS.get(expression.attr)
        full = self.dotted(expression)
        return _KINDS.get(full.rpartition(".")[2]) if full.startswith("fastmcp") else None

    def _offer(self, kind: str, function: Function, registration: ast.AST) -> Offer:
        calls = [node for node in ast.walk(registration) if isinstance(node, ast.Call)]
        words = {word.arg: word.value for call in calls for word in call.keywords}
        first = next((call.args[0] for call in calls if call.args), None) if kind == "tool" else None
        name_node = words.get("name", first)
        is_text = isinstance(name_node, ast.Constant) and isinstance(name_node.value, str)
        names = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
        name = name_node.value if is_text else function.name  # type: ignore[union-attr]
        return Offer(kind, name, function, kind == "tool" and self.identity in names)


def own_nodes(root: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below `root` that run with it: not the bodies of functions it only defines."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Function) and node is not root:
            waiting += [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif not isinstance(node, ast.Lambda):
            # No import runs these blocks.
            waiting += [
                child
                for child in ast.iter_child_nodes(node)
                if not (isinstance(child, ast.If) and {"__name__", "TYPE_CHECKING"} & _names_in(child.test))
            ]


def _names_in(expression: ast.AST) -> set[str]:
    return {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(expression)}
