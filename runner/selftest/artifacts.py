"""Attempts of kind `artifact`: make the host return a file that is not the caller's, or block on one.

Each leaves a malicious entry in the home and names it as an artifact. The host then opens it like the
artifacts of a call, through `runner.artifacts.named_file`; the control opens it like a host that trusts
names.

Source: sandbox notes, finding 7; openat2(2), fifo(7), proc_pid_fd(5).
"""

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from runner.artifacts.named_file import collect
from runner.errors import CallError
from runner.formats.database_logs import LogBudget
from sandbox.selftest.attempt import Act, ActEvidence, AttemptKind, Rows, Surroundings, rows
from sandbox.selftest.calls import AT_CWD, call, libc, raised
from sandbox.selftest.surviving import pulse, wait_until_ready
from sandbox.selftest.world import LIMITS, World

__all__ = ["ARTIFACTS"]

_MS_BIND = 4096
_STUCK_S, _SWAP_S = 0.5, 1.0
_MOST_BYTES = LIMITS.file_bytes


def _handed_out(world: World, seen: ActEvidence) -> bytes:
    """Return the bytes that the host would send to the caller."""
    if not isinstance(seen.claim, str):
        return b""
    return _trusting(Path(seen.claim)) if seen.naive else _collected(seen.claim, world)


def _collected(path: str, world: World) -> bytes:
    try:
        with collect(path, world, max_bytes=_MOST_BYTES, logs=LogBudget()) as found:
            return os.read(found.fd, 2 * _MOST_BYTES)
    except CallError:
        return b""


def _trusting(path: Path) -> bytes:
    """Read a file without any check, like a naive host; bounded, to protect this machine."""
    try:
        with path.open("rb") as file:
            return file.read(2 * _MOST_BYTES)
    except OSError:
        return b""


def _leaked(world: World, seen: ActEvidence) -> bool:
    return world.canary.encode() in _handed_out(world, seen)


def _too_long(world: World, seen: ActEvidence) -> bool:
    return len(_handed_out(world, seen)) > _MOST_BYTES


def _stuck(world: World, seen: ActEvidence) -> bool:
    """Return whether the host blocks on a pipe without a writer."""
    host = threading.Thread(target=_handed_out, args=(world, seen), daemon=True)
    host.start()
    host.join(_STUCK_S)
    stuck = host.is_alive()
    if stuck:
        os.close(os.open(world.path / "result.txt", os.O_WRONLY | os.O_NONBLOCK))
        host.join()
    return stuck


def _leaked_later(world: World, seen: ActEvidence) -> bool:
    """Signal the process left by the call, wait for its swap, then open the artifact."""
    (world.path / "go").touch()
    deadline = time.monotonic() + _SWAP_S
    while world.outlived() and not (world.path / "done").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return _leaked(world, seen)


def _result(place: Surroundings) -> str:
    return f"{place.home}/result.txt"


def _linked(target: Callable[[Surroundings], str]) -> Act:
    """Return an act that names a link to `target`."""
    return _made(lambda place, path: os.symlink(target(place), path))


def _linked_folder(place: Surroundings) -> str:
    os.symlink(place.other, f"{place.home}/folder")
    return f"{place.home}/folder/file.txt"


def _up_from_link(place: Surroundings) -> str:
    """Name a path that is in the home by its text, but elsewhere for the kernel."""
    os.symlink(f"{place.other}/empty", f"{place.home}/folder")
    Path(f"{place.home}/file.txt").write_text("harmless")
    return f"{place.home}/folder/../file.txt"


def _made(make: Callable[[Surroundings, str], object]) -> Act:
    """Return an act that creates another entry in place of the result, and names it."""

    def act(place: Surroundings) -> str:
        make(place, _result(place))
        return _result(place)

    return act


def _sparse(_place: Surroundings, path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    raised("ftruncate", libc.ftruncate(descriptor, 64 * _MOST_BYTES))


def _mounted(place: Surroundings) -> str:
    os.mkdir(f"{place.home}/folder")
    target = f"{place.home}/folder".encode()
    raised("mount", libc.mount(place.other.encode(), target, None, _MS_BIND, None))
    return f"{place.home}/folder/file.txt"


def _other_home(place: Surroundings) -> str:
    """Replace the worker's own home with another."""
    raised("rename", libc.rename(place.home.encode(), f"{place.home}-away".encode()))
    raised("symlink", libc.symlink(place.other.encode(), place.home.encode()))
    return f"{place.home}/file.txt"


def _swapped(place: Surroundings, path: str) -> None:
    """Leave a process that replaces the artifact with a link once the call has ended."""
    Path(path).write_text("harmless")
    if os.fork() == 0:
        try:
            pulse(place)
            while not os.path.exists(f"{place.home}/go"):
                time.sleep(0.005)
            os.symlink(place.file, f"{place.home}/link")
            os.rename(f"{place.home}/link", path)
            Path(f"{place.home}/done").touch()
        finally:
            os._exit(0)
    wait_until_ready(place)


_FILES: Rows = {
    "absolute: an absolute path outside the home": lambda p: p.file,
    "dots: a path with ..": lambda p: f"{p.home}/../{Path(p.other).name}/file.txt",
    "link: a symbolic link to a file": _linked(lambda p: p.file),
    "folder-link: a symbolic link to a folder": _linked_folder,
    "up-from-link: .. behind a symbolic link": _up_from_link,
    "hard-link: a hard link": _made(lambda p, path: call("linkat", AT_CWD, p.file, AT_CWD, path, 0)),
    "stolen: a file moved here from elsewhere": _made(
        lambda p, path: raised("rename", libc.rename(p.file.encode(), path.encode()))
    ),
    "root-link: a link through /proc/self/root": _linked(lambda p: f"/proc/self/root{p.file}"),
    "mount: a mount in the home": _mounted,
    "home: another folder replaces the home": _other_home,
    "device: a link to a device without end": (_too_long, _linked(lambda _: "/dev/zero")),
    "node: a device of one's own": (
        _too_long,
        _made(lambda _, path: call("mknodat", AT_CWD, path, stat.S_IFCHR | 0o600, os.makedev(1, 5))),
    ),
    "sparse: a sparse file, longer than an artifact may be": (_too_long, _made(_sparse)),
    "pipe: a FIFO, at which a reader waits for ever": (
        _stuck,
        _made(lambda _, path: call("mknodat", AT_CWD, path, stat.S_IFIFO | 0o600, 0)),
    ),
    "swapped: a file exchanged after the call": (_leaked_later, _made(_swapped)),
    "environ: a link to /proc/PID/environ": _linked(lambda p: f"/proc/{p.victim}/environ"),
    "cwd: a link through /proc/PID/cwd": _linked(lambda p: f"/proc/{p.victim}/cwd/file.txt"),
    "nameless: a link to a file without a name, /proc/PID/fd": _linked(
        lambda p: f"/proc/{p.victim}/fd/{p.descriptor}"
    ),
    "shared: a link to POSIX shared memory": _linked(lambda p: p.shared),
}

ARTIFACTS = rows(AttemptKind.ARTIFACT, _leaked, _FILES)
