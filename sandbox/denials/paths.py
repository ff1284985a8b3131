"""Target of a path, and the rules for it. Pure decisions, without side effects.

Paths are resolved as by the kernel: links are followed in every parent component, and in the last component
only for operations that follow it (`open` does, `unlink` does not).

Source: man 7 path_resolution, man 2 open, rename, symlink, unlink.
"""

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sandbox.policy import Policy

__all__ = [
    "DEVICES",
    "Act",
    "PathRules",
    "PathVerdict",
    "act_of_flags",
    "act_of_mode",
    "base_of",
    "decide",
    "folder_of_descriptor",
    "is_missing",
    "is_moot",
    "locate",
]

DEVICES = tuple(Path("/dev") / name for name in ("null", "zero", "full", "random", "urandom"))
"""Device nodes that every worker may write."""


class Act(enum.Enum):
    """Intended operation on a path."""

    READ = "read or list it"
    WRITE = "write it, creating it if need be"
    UPDATE = "change what is there"
    CREATE = "create what is not there"
    REPLACE = "put something in its place"
    REMOVE = "take it away"

    @property
    def follows(self) -> bool:
        """Return whether the kernel follows a link in the last component of the path."""
        return self in (Act.READ, Act.WRITE, Act.UPDATE)


class PathVerdict(enum.Enum):
    """Verdict of the rules on one operation."""

    ALLOWED = "allowed"
    NOT_WRITABLE = "not writable"
    NOT_READABLE = "not readable"
    UNKNOWN = "unknown"
    """The path is not conclusive; the kernel decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRules:
    """Rules of a policy for the guard. Compared with real paths, so use `resolved` once.

    Attributes:
        home: The one folder that may be written, or None.
        homes: Folders that contain the homes of users; below them only `home` may be read.
        readable: Readable paths under `homes`, for example the tool file's folder.
        writable: Writable paths other than the home.
        lent: Those of them that an operator has lent, to be mentioned in messages.
        reach: Network addresses that may be reached.
        net: Further reachable destinations, as `sandbox.network.destinations` parses them.
        programs: Whether other programs may be run.
        run: The only files that may be executed; if empty, all readable ones.
        is_resolved: Whether every link in the paths has been followed; see `resolved`.
    """

    home: Path | None = None
    homes: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = DEVICES
    lent: tuple[Path, ...] = ()
    reach: tuple[tuple[str, int], ...] = ()
    net: tuple[str, ...] = ()
    programs: bool = True
    run: tuple[Path, ...] = ()
    is_resolved: bool = False

    def __post_init__(self) -> None:
        homes = () if self.home is None else (self.home,)
        for path in (*homes, *self.homes, *self.readable, *self.writable):
            if not path.is_absolute():
                raise ValueError(f"rules name absolute paths only, got {str(path)!r}")

    @classmethod
    def of(cls, policy: Policy) -> "PathRules":
        """Return the rules that explain `policy`."""
        scratch = () if policy.scratch is None else (policy.scratch,)
        # Folders of `list_only` may be listed, but their files not read: the kernel decides on these.
        readable = (*policy.read, *policy.list_only, *policy.lent_read, *scratch)
        return cls(
            home=policy.home,
            homes=policy.homes,
            readable=readable,
            writable=(*DEVICES, *policy.lent_write),
            lent=policy.lent_write,
            reach=policy.reach,
            net=policy.net,
            programs=policy.programs,
            run=policy.run,
        )

    @property
    def is_gated(self) -> bool:
        """True if anything of the network may be reached."""
        return bool(self.reach or self.net)

    def resolved(self) -> "PathRules":
        """Return the rules with every link in them resolved; a zygote does it once for its workers."""
        if self.is_resolved:
            return self
        return replace(
            self,
            home=None if self.home is None else _real(self.home),
            homes=tuple(map(_real, self.homes)),
            readable=tuple(map(_real, self.readable)),
            writable=tuple(map(_real, self.writable)),
            is_resolved=True,
        )


def act_of_mode(mode: str) -> Act:
    """Return the effect of `open` with this mode on a path."""
    if "x" in mode:
        return Act.CREATE
    if "w" in mode or "a" in mode:
        return Act.WRITE
    return Act.UPDATE if "+" in mode else Act.READ


def act_of_flags(flags: int) -> Act | None:
    """Return the effect of `os.open` with these flags on a path; None if it only names it."""
    if flags & os.O_PATH:
        return None
    if flags & os.O_CREAT:
        # Without O_EXCL and without writing, only a missing file is created.
        reads = not flags & (os.O_ACCMODE | os.O_TRUNC)
        return Act.CREATE if flags & os.O_EXCL or reads else Act.WRITE
    return Act.UPDATE if flags & (os.O_ACCMODE | os.O_TRUNC) else Act.READ


def folder_of_descriptor(descriptor: int) -> str | None:
    """Return the folder that an open descriptor stands for, or None if that is unknown."""
    try:
        folder = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    return folder if folder.startswith("/") else None


def base_of(
    path: str,
    dir_fd: int | None = None,
    *,
    folder_of: Callable[[int], str | None] = folder_of_descriptor,
) -> str | None:
    """Return the folder from which `path` is resolved, or None if that is unknown."""
    if path.startswith("/"):
        return "/"
    if dir_fd is not None:
        return folder_of(dir_fd)
    try:
        return os.getcwd()
    except OSError:
        return None


def locate(act: Act, path: str, *, base: str) -> str | None:
    """Return the real path that `act` would touch, or None for a string that the kernel rejects as a path."""
    if not _is_path(path):
        return None
    whole = os.path.join(base, path)
    folder, name = os.path.split(whole)
    # A trailing slash or dot makes the kernel follow a link even if it otherwise would not.
    if act.follows or name in ("", ".", ".."):
        return os.path.realpath(whole)
    return os.path.join(os.path.realpath(folder), name)


def decide(act: Act, path: str, *, base: str, rules: PathRules) -> PathVerdict:
    """Return whether the rules let a worker do `act` to `path`, resolved from the folder `base`."""
    real = locate(act, path, base=base)
    if real is None or _is_descriptor(real):
        return PathVerdict.UNKNOWN
    if act is Act.READ:
        named = (*_home(rules), *rules.readable, *rules.writable)
        free = not _below(real, rules.homes) or _below(real, named)
        return PathVerdict.ALLOWED if free else PathVerdict.NOT_READABLE
    # Creating, replacing or removing the home itself takes a right to its parent folder.
    inside = _below(real, _home(rules)) and (act.follows or real != str(rules.home))
    return PathVerdict.ALLOWED if inside or _below(real, rules.writable) else PathVerdict.NOT_WRITABLE


def is_moot(act: Act, path: str, *, base: str) -> bool:
    """Return whether the kernel will refuse `act` with an ordinary error, which honest code may expect.

    `mkdir` of an existing path is `FileExistsError` and removal of a missing one is `FileNotFoundError`,
    wherever it is.
    """
    whole = os.path.join(base, path)
    if act is Act.CREATE:
        return os.path.lexists(whole)
    if act is Act.REMOVE:
        return is_missing(whole, follow=False)
    return act in (Act.READ, Act.UPDATE) and is_missing(whole, follow=True)


def _is_path(text: str) -> bool:
    try:
        return bool(text) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _home(rules: PathRules) -> tuple[Path, ...]:
    return () if rules.home is None else (rules.home,)


def _below(real: str, tops: tuple[Path, ...]) -> bool:
    return any(real == top or real.startswith(top.rstrip("/") + "/") for top in map(str, tops))


def _is_descriptor(real: str) -> bool:
    # Pipes and sockets resolve to names such as /proc/7/fd/pipe:[12], and so does /dev/stdout.
    return real.startswith("/proc/") and "/fd/" in real


def is_missing(path: str, *, follow: bool) -> bool:
    """Return whether a path surely names nothing here; an inaccessible one may name a file."""
    try:
        os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except OSError:
        # An inaccessible path is about to be denied, not reported as missing.
        return False
    return False


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
