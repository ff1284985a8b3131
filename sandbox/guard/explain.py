"""Find, in an error that a program raised, the kernel's denial that the guard had not foreseen."""

import errno
import os
import socket
from collections.abc import Iterator
from types import TracebackType

from sandbox.guard.judge import GuardDenied, name_of, shown
from sandbox.guard.paths import Act, Rules, Verdict, base_of, decide
from sandbox.outcome import Denial

__all__ = ["behind", "explain"]

_DENIALS = (errno.EACCES, errno.EPERM, errno.EROFS)


def explain(error: BaseException, rules: Rules) -> Denial | None:
    """Return the kernel's denial behind `error`, or None if there is none or the guard has told of it.

    Looks through causes, contexts and exception groups, nearest first.
    """
    resolved = rules.resolved()
    for found in behind(error):
        if isinstance(found, OSError) and found.errno in _DENIALS and not isinstance(found, GuardDenied):
            denial = _denied_path(found, resolved) or _denied_network(found, resolved)
            if denial is not None:
                return denial
    return None


def behind(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that stands behind it: causes, contexts, members of groups; nearest first."""
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


def _denied_path(error: OSError, rules: Rules) -> Denial | None:
    for path in map(name_of, (error.filename, error.filename2)):
        base = None if path is None else base_of(path)
        if path is None or base is None:
            continue
        if decide(Act.WRITE, path, base=base, rules=rules) is Verdict.NOT_WRITABLE:
            return Denial(operation="file operation", path=shown(path), layer="kernel")
    return None


def _denied_network(error: OSError, rules: Rules) -> Denial | None:
    # A socket that may not be made or connected names no address, and its error no file.
    if error.filename is not None:
        return None
    if _last_frame(error.__traceback__) == (socket.__file__, "__init__"):
        return Denial(operation="socket.socket", path="", layer="kernel")
    if rules.reach and error.errno == errno.EACCES:
        return Denial(operation="socket.connect", path="", layer="kernel")
    return None


def _last_frame(traceback: TracebackType | None) -> tuple[str, str] | None:
    if traceback is None:
        return None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    return os.path.abspath(code.co_filename), code.co_name
