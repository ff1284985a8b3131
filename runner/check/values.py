"""What kind of thing an expression of a tool file is, as far as its text tells: a path, a buffer, a file."""

import ast
import enum
from collections.abc import Callable

from runner.check.bindings import LISTING, Bindings
from runner.check.by_type import ByType
from runner.check.source import SourceFile

__all__ = ["OPENERS", "PATHS", "ValueKind", "Values"]

PATHS = frozenset(
    {"pathlib.Path", "pathlib.PosixPath", "pathlib.PurePath", "pathlib.PurePosixPath", "anyio.Path"}
)
OPENERS = frozenset(
    {
        "open",
        "io.open",
        "codecs.open",
        "gzip.open",
        "bz2.open",
        "lzma.open",
        "aiofiles.open",
        "anyio.open_file",
    }
)
_MEMORY = frozenset({"io.BytesIO", "io.StringIO", "tempfile.SpooledTemporaryFile"})
_STREAMS = frozenset({"typing.BinaryIO", "typing.TextIO", "typing.IO"})
_ARCHIVES = frozenset({"zipfile.ZipFile", "tarfile.open", "tarfile.TarFile"})
_STAYS_PATH = LISTING | {
    "resolve", "absolute", "expanduser", "with_suffix", "with_name", "with_stem", "joinpath", "relative_to",
    "rename", "replace",
}  # fmt: skip
_STAYS_TEXT = frozenset({"format", "replace", "join", "strip"})
_PATH_WORDS = ("path", "file", "target", "dest", "out", "folder", "dir")


class ValueKind(enum.Enum):
    """What a value is, where that decides whether a call touches the disk."""

    PATH = "path"
    TEXT = "text"
    MEMORY = "memory"
    FILE = "file"
    ARCHIVE = "archive"


_CALLS = {
    **dict.fromkeys(PATHS | {"pathlib.Path.home", "pathlib.Path.cwd"}, ValueKind.PATH),
    **dict.fromkeys(_MEMORY, ValueKind.MEMORY),
    **dict.fromkeys(OPENERS, ValueKind.FILE),
    **dict.fromkeys(_ARCHIVES, ValueKind.ARCHIVE),
    **dict.fromkeys(("str", "os.fspath"), ValueKind.TEXT),
}


class Values:
    """Answers what kind of thing each expression of one file is."""

    def __init__(self, source: SourceFile, bindings: Bindings) -> None:
        self._source = source
        self._bindings = bindings
        by_type: dict[type[ast.AST], Callable[[ast.AST], ValueKind | None]] = {
            ast.Constant: _of_constant,
            ast.JoinedStr: lambda _: ValueKind.TEXT,
            ast.Await: self._of_inner,
            ast.NamedExpr: self._of_inner,
            ast.IfExp: self._of_choice,
            ast.BoolOp: self._of_choice,
            ast.BinOp: self._of_operation,
            ast.Name: self._of_name,
            ast.Attribute: self._of_attribute,
            ast.Subscript: self._of_subscript,
            ast.Call: self._of_call,
        }
        self._answer = ByType(by_type)

    def kind(self, expression: ast.AST | None) -> ValueKind | None:
        """Return what a value is, or None where the text does not tell."""
        return self._answer(expression)

    def _first(self, expressions: list[ast.expr]) -> ValueKind | None:
        kinds = (self.kind(expression) for expression in expressions)
        return next((kind for kind in kinds if kind is not None), None)

    def _of_inner(self, node: ast.AST) -> ValueKind | None:
        assert isinstance(node, ast.Await | ast.NamedExpr)  # noqa: S101 - by the table
        return self.kind(node.value)

    def _of_choice(self, node: ast.AST) -> ValueKind | None:
        return self._first([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)])

    def _of_operation(self, node: ast.AST) -> ValueKind | None:
        assert isinstance(node, ast.BinOp)  # noqa: S101 - by the table
        kinds = {self.kind(node.left), self.kind(node.right)}
        if isinstance(node.op, ast.Div):
            return ValueKind.PATH if ValueKind.PATH in kinds else None
        return ValueKind.TEXT if isinstance(node.op, ast.Add | ast.Mod) and ValueKind.TEXT in kinds else None

    def _of_name(self, node: ast.AST) -> ValueKind | None:
        assert isinstance(node, ast.Name)  # noqa: S101 - by the table
        if bound := self._bindings.of(node):
            return self._first(bound)
        parameter = self._bindings.parameter(node)
        if parameter is not None and parameter.annotation is not None:
            return self._of_annotation(parameter.annotation, parameter.arg)
        return self._first(self._bindings.passed(node))

    def _of_attribute(self, node: ast.AST) -> ValueKind | None:
        assert isinstance(node, ast.Attribute)  # noqa: S101 - by the table
        if self.kind(node.value) is ValueKind.PATH:
            return ValueKind.PATH if node.attr in ("parent", "parents") else ValueKind.TEXT
        return self._first(self._bindings.of_attribute(node.attr))

    def _of_subscript(self, node: ast.AST) -> ValueKind | None:
        assert isinstance(node, ast.Subscript)  # noqa: S101 - by the table
        return ValueKind.PATH if self.kind(node.value) is ValueKind.PATH else None

    def _of_annotation(self, annotation: ast.AST | None, name: str) -> ValueKind | None:
        dotted = {self._source.dotted(node) for node in ast.walk(annotation)} if annotation else set()
        if dotted & PATHS:
            return ValueKind.PATH
        if dotted & (_MEMORY | _STREAMS):
            return ValueKind.MEMORY
        named = any(word in name.lower() for word in _PATH_WORDS)
        return ValueKind.TEXT if "str" in dotted and named else None

    def _of_call(self, node: ast.AST) -> ValueKind | None:
        assert isinstance(node, ast.Call)  # noqa: S101 - by the table
        dotted = self._source.dotted(node.func) or ""
        if dotted in _CALLS:
            return _CALLS[dotted]
        if dotted.startswith("os.path."):
            return ValueKind.TEXT
        if isinstance(node.func, ast.Attribute):
            return self._of_method(node.func)
        return self._of_returns(node.func.id) if isinstance(node.func, ast.Name) else None

    def _of_method(self, func: ast.Attribute) -> ValueKind | None:
        inner = self.kind(func.value)
        if inner is ValueKind.PATH and func.attr in _STAYS_PATH:
            return ValueKind.PATH
        if inner is ValueKind.PATH and func.attr == "open":
            return ValueKind.FILE
        if inner is ValueKind.ARCHIVE and func.attr in ("open", "extractfile"):
            return ValueKind.MEMORY
        return ValueKind.TEXT if inner is ValueKind.TEXT and func.attr in _STAYS_TEXT else None

    def _of_returns(self, name: str) -> ValueKind | None:
        """Return what a function of the file returns."""
        for function in self._source.functions.get(name, []):
            if function.returns is not None:
                return self._of_annotation(function.returns, function.name)
            returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
            if kind := self._first([value for value in returns if value is not None]):
                return kind
        return None


def _of_constant(node: ast.AST) -> ValueKind | None:
    return ValueKind.TEXT if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
