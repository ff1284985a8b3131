"""Usage of a call, from the kernel: its processes, their memory and their time.

Memory of several processes is their proportional set size: what they share counts once. It costs
milliseconds to read, so it is read only if the sum of the resident set sizes, which is never less, is above
the caller's threshold.

Source: proc_pid_status(5), proc_pid_smaps(5); the kernel's filesystems/proc.rst.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sandbox.fsuid import as_owner_of
from sandbox.host import descriptors
from sandbox.host.process_stat import ProcessStat, read_proc
from sandbox.host.worker import children_of
from sandbox.layers import cgroup

__all__ = [
    "Process",
    "has_memory_to_spare",
    "has_room",
    "memory_of",
    "oom_kills",
    "processes_below",
    "processes_of",
    "read_process",
    "share_of",
    "threads_of",
]

_KIB = 1024
_STATUS = re.compile(rb"^(VmRSS|VmSwap|RssAnon|RssShmem|Threads):\s*(\d+)", re.MULTILINE)
_SHARES = re.compile(rb"^(?:Swap)?Pss:\s*(\d+) kB$", re.MULTILINE)
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
# A process whose threads follow each other quickly is looked at again so many times.
_LOOKS_AT_THREADS = 20

_SPARE_SHARE = 0.1
_MEMINFO = "/proc/meminfo"
_MACHINE = re.compile(rb"^(MemTotal|MemAvailable):\s*(\d+) kB$", re.MULTILINE)
# What a group of version 2 and one of version 1 may use, and what it uses. In a container they are its own.
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def has_memory_to_spare() -> bool:
    """Return whether a tenth of the memory is free: of the machine, and of the control group we are in.

    Source: proc_meminfo(5) on MemAvailable; the kernel's admin-guide/cgroup-v2.rst on memory.max.
    """
    machine = {name: int(size) for name, size in _MACHINE.findall(read_proc(_MEMINFO))}
    return machine[b"MemAvailable"] >= _SPARE_SHARE * machine[b"MemTotal"] and all(
        used <= (1 - _SPARE_SHARE) * most for most, used in _group_memory()
    )


def has_room() -> bool:
    """Return whether there are memory and descriptors for spare workers."""
    return has_memory_to_spare() and descriptors.are_plenty()


def _group_memory() -> Iterator[tuple[int, int]]:
    for most, used in _GROUPS:
        try:
            yield int(read_proc(most)), int(read_proc(used))
        except (OSError, ValueError):
            # There may be no such file, or no limit ("max").
            continue


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process, from the world-readable part of `/proc`.

    Attributes:
        pid: Its number.
        tasks: Its threads, the first included.
        resident_bytes: Memory it has in use, shared pages and pages in swap included.
        private_bytes: Anonymous memory of it in use; what it has in common with its parent counts too.
        shared_bytes: Memory that it may share with others, in use.
        cpu_s: Processor seconds it has used.
        waited_cpu_s: Processor seconds that children of it had used when it waited for them.
    """

    pid: int
    tasks: int
    resident_bytes: int
    private_bytes: int
    shared_bytes: int
    cpu_s: float
    waited_cpu_s: float = 0.0


def processes_of(worker: int, zygote: int) -> Iterator[int]:
    """Yield the processes of a call: the worker, its descendants, and orphans of its group.

    An orphan becomes a child of the zygote, its nearest subreaper, and its group is the worker's for life.
    """
    return processes_below(worker, *_orphans(worker, zygote))


def processes_below(*pids: int) -> Iterator[int]:
    """Yield processes, and all that descend from them."""
    pending, seen = [*pids], set[int]()
    while pending:
        pid = pending.pop()
        if pid not in seen:
            seen.add(pid)
            yield pid
            with contextlib.suppress(OSError):
                pending += children_of(pid)


def threads_of(pid: int) -> Iterator[str]:
    """Yield folders of `/proc` that may show the memory and descriptors of a process: the usual one first.

    That one shows the first thread, and nothing more once this has ended, however many others go on.
    """
    yield f"/proc/{pid}"
    for _look in range(_LOOKS_AT_THREADS):
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except (FileNotFoundError, ProcessLookupError):
            return
        others = [thread for thread in threads if thread != str(pid)]
        if not others:
            return
        yield from (f"/proc/{pid}/task/{thread}" for thread in others)


