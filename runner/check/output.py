"""A rule on standard output: on stdio it carries the protocol, and nobody reads what else is there."""

import ast
from collections.abc import Iterator

from runner.check.rules import Finding
from runner.check.source import Function, SourceFile

__all__ = ["prints"]

_PRINTERS = frozenset({"print", "pprint.pprint", "rich.print", "click.echo", "typer.echo"})
_STREAMS = frozenset(
    {"sys.stdout.write", "sys.stdout.buffer.write", "sys.stdout.writelines", "sys.__stdout__.write"}
)
_HANDLERS = frozenset({"logging.basicConfig", "logging.StreamHandler"})
_ELSEWHERE = frozenset({"file", "stream", "err"})
_MESSAGE = "this prints to standard output, where no caller reads it, and where plain stdio servers speak MCP"
_CURE = "return it, or say it by `ctx.info(…)`, or `print(…, file=sys.stderr)`"


def prints(source: SourceFile, functions: list[Function]) -> Iterator[Finding]:
    """Yield what is printed while the file is imported or a tool runs."""
    nodes = [*source.at_import(), *(node for function in functions for node in ast.walk(function))]
    for node in dict.fromkeys(nodes):
        if isinstance(node, ast.Call) and _prints(source, node):
            yield Finding.at(node, "print-to-stdout", _MESSAGE, _CURE)


def _prints(source: SourceFile, call: ast.Call) -> bool:
    dotted = source.dotted(call.func)
    if dotted in _STREAMS:
        return True
    if dotted in _HANDLERS:
        values = [*call.args, *(word.value for word in call.keywords)]
        return any(source.dotted(value) in ("sys.stdout", "sys.__stdout__") for value in values)
    return dotted in _PRINTERS and not any(_leads_elsewhere(source, word) for word in call.keywords)


def _leads_elsewhere(source: SourceFile, word: ast.keyword) -> bool:
    return word.arg in _ELSEWHERE and source.dotted(word.value) not in ("sys.stdout", "sys.__stdout__")
