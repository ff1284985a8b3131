"""Rules on the import of a tool file: it should be quick, print nothing and start no threads.

What only running it can tell, `runner.check.import_watch` has seen in the sandbox.
"""

import ast
import re
from collections.abc import Iterator, Mapping

from runner.check.import_watch import SourceLine, WatchedImport
from runner.check.rules import Finding
from runner.check.source import SourceFile

__all__ = ["SLOW_CODE_S", "SLOW_LIBRARIES_S", "seen_at_import", "waits_at_import"]

SLOW_CODE_S = 1.0
"""Processor time of the file's own top-level code above which its import is slow."""

SLOW_LIBRARIES_S = 3.0
"""Processor time of its import statements above which it is slow; pandas and matplotlib take a third."""

_WAITS = re.compile(
    r"time\.sleep|(requests|httpx)\.(get|post|put|patch|delete|head|request)|urllib\.request\.url(open|retrieve)"
    r"|subprocess\.(run|check_call|check_output|call|getoutput)|os\.system"
)
_LATER = "move it into a tool, or into a function with `functools.cache` that a tool calls"


def waits_at_import(source: SourceFile) -> Iterator[Finding]:
    """Yield what waits for something outside while the file is imported."""
    for node in source.at_import():
        dotted = source.dotted(node.func) if isinstance(node, ast.Call) else None
        if dotted is not None and _WAITS.fullmatch(dotted):
            message = f"`{dotted}` waits while the file is imported: the first call of each user waits for it"
            yield Finding.at(node, "slow-import", message, _LATER)


def seen_at_import(
    watched: WatchedImport, source: SourceFile, file: str, *, threads: int
) -> Iterator[Finding]:
    """Yield what was seen of the import of `file`.

    Args:
        watched: What was seen.
        source: The text of the file.
        file: Its name.
        threads: Threads that were left when it had been imported.
    """
    seconds = {place.line: spent for place, spent in watched.seconds.items() if place.file == file}
    yield from _slow(seconds, _import_lines(source))
    if threads > 1:
        yield from _threads(watched.threads, file, seconds, _import_lines(source))
    for place in watched.printed:
        if place.file == file:
            message = "something here prints to standard output while the file is imported"
            yield _at(place.line, "print-to-stdout", message, "print to `sys.stderr`, or not at all")


def _slow(seconds: Mapping[int, float], imports: set[int]) -> Iterator[Finding]:
    code = {line: spent for line, spent in seconds.items() if line not in imports}
    libraries = {line: spent for line, spent in seconds.items() if line in imports}
    if sum(code.values()) > SLOW_CODE_S:
        message = f"{_took(code)} while the file is imported: the first call of each user waits for it"
        yield _at(_costliest(code), "slow-import", message, _LATER)
    elif sum(libraries.values()) > SLOW_LIBRARIES_S:
        message = f"{_took(libraries)} to import: the first call of each user waits for it"
        cure = "import less of it, or import it in the one tool that needs it"
        yield _at(_costliest(libraries), "slow-import", message, cure)


def _threads(
    places: tuple[SourceLine, ...], file: str, seconds: Mapping[int, float], imports: set[int]
) -> Iterator[Finding]:
    lines = [place.line for place in places if place.file == file]
    follows = "so every call gets an interpreter of its own"
    cure = "start it in the tool that needs it"
    if lines:
        message = f"a thread is started here while the file is imported, {follows}"
        yield _at(min(lines), "threads-at-import", message, cure)
        return
    # Threads that are not Python's leave no trace. Libraries that start some are seldom quick to import.
    libraries = {line: seconds.get(line, 0.0) for line in sorted(imports)}
    message = f"a library that the file imports, most likely this one, starts a thread, {follows}"
    yield _at(_costliest(libraries) if libraries else 1, "threads-at-import", message, cure)


def _import_lines(source: SourceFile) -> set[int]:
    return {
        line
        for node in source.nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _took(seconds: Mapping[int, float]) -> str:
    return f"this takes {seconds[_costliest(seconds)]:.1f} s of processor time"


def _costliest(seconds: Mapping[int, float]) -> int:
    return max(seconds, key=lambda line: seconds[line])


def _at(line: int, rule: str, message: str, cure: str) -> Finding:
    return Finding(rule=rule, line=line, column=1, message=message, cure=cure)
