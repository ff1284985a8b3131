"""Rules on the import of a tool file, watched in the sandbox: processor time and threads of its top level."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from runner.check.rules import Finding
from runner.check.source import SourceFile

__all__ = ["seen_at_import"]

# Processor time of the file's own top-level code, and of its import statements: pandas takes a third.
_SLOW_CODE_S, _SLOW_LIBRARIES_S = 1.0, 3.0


def seen_at_import(hello: Mapping[str, Any], source: SourceFile, *, threads: int) -> Iterator[Finding]:
    """Yield findings from the report of the watched import.

    Args:
        hello: Report of the program in the sandbox.
        source: The text of the file.
        threads: Threads that were left after the import.

    Raises:
        LookupError, TypeError, ValueError: The report is malformed; only a hostile tool file can cause that.
    """
    watched = hello["watched"]
    seconds = {int(line): float(spent) for line, spent in watched["seconds"]}
    started = [int(line) for line in watched["threads"]]
    imports = {
        line
        for node in source.nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    code = {line: spent for line, spent in seconds.items() if line not in imports}
    libraries = {line: seconds.get(line, 0.0) for line in sorted(imports)}
    if sum(code.values()) > _SLOW_CODE_S:
        cure = "move it into a tool, or into a function with `functools.cache` that a tool calls"
        yield Finding("slow-import", _longest(code), f"{_took(code)} while the file is imported", cure)
    elif sum(libraries.values()) > _SLOW_LIBRARIES_S:
        cure = "import less of it, or import it in the one tool that needs it"
        yield Finding("slow-import", _longest(libraries), f"{_took(libraries)} to import", cure)
    if threads > 1:
        subject, line = "a thread is started here while the file is imported", min(started, default=0)
        if not line:
            # Threads that are not Python's leave no trace. Libraries that start some seldom import fast.
            subject = "a library that the file imports, most likely this one, starts a thread"
            line = _longest(libraries)
        message = f"{subject}, so every call gets an interpreter of its own"
        yield Finding("threads-at-import", line, message, "start it in the tool that needs it")


def _longest(seconds: Mapping[int, float]) -> int:
    return max(seconds, key=lambda line: seconds[line], default=1)


def _took(seconds: Mapping[int, float]) -> str:
    return f"this takes {max(seconds.values()):.1f} s of processor time, for which first calls wait,"
