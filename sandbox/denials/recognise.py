"""Recognition of kernel denials, which the guard did not predict, in errors of a program."""

import errno
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from sandbox.denials.judge import GuardDenied, name_of, shown
from sandbox.denials.network import denied_network
from sandbox.denials.paths import Act, PathRules, PathVerdict, base_of, decide, is_missing
from sandbox.denials.paths_in_errors import named_paths
from sandbox.denials.programs import denied_program
from sandbox.outcome import Denial

__all__ = ["FILE_OPERATION", "behind", "explain"]

FILE_OPERATION = "file operation"
"""Operation reported for an error that names only the path."""

_DENIALS = (errno.EACCES, errno.EPERM, errno.EROFS)
_READONLY_DATABASE = 8
_PRIMARY_CODE = 0xFF


def explain(error: BaseException, rules: PathRules, *, databases: Sequence[str] = ()) -> Denial | None:
    """Return the kernel's denial behind `error`, or None if there is none or the guard has reported it.

    Causes, contexts and exception groups are searched, nearest first.

    Args:
        error: An error of the program.
        rules: Path rules that explain denials.
        databases: Opened databases that are not writable, in order of opening.
    """
    resolved, chain = rules.resolved(), list(behind(error))
    # An error that wraps a denied connection may name the path of a URL, which is not a file.
    is_network = any(denied_network(found, resolved) is not None for found in chain)
    for found in chain:
        if not isinstance(found, GuardDenied):
            denial = _denial(found, resolved, databases, worded=not is_network)
            if denial is not None:
                return denial
    return None


def behind(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all errors behind it: causes, contexts, members of groups; nearest first."""
    seen: dict[int, BaseException] = {}
    waiting = [error]
    while waiting:
        found = waiting.pop(0)
        if id(found) in seen:
            continue
        seen[id(found)] = found
        yield found
        inner = found.exceptions if isinstance(found, BaseExceptionGroup) else ()
        links = (found.__cause__, found.__context__)
        waiting += [*inner, *(link for link in links if link is not None)]


def _denial(
    error: BaseException, rules: PathRules, databases: Sequence[str], *, worded: bool
) -> Denial | None:
    if isinstance(error, OSError) and error.filename is not None:
        return _denied_by_name(error, rules)
    named = named_paths(error) if worded else ()
    path = _first_outside((each for each in named if _may_be_here(each)), rules)
    if path is not None:
        return path
    if isinstance(error, sqlite3.Error):
        return _of_path(databases[-1]) if databases and _code(error) == _READONLY_DATABASE else None
    return _printable(denied_network(error, rules))


def _may_be_here(path: str) -> bool:
    """Return whether a path is one of this machine: programs such as ssh report those of others."""
    return not is_missing(path, follow=False) or not is_missing(os.path.dirname(path), follow=True)


def _denied_by_name(error: OSError, rules: PathRules) -> Denial | None:
    program = denied_program(error, rules)
    if program is not None or error.errno not in _DENIALS:
        return _printable(program)
    return _first_outside(map(name_of, (error.filename, error.filename2)), rules)


def _first_outside(paths: Iterable[str | None], rules: PathRules) -> Denial | None:
    for path in paths:
        base = None if path is None else base_of(path)
        if path is None or base is None:
            continue
        if decide(Act.WRITE, path, base=base, rules=rules) is PathVerdict.NOT_WRITABLE:
            return _of_path(path)
    return None


def _of_path(path: str) -> Denial:
    return Denial(operation=FILE_OPERATION, path=shown(path), layer="kernel")


def _printable(denial: Denial | None) -> Denial | None:
    return None if denial is None else replace(denial, path=shown(denial.path))


def _code(error: sqlite3.Error) -> int:
    # Errors of the module itself have no code.
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & _PRIMARY_CODE
