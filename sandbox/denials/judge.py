"""Application of the rules to one file operation: it passes, or is reported and raises `GuardDenied`."""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator

from sandbox.denials.network import is_numeric
from sandbox.denials.paths import Act, PathRules, PathVerdict, base_of, decide, is_moot
from sandbox.denials.programs import may_run
from sandbox.network.destinations import Destinations
from sandbox.outcome import Denial

__all__ = ["GuardDenied", "Judge", "name_of", "shown", "wanted_by"]

_MAX_PATH = 4096
_NEVER_MADE = ("os.mkfifo", "os.mknod")
# Libraries read machine properties here, and cope with a denial.
_ASKED = "/sys/"


class GuardDenied(PermissionError):
    """Imminent denial of the kernel, in words; `filename` is the path as written.

    Attributes:
        wants: The right to the path that was missing: `read` or `write`.
    """

    wants: str = ""


class _Thread(threading.local):
    passed: tuple[str, ...] = ()
    reporting: bool = False


class Judge:
    """Decisions for the patches and the audit hook.

    Args:
        rules: Resolved rules.
        report: Called with each denial before it is raised.
        opened_to_read: Called with each opened database that is not writable.
    """

    def __init__(
        self,
        rules: PathRules,
        report: Callable[[Denial], None],
        *,
        opened_to_read: Callable[[str], None] = lambda _database: None,
    ) -> None:
        self._rules = rules
        self._report = report
        self.opened_to_read = opened_to_read
        self._thread = _Thread()
        self._homes = tuple(str(top) for top in rules.homes)
        self._hosts = {host for host, _port in rules.reach}
        self._destinations = Destinations.parse(rules.net)

    def is_plain_read(self, path: object) -> bool:
        """Return, by a few comparisons, whether reading `path` needs no further check.

        A link from elsewhere into a home passes here; the kernel still denies it.
        """
        return (
            type(path) is str
            and path.startswith("/")
            and not path.startswith(self._homes)
            and ".." not in path
        )

    def check(
        self,
        operation: str,
        act: Act,
        path: object,
        dir_fd: object = None,
        *,
        error: type[GuardDenied] = GuardDenied,
    ) -> None:
        """Raise an error if the rules deny `act`; otherwise leave it to the kernel.

        Raises:
            GuardDenied: The kernel is about to deny it.
        """
        name = name_of(path)
        if name is None or self._thread.reporting:
            return
        base = base_of(name, dir_fd if isinstance(dir_fd, int) else None)
        if base is None:
            return
        verdict = decide(act, name, base=base, rules=self._rules)
        if verdict in (PathVerdict.ALLOWED, PathVerdict.UNKNOWN) or is_moot(act, name, base=base):
            return
        # A name relative to a descriptor is meaningless without the folder.
        named = name if dir_fd is None else os.path.join(base, name)
        # The interpreter tries to cache bytecode wherever it imports from, and handles a failure.
        if "__pycache__" not in name:
            self.report(operation, named, wants=wanted_by(act))
        denied = error(errno.EACCES, _sentence(verdict, self._rules), named)
        denied.wants = wanted_by(act)
        raise denied

    def may_reach(self, address: object) -> bool:
        """Return whether a network address, or a host alone, may be reached."""
        match address:
            case (host, int() as port, *_):
                return (host, port) in self._rules.reach
            case (host, *_):
                return host in self._hosts
        return False

    def may_look_up(self, host: str, port: int | None) -> bool:
        """Return whether a name may be looked up, for a port if it is known."""
        return is_numeric(host) or self._destinations.may_look_up(host, port)

    @property
    def has_destinations(self) -> bool:
        """True if the host decides on connections, since only it knows the names of addresses."""
        return bool(self._destinations.all)

    def may_run(self, program: object) -> bool:
        """Return whether a program may be run."""
        name = name_of(program)
        return name is None or may_run(name, self._rules)

    def may_write(self, path: str) -> bool:
        """Return whether a file may be written, judging by its path alone."""
        base = base_of(path)
        verdict = None if base is None else decide(Act.WRITE, path, base=base, rules=self._rules)
        return verdict is not PathVerdict.NOT_WRITABLE

    def found(
        self,
        operation: str,
        error: PermissionError,
        path: object,
        dir_fd: object = None,
        *,
        act: Act | None = None,
    ) -> None:
        """Report an operation that the rules let pass but the kernel has just denied."""
        name = name_of(path)
        base = None if name is None else base_of(name, dir_fd if isinstance(dir_fd, int) else None)
        if name is None or base is None or isinstance(error, GuardDenied) or name.startswith(_ASKED):
            return
        # In the home the file's own mode may be the cause, except for operations that are always denied.
        if operation in _NEVER_MADE or not self.may_write(os.path.join(base, name)):
            named = name if dir_fd is None else os.path.join(base, name)
            self.report(operation, named, layer="kernel", wants=wanted_by(act))

    def report(self, operation: str, path: str, *, layer: str = "guard", wants: str = "") -> None:
        """Report a denial, without raising anything."""
        if self._thread.reporting:
            return
        self._thread.reporting = True
        try:
            self._report(Denial(operation=operation, path=shown(path), layer=layer, wants=wants))
        finally:
            self._thread.reporting = False

    def has_passed(self, path: object) -> bool:
        """Return whether a patch has checked `path` and is now calling the original."""
        return bool(self._thread.passed) and name_of(path) in self._thread.passed

    @contextlib.contextmanager
    def passing(self, *paths: object) -> Iterator[None]:
        """Make the audit hook skip `paths`, which a patch has checked.

        The hook has less information than a patch: it receives neither the `dir_fd` of `os.open` nor
        the `opener` of `open`.
        """
        before = self._thread.passed
        self._thread.passed = tuple(name for name in map(name_of, paths) if name is not None)
        try:
            yield
        finally:
            self._thread.passed = before


def name_of(path: object) -> str | None:
    """Return a path as text, or None for descriptors and other values."""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    return os.fsdecode(path) if isinstance(path, str | bytes) else None


def shown(path: str) -> str:
    """Return `path` in a form to print and send: undecodable bytes escaped, and the length bounded."""
    return path[:_MAX_PATH].encode("utf-8", "backslashreplace").decode("utf-8")


def wanted_by(act: Act | None) -> str:
    """Return the right to a path that an act needs, as in `Denial.wants`."""
    if act is None:
        return ""
    return "read" if act is Act.READ else "write"


def _sentence(verdict: PathVerdict, rules: PathRules) -> str:
    """Return the text for the tool; its beginning is common to all executors."""
    places = [str(path) for path in (rules.home, *rules.lent) if path is not None]
    if places:
        allowed = f"allowed is {', '.join(f'{place}/' for place in places)}"
    elif verdict is PathVerdict.NOT_READABLE:
        allowed = "this call may not read the files of users"
    else:
        allowed = "this call may not write files"
    return f"File operation outside allowed directory: {allowed}"
