"""The value of an expression in a tool file, as far as it is written there: for facts, such as `meta`."""

import ast
from pathlib import Path
from typing import Any

from runner.check.bindings import Bindings, argument
from runner.check.source import SourceFile
from runner.check.widget_facts import UNKNOWN

__all__ = ["Written"]

_MOST_DEEP = 20


class Written:
    """Reads expressions of one file.

    Args:
        source: The file.
        bindings: What its names stand for.
        folder: Where it lies.
    """

    def __init__(self, source: SourceFile, bindings: Bindings, folder: Path) -> None:
        self._source = source
        self._bindings = bindings
        self._folder = folder

    def value(self, expression: ast.expr | None, deep: int = 0) -> Any:
        """Return what is written: text, numbers, lists, and dicts, with `UNKNOWN` for what is not.

        A dict of which a part is not known has the key `**`.
        """
        inner = self.followed(expression)
        if inner is None or deep > _MOST_DEEP:
            return UNKNOWN
        match inner:
            case ast.Constant(value=str() | int() | float() | None as constant):
                return constant
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self.value(item, deep + 1) for item in items]
            case ast.Dict() | ast.Call(func=ast.Name(id="dict")) | ast.BinOp(op=ast.BitOr()):
                return {key: self.value(item, deep + 1) for key, item in self.entries(inner).items()}
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                texts = [self.value(left, deep + 1), self.value(right, deep + 1)]
                return "".join(texts) if all(isinstance(text, str) for text in texts) else UNKNOWN
            case _:
                return UNKNOWN

    def entries(self, expression: ast.expr | None, deep: int = 0) -> dict[str, ast.expr]:
        """Return the entries of a dict that is written; what is merged into it unseen has the key `**`."""
        inner = self.followed(expression)
        if inner is None or deep > _MOST_DEEP:
            return {}
        match inner:
            case ast.Dict(keys=keys, values=values):
                pairs = list(zip(keys, values, strict=True))
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=words):
                pairs = [(ast.Constant(word.arg) if word.arg else None, word.value) for word in words]
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                pairs = [(None, left), (None, right)]
            case _:
                return {"**": inner}
        found: dict[str, ast.expr] = {}
        for key, value in pairs:
            name = self.value(key) if key is not None else None
            if key is None:
                found |= self.entries(value, deep + 1)
            else:
                found[name if isinstance(name, str) else "**"] = value
        return found

    def at(self, expression: ast.expr, path: tuple[str, ...]) -> ast.expr:
        """Return the entry that a path of keys leads to, or the nearest there is."""
        for key in path:
            inner = self.entries(expression).get(key)
            if inner is None:
                break
            expression = inner
        return expression

    def page(self, expression: ast.expr | None) -> str | None:
        """Return the text that an expression gives: as it is written, or of a file beside this one."""
        if isinstance(text := self.value(expression), str):
            return text
        inner = self.followed(expression)
        match inner:
            case ast.Call(func=ast.Attribute(value=whose, attr="read_text")):
                return self._read(self.path(whose))
            case _:
                return self._read(self.path(inner))

    def path(self, expression: ast.expr | None) -> Path | None:
        """Return the path that an expression gives, if it is one relative to this file."""
        inner = self.followed(expression)
        match inner:
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                folder, name = self.path(left), self.value(right)
                return folder / name if folder is not None and isinstance(name, str) else None
            case (
                ast.Attribute(attr="parent", value=ast.Call(func=ast.Attribute(value=file)))
                | ast.Attribute(attr="parent", value=file)
            ):
                return self._folder if self._is_this_file(file) else None
            case ast.Call(args=[_, *_]) if self._source.dotted(inner.func) == "pathlib.Path":
                name = self.value(argument(inner, 0))
                return self._folder / name if isinstance(name, str) else None
            case _:
                return None

    def followed(self, expression: ast.expr | None) -> ast.expr | None:
        """Return what a name stands for, if it stands for one thing."""
        for _ in range(_MOST_DEEP):
            if not isinstance(expression, ast.Name):
                return expression
            bound = self._bindings.of(expression)
            if len(bound) != 1:
                return None
            expression = bound[0]
        return None

    def _is_this_file(self, expression: ast.expr) -> bool:
        match expression:
            case ast.Call(args=[ast.Name(id="__file__")]):
                return self._source.dotted(expression.func) == "pathlib.Path"
            case _:
                return False

    def _read(self, path: Path | None) -> str | None:
        try:
            return None if path is None else path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None