def read_process(pid: int) -> Process | None:
    """Return a process from `/proc`; None if it has ended."""
    try:
        status = _status_of(pid)
        stat = ProcessStat.of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # What has ended and was not waited for yet has no memory left to be told of.
    numbers = {name: int(number) * _KIB for name, number in status.items()}
    return Process(
        pid=pid,
        tasks=int(status.get(b"Threads", 1)),
        resident_bytes=numbers.get(b"VmRSS", 0) + numbers.get(b"VmSwap", 0),
        private_bytes=numbers.get(b"RssAnon", 0) + numbers.get(b"VmSwap", 0),
        shared_bytes=numbers.get(b"RssShmem", 0),
        cpu_s=stat.cpu_s,
        waited_cpu_s=stat.waited_cpu_s,
    )


def memory_of(processes: Iterable[Process], *, interesting_bytes: int, zygote: int) -> int:
    """Return the memory of processes in sum, shared pages counted once.

    Up to `interesting_bytes` it may be too much, as shared memory counts for each; above, it is exact,
    or too little where the kernel does not let us look at another user id's processes: without
    CAP_SYS_PTRACE. There what each has beyond the zygote counts, and shared memory once for all.
    """
    known = tuple(processes)
    resident = sum(process.resident_bytes for process in known)
    if resident <= interesting_bytes:
        return resident
    try:
        return sum(share_of(process.pid) for process in known)
    except PermissionError:
        origin = read_process(zygote)
        baseline = 0 if origin is None else origin.private_bytes
        private = sum(max(0, process.private_bytes - baseline) for process in known)
        return private + max(process.shared_bytes for process in known)


def oom_kills(pid: int) -> int:
    """Return the number of kills for the memory limit of a process's control group.

    None where that group is ours too: its limit is not a limit of that process.
    """
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return 0
    if groups == Path("/proc/self/cgroup").read_text():
        return 0
    files = [_memory_events(folder, kinds) for kinds, _mount, folder in cgroup.folders_of(groups, mounts)]
    return max((_oom_kills_in(file) for file in files if file is not None), default=0)


def _memory_events(folder: Path, controllers: set[str]) -> Path | None:
    """Return the file of a group that counts such deaths, in version 1 or 2; None if another group has it."""
    if not controllers:
        return folder / "memory.events"
    return folder / "memory.oom_control" if "memory" in controllers else None


def _oom_kills_in(file: Path) -> int:
    try:
        found = _OOM_KILLS.search(file.read_text())
    except OSError:
        return 0
    return 0 if found is None else int(found[1])


def _status_of(pid: int) -> dict[bytes, bytes]:
    """Return the status of a process, from any thread that still has its memory."""
    status = dict(_STATUS.findall(read_proc(f"/proc/{pid}/status")))
    if b"VmRSS" in status or int(status.get(b"Threads", 1)) == 1:
        return status
    for folder in threads_of(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            shown = dict(_STATUS.findall(read_proc(f"{folder}/status")))
            if b"VmRSS" in shown:
                return shown
    return status


def _orphans(worker: int, zygote: int) -> Iterator[int]:
    if zygote == worker:
        return
    with contextlib.suppress(OSError):
        for pid in children_of(zygote):
            with contextlib.suppress(ProcessLookupError):
                if pid != worker and os.getpgid(pid) == worker:
                    yield pid


def share_of(pid: int) -> int:
    """Return the proportional set size of a process, swap included, in bytes; 0 if it has ended.

    Raises:
        PermissionError: The kernel does not let us look at another user id's process.
    """
    refused: PermissionError | None = None
    for folder in threads_of(pid):
        try:
            with as_owner_of(pid):
                return sum(map(int, _SHARES.findall(read_proc(f"{folder}/smaps_rollup")))) * _KIB
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError as error:
            # A thread that has ended has no owner any more; only if every one refuses, nothing is known.
            refused = error
    if refused is not None:
        raise refused
    return 0
