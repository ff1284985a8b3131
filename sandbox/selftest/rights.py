"""Attempts of kind `tamper` on the kernel: get from it what the process was born without.

Source: namespaces(7), unshare(2), clone(2), setns(2), chroot(2), personality(2), bpf(2), perf_event_open(2),
userfaultfd(2).
"""

import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.selftest.attempt import Attempt, AttemptNeed, Surroundings
from sandbox.selftest.calls import call, libc, raised
from sandbox.selftest.gaining import gain
from sandbox.selftest.world import World

__all__ = ["RIGHTS"]

_CLONE_NEWUSER, _CLONE_NEWNS, _CLONE_NEWUTS = 0x1000_0000, 0x0002_0000, 0x0400_0000
_PR_SET_DUMPABLE = 4
_ADDR_NO_RANDOMIZE = 0x0004_0000


def _has(kind: str) -> Callable[[World, int], bool]:
    """Return what says whether a process has a descriptor of a kind, by the kernel's name for it."""

    def during(_world: World, pid: int) -> bool:
        names = os.listdir(f"/proc/{pid}/fd")
        return any(kind in os.readlink(f"/proc/{pid}/fd/{name}") for name in names)

    return during


def _elsewhere(name: str) -> Callable[[World, int], bool]:
    """Return what says whether a process is in another namespace than the host."""
    return lambda _world, pid: _any_differs(pid, f"ns/{name}")


def _any_differs(pid: int, link: str) -> bool:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    family = [pid, *(int(child) for child in children)]
    return any(os.readlink(f"/proc/{each}/{link}") != os.readlink(f"/proc/self/{link}") for each in family)


def _in_another_root(_world: World, pid: int) -> bool:
    return _any_differs(pid, "root")


def _not_randomised(_world: World, pid: int) -> bool:
    return bool(int(Path(f"/proc/{pid}/personality").read_text(), 16) & _ADDR_NO_RANDOMIZE)


def _hidden(_world: World, pid: int) -> bool:
    return os.getuid() != 0 and os.stat(f"/proc/{pid}/environ").st_uid == 0


def _unshare(place: Surroundings) -> None:
    call("unshare", _CLONE_NEWUSER)
    place.hold()


def _cloned(place: Surroundings, clone: Callable[[], int]) -> None:
    if clone() == 0:
        time.sleep(10)
        os._exit(0)
    place.hold()


def _clone(place: Surroundings) -> None:
    _cloned(place, lambda: call("clone", _CLONE_NEWUSER | signal.SIGCHLD, None, None, None, None))


def _clone3(place: Surroundings) -> None:
    flags = struct.pack("=11Q", _CLONE_NEWUSER, 0, 0, 0, signal.SIGCHLD, *(0,) * 6)
    _cloned(place, lambda: call("clone3", flags, 88))


def _mounts_unshared(place: Surroundings) -> None:
    call("unshare", _CLONE_NEWNS)
    place.hold()


def _setns(place: Surroundings) -> None:
    """Enter a namespace that somebody else has made."""
    read, write = os.pipe()
    if os.fork() == 0:
        call("unshare", _CLONE_NEWUTS)
        os.write(write, b"+")
        time.sleep(10)
        os._exit(0)
    os.close(write)
    if not os.read(read, 1):
        raise PermissionError(1, "no namespace to enter")
    child = int(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[0])
    call("setns", os.pidfd_open(child), _CLONE_NEWUTS)
    place.hold()


def _chroot(place: Surroundings) -> None:
    os.chroot(place.home)
    place.hold()


def _personality(place: Surroundings) -> None:
    call("personality", _ADDR_NO_RANDOMIZE)
    place.hold()


def _undumpable(place: Surroundings) -> None:
    raised("prctl", libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    place.hold()


def _bpf(place: Surroundings) -> None:
    # A map: an array of one number.
    call("bpf", 0, struct.pack("=IIIII", 2, 4, 4, 1, 0).ljust(72, b"\0"), 72)
    place.hold()


def _perf(place: Surroundings) -> None:
    attributes = struct.pack("=IIQ", 1, 112, 1).ljust(40, b"\0") + struct.pack("=Q", 0x61)
    call("perf_event_open", attributes.ljust(112, b"\0"), place.victim, -1, -1, 0)
    place.hold()


def _userfault(place: Surroundings) -> None:
    # Of this process only, which needs no privilege: UFFD_USER_MODE_ONLY.
    call("userfaultfd", 1)
    place.hold()


RIGHTS: tuple[Attempt, ...] = (
    gain("unshare", "unshare(2), a user namespace", _unshare, _elsewhere("user")),
    gain("unshare-mounts", "unshare(2), a mount namespace", _mounts_unshared, _elsewhere("mnt")),
    gain("clone", "clone(2) with CLONE_NEWUSER", _clone, _elsewhere("user")),
    gain("clone3", "clone3(2) with CLONE_NEWUSER", _clone3, _elsewhere("user")),
    gain("setns", "setns(2)", _setns, _elsewhere("uts")),
    gain("chroot", "chroot(2)", _chroot, _in_another_root),
    gain("personality", "personality(2)", _personality, _not_randomised),
    gain("dumpable", "prctl(2) PR_SET_DUMPABLE", _undumpable, _hidden),
    gain("bpf", "bpf(2)", _bpf, _has("bpf-map")),
    gain("perf", "perf_event_open(2)", _perf, _has("perf_event"), AttemptNeed.VICTIM),
    gain("userfault", "userfaultfd(2)", _userfault, _has("userfaultfd")),
)
