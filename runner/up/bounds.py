"""What bounds a server in sum: a control group where one can be made here, else limits of its processes.

A group bounds memory, processes and processor time of the server and all its calls together. Without one, the
kernel bounds the memory of each process alone, the number of processes only where the server has a user id
of its own, and processor time not at all. `runner ps` says which it is.

Source: cgroups(7); the kernel's cgroup-v1/memory.rst, pids.rst, sched-bwc.rst, cgroup-v2.rst; getrlimit(2).
"""

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.up.plan import Server, ServerLimits
from sandbox.layers.cgroup import folders_of, hand_on, places

__all__ = ["ServerBounds", "group_processes", "kill_group", "memory_of", "prepared", "remove_groups"]

_MIB = 1 << 20
_PERIOD_US = 100_000
_PATIENCE_S = 5.0
_LOOK_S = 0.02
# Not the prefix of pools, whose groups are swept when their forkserver has gone.
_PREFIX = "toolcell_up_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBounds:
    """What bounds one server.

    Attributes:
        groups: Folders of its control group, to be entered.
        rlimits: Limits of its processes, by number.
        said: What bounds memory, processes and cpus: `cgroup`, `rlimit …`, or `nothing`.
    """

    groups: tuple[Path, ...]
    rlimits: Mapping[int, int]
    said: Mapping[str, str]


def prepared(server: Server, mark: str) -> ServerBounds:
    """Make what bounds a server, before it starts. What is left in a group of its name is ended.

    Args:
        server: The server.
        mark: What tells the groups of this installation from those of another.

    Raises:
        OSError: A group can be made here, and could not be set up.
    """
    hand_on(_NAMES)
    found = list(_places())
    if not {"memory", "pids"} <= {kind for _, kinds in found for kind in kinds}:
        return _by_processes(server)
    groups, said = [], dict.fromkeys(("memory", "processes", "cpus"), "nothing")
    for parent, kinds in found:
        folder = parent / f"{_PREFIX}{mark}_{server.segment}"
        _clear(folder)
        folder.mkdir()
        groups.append(folder)
        for file, value in _values(folder, kinds, server.bounds):
            (folder / file).write_text(value)
        said |= {_NAMES[kind]: "cgroup" for kind in kinds}
    return ServerBounds(groups=tuple(groups), rlimits={}, said=_asked(server.bounds, said))


def group_processes(groups: Sequence[Path]) -> list[int]:
    """Return the processes of a control group."""
    found: set[int] = set()
    for folder in groups:
        with contextlib.suppress(OSError):
            found |= set(map(int, (folder / "cgroup.procs").read_text().split()))
    return sorted(found)


def memory_of(groups: Sequence[Path]) -> int | None:
    """Return the bytes of memory that a control group has; None where there is no group."""
    for folder in groups:
        for name in ("memory.current", "memory.usage_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                return int((folder / name).read_text())
    return None


def remove_groups(groups: Sequence[Path]) -> None:
    """Remove a control group whose processes have ended."""
    for folder in groups:
        with contextlib.suppress(OSError):
            folder.rmdir()


def kill_group(groups: Sequence[Path]) -> None:
    """End what is left in a control group: by SIGKILL, until nothing is, for five seconds at most."""
    deadline = time.monotonic() + _PATIENCE_S
    while (left := group_processes(groups)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)


def _clear(folder: Path) -> None:
    if folder.exists():
        kill_group([folder])
        folder.rmdir()


_NAMES = {"memory": "memory", "pids": "processes", "cpu": "cpus"}


def _places() -> Iterator[tuple[Path, frozenset[str]]]:
    """Yield each folder in which a group can be made, with what can be bounded there."""
    version_1: dict[Path, set[str]] = {}
    groups, mounts = Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()
    for controllers, _, folder in folders_of(groups, mounts):
        if controllers & _NAMES.keys():
            version_1.setdefault(folder, set()).update(controllers & _NAMES.keys())
    usable = {place.folder: place for place in places()}
    for folder, place in usable.items():
        if place.memory == "memory.max":
            enabled = set((folder / "cgroup.subtree_control").read_text().split())
            yield folder, frozenset(enabled & _NAMES.keys())
    # The processor has a hierarchy of its own in version 1.
    has_sums = any(folder in usable for folder in version_1)
    for folder, kinds in version_1.items():
        if folder in usable or (has_sums and "cpu" in kinds):
            yield folder, frozenset(kinds)


def _values(folder: Path, kinds: frozenset[str], bounds: ServerLimits) -> Iterator[tuple[str, str]]:
    """Yield the files of a group to write and what; what is not bounded is written as such."""
    second = (folder / "cgroup.controllers").exists()
    memory = None if bounds.memory_mb is None else str(bounds.memory_mb * _MIB)
    if "memory" in kinds and second:
        yield "memory.max", memory or "max"
        if (folder / "memory.swap.max").exists():
            yield "memory.swap.max", "0" if memory else "max"
    elif "memory" in kinds:
        yield "memory.limit_in_bytes", memory or "-1"
    if "pids" in kinds:
        yield "pids.max", "max" if bounds.processes is None else str(bounds.processes)
    if "cpu" in kinds:
        quota = None if bounds.cpus is None else str(max(1000, int(bounds.cpus * _PERIOD_US)))
        if second:
            yield "cpu.max", f"{quota or 'max'} {_PERIOD_US}"
        else:
            yield "cpu.cfs_period_us", str(_PERIOD_US)
            yield "cpu.cfs_quota_us", quota or "-1"


def _by_processes(server: Server) -> ServerBounds:
    rlimits: dict[int, int] = {}
    said = dict.fromkeys(("memory", "processes", "cpus"), "nothing")
    if server.bounds.memory_mb is not None:
        rlimits[resource.RLIMIT_DATA] = server.bounds.memory_mb * _MIB
        said["memory"] = "rlimit of each process"
    # The kernel counts processes by user id: without one of its own, the server would count the operator's.
    if server.bounds.processes is not None and server.uid is not None:
        rlimits[resource.RLIMIT_NPROC] = server.bounds.processes
        said["processes"] = "rlimit of its user id"
    return ServerBounds(groups=(), rlimits=rlimits, said=_asked(server.bounds, said))


def _asked(bounds: ServerLimits, said: Mapping[str, str]) -> dict[str, str]:
    """Return what is said of the bounds that were asked for."""
    wanted = {"memory": bounds.memory_mb, "processes": bounds.processes, "cpus": bounds.cpus}
    return {name: by if wanted[name] is not None else "not asked for" for name, by in said.items()}
