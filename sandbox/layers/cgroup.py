"""Layer `cgroup`: total memory and processes of one zygote and all its calls.

A control group is made for each zygote below the group of this process, in version 1 and version 2, if
the folder is writable. In version 2 a group can enable controllers for its children only while it holds
no process itself, so a parent is used that systemd has delegated (`Delegate=yes` with
`DelegateSubgroup=`). systemd leaves it to the owner of the parent to enable its controllers for the groups
below it. Without such a place, totals are not limited: see SECURITY.md.

Source: cgroups(7); the kernel's cgroup-v1/memory.rst, cgroup-v1/pids.rst and cgroup-v2.rst; systemd's
CGROUP_DELEGATION.md.
"""

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.policy import Limits

__all__ = [
    "CgroupPlace",
    "apply",
    "find",
    "folders_of",
    "hand_on_of",
    "limit_files",
    "make",
    "places",
    "remove",
    "sweep",
]

_PREFIX = "toolcell-"
_DELEGATED = ("user.delegate", "trusted.delegate")
# Libraries read these files to choose numbers of threads and sizes of memory.
_LIMITS = (
    "cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.max", "cpu.shares", "cpu.weight",
    "cpuset.cpus", "cpuset.cpus.effective",
    "memory.high", "memory.limit_in_bytes", "memory.max", "memory.swap.max",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupPlace:
    """A folder of control groups in which one can be made.

    Attributes:
        folder: The folder.
        memory: File of the memory limit, in bytes; None if another hierarchy has it.
        swap: File of a limit that covers swap, with the value that allows no swap.
        pids: File of the limit of processes and threads; None if another hierarchy has it.
    """

    folder: Path
    memory: str | None = None
    swap: str | None = None
    pids: str | None = None


def places() -> tuple[CgroupPlace, ...]:
    """Return the places where control groups can be made; empty if memory or pids cannot be limited."""
    return find(*_seen())


def find(groups: str, mounts: str) -> tuple[CgroupPlace, ...]:
    """Return the places where control groups can be made, from lists of groups and mounts in /proc."""
    found = tuple(_places(groups, mounts))
    whole = any(place.memory for place in found) and any(place.pids for place in found)
    return found if whole else ()


def hand_on_of(groups: str, mounts: str, kinds: Collection[str]) -> None:
    """Enable controllers for the groups below a delegated group of version 2; ignore refusals.

    Args:
        groups: The list of groups, as /proc has it.
        mounts: The list of mounts, as /proc has it.
        kinds: Names of controllers, such as `memory`.
    """
    for controllers, _, folder in folders_of(groups, mounts):
        if not controllers and _is_delegated(folder.parent) and not _is_bounded(folder):
            _enable(folder.parent, kinds)


def make(name: str, limits: Limits) -> tuple[Path, ...]:
    """Make a control group with these limits; return its folders, empty if there is no place for it.

    Raises:
        OSError: There is a place, but it could not be used.
    """
    made: list[Path] = []
    groups, mounts = _seen()
    hand_on_of(groups, mounts, ("memory", "pids"))
    for place in find(groups, mounts):
        _forget_left_over(place.folder)
        folder = place.folder / f"{_PREFIX}{name}"
        folder.mkdir()
        made.append(folder)
        for file, value in _values(place, limits):
            (folder / file).write_text(str(value))
    return tuple(made)


def apply(folders: Sequence[Path]) -> None:
    """Move this process into its control group."""
    for folder in folders:
        # 0 is the writing process: in a pid namespace our outer pid is not known.
        (folder / "cgroup.procs").write_text("0")


def limit_files() -> tuple[Path, ...]:
    """Return the files with the limits of this process's groups and their ancestors.

    A library that finds such a file but cannot read it may crash.
    """
    groups, mounts = _seen()
    folders: dict[Path, None] = {}
    for _controllers, point, folder in folders_of(groups, mounts):
        folders |= dict.fromkeys(
            [folder, *(above for above in folder.parents if point in (above, *above.parents))]
        )
    return tuple(folder / name for folder in folders for name in _LIMITS if (folder / name).exists())


def remove(folders: Sequence[Path]) -> None:
    """Remove control groups whose processes have ended."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def sweep() -> None:
    """Remove the control groups of forkservers that were killed before they could."""
    for place in places():
        _forget_left_over(place.folder)


def _seen() -> tuple[str, str]:
    """Return the control groups and the mounts of this process, as /proc lists them."""
    return Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()


def _values(place: CgroupPlace, limits: Limits) -> Iterator[tuple[str, int]]:
    if place.memory:
        yield place.memory, limits.total_memory_bytes
    if place.swap and (place.folder / place.swap).exists():
        yield place.swap, 0 if place.swap == "memory.swap.max" else limits.total_memory_bytes
    if place.pids:
        yield place.pids, limits.processes


def folders_of(groups: str, mounts: str) -> Iterator[tuple[set[str], Path, Path]]:
    """Yield the controllers, mount and folder of each visible control group of a process.

    The controllers of version 2 are empty.

    Args:
        groups: A process's list of groups, as /proc shows it.
        mounts: Its list of mounts.
    """
    mounted = list(_mounts(mounts))
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        for kind, root, point, options in mounted:
            wanted = set(filter(None, controllers.split(",")))
            fits = kind == "cgroup2" if not wanted else kind == "cgroup" and wanted <= options
            below = os.path.relpath(path, root)
            if fits and not below.startswith(".."):
                yield wanted, point, point / below
                break


def _places(groups: str, mounts: str) -> Iterator[CgroupPlace]:
    for controllers, _, folder in folders_of(groups, mounts):
        yield from _at(folder, controllers)


def _at(folder: Path, controllers: set[str]) -> Iterator[CgroupPlace]:
    if not controllers:
        yield from _version_2(folder)
    elif controllers & {"memory", "pids"} and os.access(folder, os.W_OK):
        has_memory = "memory" in controllers
        yield CgroupPlace(
            folder=folder,
            memory="memory.limit_in_bytes" if has_memory else None,
            swap="memory.memsw.limit_in_bytes" if has_memory else None,
            pids="pids.max" if "pids" in controllers else None,
        )


def _version_2(folder: Path) -> Iterator[CgroupPlace]:
    for place in (folder, folder.parent):
        # A group beside this process's own group would escape the limits of that group.
        if place != folder and (not _is_delegated(place) or _is_bounded(folder)):
            return
        try:
            enabled = set((place / "cgroup.subtree_control").read_text().split())
        except OSError:
            return
        if {"memory", "pids"} <= enabled and os.access(place, os.W_OK):
            yield CgroupPlace(folder=place, memory="memory.max", swap="memory.swap.max", pids="pids.max")
            return


def _enable(folder: Path, kinds: Collection[str]) -> None:
    with contextlib.suppress(OSError):
        offered = set((folder / "cgroup.controllers").read_text().split())
        enabled = set((folder / "cgroup.subtree_control").read_text().split())
        for kind in sorted((offered & set(kinds)) - enabled):
            # One write for each, so that a refused controller does not affect the others.
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{kind}")


def _is_bounded(folder: Path) -> bool:
    for name in ("memory.max", "pids.max"):
        with contextlib.suppress(OSError):
            if (folder / name).read_text().strip() != "max":
                return True
    return False


def _is_delegated(folder: Path) -> bool:
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _mounts(text: str) -> Iterator[tuple[str, str, Path, set[str]]]:
    """Yield kind, root, mount point and options of each mounted hierarchy."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            yield kind, fields[3], Path(fields[4]), set(options.split(","))


def _forget_left_over(folder: Path) -> None:
    """Remove the groups of forkservers that were killed before removing them."""
    for group in folder.glob(f"{_PREFIX}*"):
        maker = group.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", maker).exists():
            remove([group])
