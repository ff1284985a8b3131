"""Attempts of kind `artifact`: make the host hand out a file that is not the caller's, or choke on one.

Each leaves something treacherous in the home and names it as an artifact. The host then takes it as it takes
the artifacts of a call, through `runner.artifacts.named_file`; the control takes it as a host
does that trusts names.

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
from sandbox.selftest.attempt import Act, ActEvidence, Attempt, AttemptKind, AttemptNeed, Oracle, Surroundings
from sandbox.selftest.calls import call, libc, raised
from sandbox.selftest.life import pulse, wait_until_ready
from sandbox.selftest.world import LIMITS, World

__all__ = ["ARTIFACTS"]

_AT_CWD, _MS_BIND = -100, 4096
_STUCK_S, _SWAP_S = 0.5, 1.0
_MOST_BYTES = LIMITS.file_bytes


def _handed_out(world: World, seen: ActEvidence) -> bytes:
    """Return what the host would pass on to the caller."""
    if not isinstance(seen.claim, str):
        return b""
    return _trusting(Path(seen.claim)) if seen.naive else _collected(seen.claim, world)


def _collected(path: str, world: World) -> bytes:
    try:
        with collect(path, world, max_bytes=_MOST_BYTES) as found:
            return os.read(found.fd, 2 * _MOST_BYTES)
    except CallError:
        return b""


def _trusting(path: Path) -> bytes:
    """Read a file as one does who looks at nothing first; bounded, so that this machine stays whole."""
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
    """Say whether the host waits for somebody who never writes."""
    host = threading.Thread(target=_handed_out, args=(world, seen), daemon=True)
    host.start()
    host.join(_STUCK_S)
    stuck = host.is_alive()
    if stuck:
        os.close(os.open(world.home / "result.txt", os.O_WRONLY | os.O_NONBLOCK))
        host.join()
    return stuck


def _leaked_later(world: World, seen: ActEvidence) -> bool:
    """Give whoever is left of the call the moment that it waits for, then take the artifact."""
    (world.home / "go").touch()
    deadline = time.monotonic() + _SWAP_S
    while world.outlived() and not (world.home / "done").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return _leaked(world, seen)


def _result(place: Surroundings) -> str:
    return f"{place.home}/result.txt"


def _linked(target: Callable[[Surroundings], str]) -> Act:
    """Return an act that names a link to `target`."""

    def act(place: Surroundings) -> str:
        os.symlink(target(place), _result(place))
        return _result(place)

    return act


def _linked_folder(place: Surroundings) -> str:
    os.symlink(place.other, f"{place.home}/folder")
    return f"{place.home}/folder/file.txt"


def _up_from_link(place: Surroundings) -> str:
    """Name a path that is in the home by its text, and elsewhere for the kernel."""
    os.symlink(f"{place.other}/empty", f"{place.home}/folder")
    Path(f"{place.home}/file.txt").write_text("harmless")
    return f"{place.home}/folder/../file.txt"


def _hard_link(place: Surroundings) -> str:
    call("linkat", _AT_CWD, f"{place.other}/file.txt".encode(), _AT_CWD, _result(place).encode(), 0)
    return _result(place)


def _stolen(place: Surroundings) -> str:
    raised("rename", libc.rename(f"{place.other}/file.txt".encode(), _result(place).encode()))
    return _result(place)


def _node(place: Surroundings) -> str:
    call("mknodat", _AT_CWD, _result(place).encode(), stat.S_IFCHR | 0o600, os.makedev(1, 5))
    return _result(place)


def _pipe(place: Surroundings) -> str:
    call("mknodat", _AT_CWD, _result(place).encode(), stat.S_IFIFO | 0o600, 0)
    return _result(place)


def _sparse(place: Surroundings) -> str:
    descriptor = os.open(_result(place), os.O_WRONLY | os.O_CREAT, 0o600)
    raised("ftruncate", libc.ftruncate(descriptor, 64 * _MOST_BYTES))
    return _result(place)


def _mounted(place: Surroundings) -> str:
    os.mkdir(f"{place.home}/folder")
    target = f"{place.home}/folder".encode()
    raised("mount", libc.mount(place.other.encode(), target, None, _MS_BIND, None))
    return f"{place.home}/folder/file.txt"


def _other_home(place: Surroundings) -> str:
    """Put another home in the place of the own one."""
    raised("rename", libc.rename(place.home.encode(), f"{place.home}-away".encode()))
    raised("symlink", libc.symlink(place.other.encode(), place.home.encode()))
    return f"{place.home}/file.txt"


def _swapped(place: Surroundings) -> str:
    """Leave somebody who puts a link in the place of the artifact once the call has ended."""
    Path(_result(place)).write_text("harmless")
    if os.fork() == 0:
        try:
            pulse(place)
            while not os.path.exists(f"{place.home}/go"):
                time.sleep(0.005)
            os.symlink(f"{place.other}/file.txt", f"{place.home}/link")
            os.rename(f"{place.home}/link", _result(place))
            Path(f"{place.home}/done").touch()
        finally:
            os._exit(0)
    wait_until_ready(place)
    return _result(place)


def _name(name: str, technique: str, act: Act, *needs: AttemptNeed, escaped: Oracle = _leaked) -> Attempt:
    return Attempt(
        id=f"artifact-{name}",
        kind=AttemptKind.ARTIFACT,
        technique=technique,
        act=act,
        escaped=escaped,
        needs=needs,
    )


ARTIFACTS: tuple[Attempt, ...] = (
    _name("absolute", "an absolute path outside the home", lambda p: f"{p.other}/file.txt"),
    _name("dots", "a path with ..", lambda p: f"{p.home}/../{Path(p.other).name}/file.txt"),
    _name("link", "a symbolic link to a file", _linked(lambda p: f"{p.other}/file.txt")),
    _name("folder-link", "a symbolic link to a folder", _linked_folder),
    _name("up-from-link", ".. behind a symbolic link", _up_from_link),
    _name("hard-link", "a hard link", _hard_link),
    _name("stolen", "a file moved here from elsewhere", _stolen),
    _name(
        "root-link", "a link through /proc/self/root", _linked(lambda p: f"/proc/self/root{p.other}/file.txt")
    ),
    _name(
        "environ",
        "a link to /proc/PID/environ",
        _linked(lambda p: f"/proc/{p.victim}/environ"),
        AttemptNeed.VICTIM,
    ),
    _name(
        "cwd",
        "a link through /proc/PID/cwd",
        _linked(lambda p: f"/proc/{p.victim}/cwd/file.txt"),
        AttemptNeed.VICTIM,
    ),
    _name(
        "nameless",
        "a link to a file without a name, /proc/PID/fd",
        _linked(lambda p: f"/proc/{p.victim}/fd/{p.descriptor}"),
        AttemptNeed.VICTIM,
    ),
    _name("shared", "a link to POSIX shared memory", _linked(lambda p: p.shared), AttemptNeed.IPC),
    _name("device", "a link to a device without end", _linked(lambda _: "/dev/zero"), escaped=_too_long),
    _name("node", "a device of one's own", _node, escaped=_too_long),
    _name("pipe", "a FIFO, at which a reader waits for ever", _pipe, escaped=_stuck),
    _name("sparse", "a sparse file, longer than an artifact may be", _sparse, escaped=_too_long),
    _name("mount", "a mount in the home", _mounted),
    _name("home", "another folder in the place of the home", _other_home),
    _name("swapped", "a file exchanged after the call", _swapped, escaped=_leaked_later),
)
