"""The parsed text of one tool file: names, functions, its tools, resources and prompts, findings.

Names are looked up in the whole file, not scope by scope, and calls are followed by name within the file.

Source: `docs/guide.md`, which explains each rule by an example.
"""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

__all__ = ["RULES", "Finding", "Function", "Offer", "SourceFile", "own_nodes"]

_MUST = (
    "write-without-username", "write-outside-home", "write-at-import", "username-type", "unreadable-path",
    "misspelled-results", "misspelled-key", "widget-mime", "widget-csp-on-tool", "widget-invocation-text",
    "widget-remote-code",
)  # fmt: skip
_SHOULD = (
    "result-for-results", "filename-without-username", "missing-docstring", "unannotated-parameter",
    "print-to-stdout", "silent-loop", "slow-import", "threads-at-import", "store-in-memory",
    "unreturned-file", "widget-visibility",
)  # fmt: skip

RULES = {**dict.fromkeys(_MUST, "must"), **dict.fromkeys(_SHOULD, "should")}
"""Severity of each rule by its id: `must` if the file does not work as written, else `should`."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

_IGNORE = re.compile(r"#\s*runner:\s*ignore\[([\w\-, ]+)\]")
_NOT_IMPORTED = re.compile(r"\b(__name__|TYPE_CHECKING)\b")
_BUILTINS = frozenset(dir(builtins))
_KINDS = {"tool": "tool", "add_tool": "tool", "resource": "resource", "prompt": "prompt"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of a rule by a line of the author's file; line and column count from 1."""

    rule: str
    line: int
    message: str
    cure: str
    column: int = 1

    @classmethod
    def at(cls, node: ast.AST, rule: str, message: str, cure: str) -> "Finding":
        """Return a finding at the position of a node."""
        return cls(rule, getattr(node, "lineno", 1), message, cure, getattr(node, "col_offset", 0) + 1)


class Offer(NamedTuple):
    """One function that clients can reach."""

    kind: str  # `tool`, `resource` or `prompt`.
    name: str  # On the wire, as far as the text defines it.
    function: Function
    has_home: bool  # Whether it is a tool with the parameter of the user's name.


class SourceFile:
    """One parsed file.

    Args:
        text: Its text.
        name: Its name.
        identity: The tools' parameter that receives the user's name.

    Raises:
        SyntaxError: The text is not Python.
        ValueError: The text contains a NUL character.
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

    def without_waived(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return the findings in order, one for each rule and line, without those waived by a comment."""
        found: dict[tuple[int, str], Finding] = {}
        for finding in findings:
            waived = _IGNORE.search("".join(self.lines[finding.line - 1 : finding.line]))
            if waived is None or finding.rule not in map(str.strip, waived[1].split(",")):
                found.setdefault((finding.line, finding.rule), finding)
        return sorted(found.values(), key=lambda finding: (finding.line, finding.column, finding.rule))

    def dotted(self, expression: ast.AST | None) -> str:
        """Return the full name of an imported or built-in object, such as `os.path.join`; else empty."""
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
        """Return every function of the file that `starts` may run: called, mentioned or passed on."""
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
        """Every node that runs when the file is imported, including those of functions called there."""
        nodes = list(own_nodes(self.tree))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        for function in self.reached(*(function for call in calls for function in self.called(call.func))):
            nodes += own_nodes(function)
        return nodes

    @cached_property
    def offers(self) -> list[Offer]:
        """Return the file's components: decorated functions, and those passed to `tool` or `add_tool`."""
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
    """Yield the nodes below `root` that run with it, without the bodies of functions it only defines."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Function) and node is not root:
            waiting += [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif not isinstance(node, ast.Lambda):
            # These blocks do not run on import.
            waiting += [
                child
                for child in ast.iter_child_nodes(node)
                if not (isinstance(child, ast.If) and _NOT_IMPORTED.search(ast.unparse(child.test)))
            ]
