"""The text of a path in a tool file, as far as it is written there, with holes for what only a call knows."""

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.check.bindings import Bindings
from runner.check.by_type import ByType
from runner.check.source import SourceFile
from runner.check.values import PATHS

__all__ = ["HOLE", "USERNAME", "Template", "Templates"]

HOLE = "\0"
USERNAME = "\1"

_FIELD = re.compile(r"%(\(\w+\))?[-#0 +]*\d*(\.\d+)?[a-zA-Z]")
_SAME = frozenset({"str", "os.fspath", "os.path.abspath", "os.path.realpath", "os.path.normpath"})
_JOINS = PATHS | {"os.path.join"}


@dataclass(frozen=True, slots=True)
class Template:
    """A path as it is written.

    Attributes:
        text: Its text; `HOLE` stands for what is not written, `USERNAME` for the user's name.
        node: What it begins with: the literal to change.
    """

    text: str
    node: ast.AST


class Templates:
    """Answers how the paths in one file are written."""

    def __init__(self, source: SourceFile, bindings: Bindings) -> None:
        self._source = source
        self._bindings = bindings
        by_type: dict[type[ast.AST], Callable[[ast.AST], Template | None]] = {
            ast.Constant: _of_constant,
            ast.JoinedStr: self._of_fstring,
            ast.FormattedValue: self._of_inner,
            ast.NamedExpr: self._of_inner,
            ast.BinOp: self._of_operation,
            ast.Name: self._of_name,
            ast.Call: self._of_call,
        }
        self._answer = ByType(by_type)

    def template(self, expression: ast.AST | None) -> Template | None:
        """Return how a path is written, or None if nothing of it stands in the file."""
        return self._answer(expression)

    def _of_fstring(self, node: ast.AST) -> Template | None:
        assert isinstance(node, ast.JoinedStr)  # noqa: S101 - by the table
        return self._pieces(node.values, "", node)

    def _of_inner(self, node: ast.AST) -> Template | None:
        assert isinstance(node, ast.FormattedValue | ast.NamedExpr)  # noqa: S101 - by the table
        return self.template(node.value)

    def _of_operation(self, node: ast.AST) -> Template | None:
        assert isinstance(node, ast.BinOp)  # noqa: S101 - by the table
        if isinstance(node.op, ast.Div):
            return self._pieces([node.left, node.right], "/", node)
        if isinstance(node.op, ast.Add):
            return self._pieces([node.left, node.right], "", node)
        left = self.template(node.left) if isinstance(node.op, ast.Mod) else None
        return Template(_FIELD.sub(HOLE, left.text), left.node) if left is not None else None

    def _of_name(self, node: ast.AST) -> Template | None:
        assert isinstance(node, ast.Name)  # noqa: S101 - by the table
        if node.id == self._source.identity:
            return Template(USERNAME, node)
        bound = self._bindings.of(node) or self._bindings.passed(node)
        value = bound[0] if len(bound) == 1 else None
        return self.template(self._bindings.default(node) if not bound else value)

    def _of_call(self, node: ast.AST) -> Template | None:
        assert isinstance(node, ast.Call)  # noqa: S101 - by the table
        dotted = self._source.dotted(node.func) or ""
        if dotted in _JOINS and node.args:
            return self._pieces(node.args, "/", node)
        if dotted in _SAME and node.args:
            return self.template(node.args[0])
        return self._of_method(node, node.func) if isinstance(node.func, ast.Attribute) else None

    def _of_method(self, call: ast.Call, func: ast.Attribute) -> Template | None:
        if func.attr == "joinpath":
            return self._pieces([func.value, *call.args], "/", call)
        inner = self.template(func.value)
        if inner is None or func.attr in ("resolve", "absolute"):
            return inner
        if func.attr == "format":
            return Template(_formatted(inner.text, self._source.identity), inner.node)
        if func.attr in ("with_suffix", "with_name", "with_stem"):
            return Template(inner.text.rpartition("/")[0] + "/" + HOLE, inner.node)
        return None

    def _pieces(self, parts: Sequence[ast.expr], between: str, whole: ast.expr) -> Template | None:
        found = [self.template(part) for part in parts]
        if between:
            # An absolute part begins anew, as in pathlib and in os.path.join.
            rooted = [n for n, part in enumerate(found) if part is not None and part.text.startswith("/")]
            found = found[rooted[-1] :] if rooted else found
        if all(part is None for part in found):
            return None
        texts = [part.text if part is not None else HOLE for part in found]
        text = "/".join(texts).replace("//", "/") if between else "".join(texts)
        return Template(text, found[0].node if found[0] is not None else whole)


def _of_constant(node: ast.AST) -> Template | None:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return Template(node.value, node) if is_text else None  # type: ignore[attr-defined]


def _formatted(text: str, identity: str) -> str:
    """Return a format string with its fields as holes."""
    head, opening, rest = text.partition("{")
    if not opening:
        return text
    field, _, tail = rest.partition("}")
    return head + (USERNAME if field == identity else HOLE) + _formatted(tail, identity)
