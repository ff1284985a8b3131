"""Memory limit of the host and its processes, and the memory left.

The limit is the smallest of this process's control group and its ancestors, in version 1 and 2, or else the
machine's memory. The page cache does not count as used, since the kernel drops it before it kills.

Source: the kernel's cgroup-v2.rst, "Memory Interface Files"; cgroup-v1/memory.rst; proc_meminfo(5).
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from sandbox.layers.cgroup import folders_of

__all__ = ["ServerMemory", "find_server_memory"]

_MIB = 1024 * 1024
_LEAST_RESERVE_BYTES = 32 * _MIB
_MOST_RESERVE_BYTES = 512 * _MIB
_RESERVE_SHARE = 0.05
_VMSTAT = Path("/proc/vmstat")
_LINE = re.compile(r"^(\w+):?\s+(\d+)", re.MULTILINE)
_FILES = {
    2: ("memory.max", "memory.current", "memory.events"),
    1: (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "memory.oom_control",
    ),
}
# In version 1, only fields that begin with "total_" include descendant groups.
_DROPPED = {
    2: ("inactive_file", "active_file", "slab_reclaimable"),
    1: ("total_inactive_file", "total_active_file"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMemory:
    """A memory limit, and the files that show how much of it is used.

    Attributes:
        limit_bytes: The limit.
        group: Folder of the control group that has it; None if it is the machine's memory.
        version: Version of that control group.
        own: Folder of the control group that this process is in, if it is known.
    """

    limit_bytes: int
    group: Path | None = None
    version: int = 2
    own: Path | None = None

    @property
    def whose(self) -> str:
        """Return the owner of the limit in words."""
        return "the machine" if self.group is None else "the server's container or service (control group)"

    @property
    def reserve_bytes(self) -> int:
        """The reserve of the host, beyond its present use."""
        share = int(_RESERVE_SHARE * self.limit_bytes)
        return min(max(share, _LEAST_RESERVE_BYTES), _MOST_RESERVE_BYTES)

    def left_bytes(self) -> int:
        """Return the memory that can still be used before the kernel begins to kill.

        Raises:
            OSError: It cannot be read any more.
        """
        available = int(psutil.virtual_memory().available)
        if self.group is None:
            return available
        used = int((self.group / _FILES[self.version][1]).read_text("ascii"))
        stat = _numbers(self.group / "memory.stat")
        dropped = sum(stat.get(name, 0) for name in _DROPPED[self.version])
        return min(available, self.limit_bytes - max(0, used - dropped))

    def kills(self) -> int:
        """Return the number of our processes that the kernel has killed for lack of memory."""
        with contextlib.suppress(OSError):
            if self.own is not None:
                return _numbers(self.own / _FILES[self.version][2]).get("oom_kill", 0)
            return _numbers(_VMSTAT).get("oom_kill", 0)
        return 0


def find_server_memory(
    groups: str | None = None, mounts: str | None = None, machine_bytes: int | None = None
) -> ServerMemory:
    """Find the limit under which this process runs.

    Args:
        groups: Content of /proc/self/cgroup; read now by default.
        mounts: Content of /proc/self/mountinfo; read now by default.
        machine_bytes: Memory of the machine; read now by default.
    """
    groups = Path("/proc/self/cgroup").read_text() if groups is None else groups
    mounts = Path("/proc/self/mountinfo").read_text() if mounts is None else mounts
    machine_bytes = int(psutil.virtual_memory().total) if machine_bytes is None else machine_bytes
    found = ServerMemory(limit_bytes=machine_bytes)
    for version, own, path in _memory_groups(groups, mounts):
        found = ServerMemory(limit_bytes=found.limit_bytes, group=found.group, version=version, own=own)
        for group in path:
            limit = _limit(group / _FILES[version][0])
            if limit is not None and limit < found.limit_bytes:
                found = ServerMemory(limit_bytes=limit, group=group, version=version, own=own)
    return found


def _memory_groups(groups: str, mounts: str) -> Iterator[tuple[int, Path, tuple[Path, ...]]]:
    """Yield the group that counts our memory, with its visible ancestors, nearest first."""
    for controllers, point, folder in folders_of(groups, mounts):
        version = 2 if not controllers else 1
        has_memory = "memory" in controllers or (folder / _FILES[2][1]).exists()
        # The root of version 2 has no such file, and memory may be counted by version 1.
        above = [each for each in (folder, *folder.parents) if each.is_relative_to(point)]
        if has_memory and (folder / _FILES[version][1]).exists():
            yield version, folder, tuple(above)


def _limit(file: Path) -> int | None:
    try:
        return int(file.read_text("ascii"))
    except (OSError, ValueError):
        # The file is missing, or contains "max".
        return None


def _numbers(file: Path) -> Mapping[str, int]:
    return {name: int(number) for name, number in _LINE.findall(file.read_text("ascii"))}
