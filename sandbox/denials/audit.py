"""An audit hook behind the patches: it cannot be removed, and receives events raised by C code.

Events of `shutil.*` and `tempfile.*` are followed by those of the actual operations, so they have no rule.
`os.mkfifo` and `os.mknod` raise no event in Python 3.11 to 3.13.

Source: Python documentation, "Audit events table"; PEP 578.
"""

import os
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from sandbox.denials.judge import GuardDenied, Judge, name_of
from sandbox.denials.paths import Act, act_of_flags, act_of_mode
from sandbox.denials.programs import RUN

__all__ = ["DatabaseDenied", "install"]

Event = tuple[object, ...]


class DatabaseDenied(GuardDenied, sqlite3.OperationalError):
    """`GuardDenied` for callers that expect the error of `sqlite3.connect` for a file it cannot open."""


@dataclass(frozen=True, slots=True)
class _Path:
    """Path argument of an audit event, and the descriptor that it may be relative to."""

    act: Act
    position: int
    dir_fd: int | None


_FILES: dict[str, tuple[_Path, ...]] = {
    "os.mkdir": (_Path(Act.CREATE, 0, 2),),
    "os.symlink": (_Path(Act.CREATE, 1, 2),),
    "os.link": (_Path(Act.CREATE, 1, 3),),
    "os.rename": (_Path(Act.REMOVE, 0, 2), _Path(Act.REPLACE, 1, 3)),
    "os.remove": (_Path(Act.REMOVE, 0, 1),),
    "os.rmdir": (_Path(Act.REMOVE, 0, 1),),
    "os.truncate": (_Path(Act.UPDATE, 0, None),),
}
# Position of the address in each event. The kernel denies the socket; the event names its target.
_ADDRESSES = {"socket.connect": 1, "socket.bind": 1, "socket.sendto": 1, "socket.sendmsg": 1}
# Libraries bind this address to detect IPv6; its denial does not concern the user.
_PROBE_OF_IPV6 = ("::1", 0)
_NAMES = ("socket.getaddrinfo", "socket.gethostbyname")
_PROGRAMS = ("subprocess.Popen", "os.exec", "os.posix_spawn")
_LISTINGS = ("os.listdir", "os.scandir")


def install(judge: Judge) -> None:
    """Add the hook to this process, permanently."""
    rules: dict[str, Callable[[Event], None]] = {
        "open": lambda event: _opened(judge, event),
        "sqlite3.connect": lambda event: _connected_database(judge, event),
    }
    for name, paths in _FILES.items():
        rules[name] = _changed(judge, name, paths)
    for name, position in _ADDRESSES.items():
        rules[name] = _addressed(judge, name, position)
    for name in _NAMES:
        rules[name] = _looked_up(judge, name)
    for name in _LISTINGS:
        rules[name] = _listed(judge, name)
    for name in _PROGRAMS:
        rules[name] = _run(judge)

    def hook(name: str, event: Event) -> None:
        rule = rules.get(name)
        if rule is not None:
            rule(event)

    sys.addaudithook(hook)


def _opened(judge: Judge, event: Event) -> None:
    path, mode, flags = event
    if isinstance(mode, str):
        act: Act | None = act_of_mode(mode)
    else:
        act = act_of_flags(flags) if isinstance(flags, int) else None
    if act is None or (act is Act.READ and judge.is_plain_read(path)) or judge.has_passed(path):
        return
    if mode is None and not os.path.isabs(name_of(path) or ""):
        # Perhaps `os.open` with a `dir_fd`, which the event does not include.
        return
    judge.check("open", act, path)


def _connected_database(judge: Judge, event: Event) -> None:
    name, may_make = _database(event[0])
    if not name or name == ":memory:":
        return
    # SQLite falls back to reading an existing file that is not writable.
    act = Act.READ if not may_make or os.path.exists(name) else Act.WRITE
    judge.check("sqlite3.connect", act, name, error=DatabaseDenied)
    if not judge.may_write(name):
        judge.opened_to_read(name)


def _database(named: object) -> tuple[str | None, bool]:
    """Return the named file, perhaps of a URI, and whether SQLite may create it."""
    name = name_of(named)
    if name is None or not name.startswith("file:"):
        return name, True
    parts = urlsplit(name)
    mode = parse_qs(parts.query).get("mode", ["rwc"])[-1]
    return (None if mode == "memory" else unquote(parts.path)), mode == "rwc"


def _changed(judge: Judge, name: str, paths: tuple[_Path, ...]) -> Callable[[Event], None]:
    def rule(event: Event) -> None:
        for path in paths:
            if not judge.has_passed(event[path.position]):
                dir_fd = None if path.dir_fd is None else event[path.dir_fd]
                # -1 stands for no `dir_fd`.
                judge.check(name, path.act, event[path.position], None if dir_fd == -1 else dir_fd)

    return rule


def _listed(judge: Judge, name: str) -> Callable[[Event], None]:
    def rule(event: Event) -> None:
        folder = name_of(event[0])
        # The interpreter lists every folder it may import from, and handles a denial.
        if folder not in sys.path_importer_cache and not judge.has_passed(folder):
            judge.check(name, Act.READ, folder)

    return rule


def _addressed(judge: Judge, name: str, position: int) -> Callable[[Event], None]:
    def rule(event: Event) -> None:
        if name == "socket.connect" and judge.has_destinations:
            return
        # `sendmsg` on a connected socket names no address.
        if event[position] is None or (name == "socket.bind" and event[position] == _PROBE_OF_IPV6):
            return
        if not judge.may_reach(event[position]):
            judge.report(name, _address(event[position]))

    return rule


def _looked_up(judge: Judge, name: str) -> Callable[[Event], None]:
    def rule(event: Event) -> None:
        host, port = name_of(event[0]), event[1] if len(event) > 1 else None
        number = port if isinstance(port, int) and port else None
        if judge.has_destinations and (host is None or judge.may_look_up(host, number)):
            return
        if not judge.may_reach(event[:1]):
            judge.report(name, _address(event[:2]))

    return rule


def _run(judge: Judge) -> Callable[[Event], None]:
    def rule(event: Event) -> None:
        if not judge.may_run(event[0]):
            judge.report(RUN, name_of(event[0]) or "")

    return rule


def _address(value: object) -> str:
    if not isinstance(value, tuple):
        return name_of(value) or str(value)
    parts = [name_of(part) or str(part) for part in value[:2] if part is not None]
    if parts and ":" in parts[0]:
        parts[0] = f"[{parts[0]}]"
    return ":".join(parts)
