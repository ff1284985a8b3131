"""Following of links in a home, as far as they stay in it.

The kernel resolves only paths without links here, each from the home's descriptor. The target of a link is
read from the opened link, and then treated like any other path; so no swap in between leads outside.

Source: openat2(2), symlink(7), path_resolution(7); rule R2 of the conformance cases.
"""

import errno
import os
import posixpath
import stat
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from runner.system.openat import CONFINED, openat2

__all__ = ["open_within"]

_LINKS_MAX = 40
_STEPS_MAX = 4096


def open_within(home_fd: int, home: Path, relative: str) -> int:
    """Resolve `relative` below a home, following links; return an `O_PATH` descriptor.

    Args:
        home_fd: The home's folder.
        home: Its path, below which absolute links may lead.
        relative: A path below the home.

    Raises:
        OSError: `EXDEV` for a path that leads outside, `ELOOP` for too many links, or as `openat2`.
    """
    walk = _Walk(home_fd, home, deque(relative.split("/")))
    for _step in range(_STEPS_MAX):
        if not walk.ahead:
            return walk.open(walk.here)
        walk.step(walk.ahead.popleft())
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)


@dataclass(slots=True)
class _Walk:
    """State of a path walk: the resolved and the remaining names."""

    home_fd: int
    home: Path
    ahead: deque[str]
    here: list[str] = field(default_factory=list)
    links: int = 0

    def open(self, names: list[str]) -> int:
        # O_PATH does not open the file itself: a FIFO cannot block us and a device is not activated.
        path = "/".join(names) or "."
        return openat2(self.home_fd, path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, resolve=CONFINED)

    def step(self, name: str) -> None:
        if name in ("", "."):
            return
        if name == "..":
            if not self.here:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            self.here.pop()
            return
        target = self._target([*self.here, name])
        if target is None:
            self.here.append(name)
        else:
            self._turn(target)

    def _target(self, names: list[str]) -> str | None:
        found = self.open(names)
        try:
            is_link = stat.S_ISLNK(os.fstat(found).st_mode)
            return os.readlink("", dir_fd=found) if is_link else None
        finally:
            os.close(found)

    def _turn(self, target: str) -> None:
        self.links += 1
        if self.links > _LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), target)
        if posixpath.isabs(target):
            # `..` is resolved step by step, as by the kernel; the text decides only on the start of the walk.
            self.here, target = [], self._below(target)
        self.ahead.extendleft(reversed(target.split("/")))

    def _below(self, target: str) -> str:
        """Return an absolute path relative to the home, which it names by its name or by its real path."""
        whole = f"/{target.lstrip('/')}/"
        for top in (f"{self.home}/", os.readlink(f"/proc/self/fd/{self.home_fd}") + "/"):
            if whole.startswith(top):
                return whole.removeprefix(top)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), target)
