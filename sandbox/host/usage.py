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
    "descriptors_of",
    "has_memory_to_spare",
    "has_room",
    "memory_of",
    "oom_kills",
    "processes_below",
    "processes_of",
    "read_process",
    "share_of",
    "socket_bytes",
    "threads_of",
]

_KIB = 1024
_STATUS = re.compile(rb"^(VmRSS|VmSwap|VmPTE|RssAnon|RssShmem|Threads|FDSize):\s*(\d+)", re.MULTILINE)
_SHARES = re.compile(rb"^(?:Swap)?Pss:\s*(\d+) kB$", re.MULTILINE)
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
# Retries for a process whose threads replace each other quickly.
_LOOKS_AT_THREADS = 20

_SPARE_SHARE = 0.1
_MEMINFO = "/proc/meminfo"
_MACHINE = re.compile(rb"^(MemTotal|MemAvailable):\s*(\d+) kB$", re.MULTILINE)
# Memory limit and usage of a control group, in version 2 and 1. In a container they are the container's.
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
        pid: Its process id.
        tasks: Number of its threads, including the first.
        resident_bytes: Memory in use, including shared pages, pages in swap and page tables.
        private_bytes: Anonymous memory in use, including pages shared with its parent, and page tables.
        shared_bytes: Memory in use that it may share with others.
        table_bytes: Page tables; gigabytes of them can belong to a few resident pages.
        descriptor_slots: Upper bound of its open descriptors.
        cpu_s: Processor seconds it has used.
        waited_cpu_s: Processor seconds of its reaped children.
    """

    pid: int
    tasks: int
    resident_bytes: int
    private_bytes: int
    shared_bytes: int
    table_bytes: int
    descriptor_slots: int
    cpu_s: float
    waited_cpu_s: float = 0.0


def processes_of(worker: int, zygote: int) -> Iterator[int]:
    """Yield the processes of a call: the worker, its descendants, and orphans of its group.

    An orphan becomes a child of the zygote, its nearest subreaper, and its group is the worker's for life.
    """
    return processes_below(worker, *_orphans(worker, zygote))


def processes_below(*pids: int) -> Iterator[int]:
    """Yield processes and all their descendants."""
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

    The usual one shows the first thread, and is empty once that has ended, even if other threads live on.
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


def descriptors_of(pid: int) -> tuple[str, list[str]]:
    """Return the folder of a process's descriptors, and their names; its threads share one table."""
    for folder in threads_of(pid):
        # The /proc files of an ended thread belong to root, so only root may read its descriptors.
        with contextlib.suppress(OSError):
            names = os.listdir(f"{folder}/fd")
            if names:
                return folder, names
    return "", []


def read_process(pid: int) -> Process | None:
    """Return a process from `/proc`; None if it has ended."""
    try:
        status = _status_of(pid)
        stat = ProcessStat.of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # A zombie has no memory fields.
    numbers = {name: int(number) * _KIB for name, number in status.items()}
    beside = numbers.get(b"VmSwap", 0) + numbers.get(b"VmPTE", 0)
    return Process(
        pid=pid,
        tasks=int(status.get(b"Threads", 1)),
        resident_bytes=numbers.get(b"VmRSS", 0) + beside,
        private_bytes=numbers.get(b"RssAnon", 0) + beside,
        shared_bytes=numbers.get(b"RssShmem", 0),
        table_bytes=numbers.get(b"VmPTE", 0),
        descriptor_slots=int(status.get(b"FDSize", 0)),
        cpu_s=stat.cpu_s,
        waited_cpu_s=stat.waited_cpu_s,
    )


def memory_of(processes: Iterable[Process], *, interesting_bytes: int, zygote: int) -> int:
    """Return the total memory of processes, shared pages counted once.

    Up to `interesting_bytes` it may be too high, as shared memory counts for each process. Above, it is
    exact, or too low where reading processes of another user id needs CAP_SYS_PTRACE. Then the memory of
    each beyond the zygote's counts, and shared memory once for all. Sockets count as in `socket_bytes`.
    """
    known = tuple(processes)
    resident = sum(process.resident_bytes for process in known)
    if resident + _BUFFER_BYTES * sum(process.descriptor_slots for process in known) <= interesting_bytes:
        return resident
    buffers = socket_bytes(known)
    if resident + buffers <= interesting_bytes:
        return resident + buffers
    try:
        return buffers + sum(share_of(process.pid) + process.table_bytes for process in known)
    except PermissionError:
        origin = read_process(zygote)
        baseline = 0 if origin is None else origin.private_bytes
        private = sum(max(0, process.private_bytes - baseline) for process in known)
        return buffers + private + max(process.shared_bytes for process in known)


def socket_bytes(processes: Iterable[Process]) -> int:
    """Return the default send buffer size times the number of sockets of processes.

    Only the network namespace of a socket shows its memory, and no process counts it. Buffers of TCP can grow
    beyond this size.
    """
    targets: set[str] = set()
    for process in processes:
        # Ended, or not accessible to us.
        with contextlib.suppress(OSError), as_owner_of(process.pid):
            folder, names = descriptors_of(process.pid)
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    targets.add(os.readlink(f"{folder}/fd/{name}"))
    return _BUFFER_BYTES * sum(target.startswith("socket:") for target in targets)


def _send_buffer_bytes() -> int:
    # Only the first network namespace of a machine has this file.
    with contextlib.suppress(OSError, ValueError):
        return int(read_proc("/proc/sys/net/core/wmem_default"))
    return 212_992


# A worker cannot change it: seccomp ignores SO_SNDBUF.
_BUFFER_BYTES = _send_buffer_bytes()


def oom_kills(pid: int) -> int:
    """Return the number of OOM kills in a process's control group.

    It is 0 if this process is in that group too: then the limit is not the other process's own.
    """
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return 0
    if groups == Path("/proc/self/cgroup").read_text():
        return 0
    kills = 0
    for controllers, _mount, folder in cgroup.folders_of(groups, mounts):
        # The group of version 2 has no controllers here.
        if not controllers or "memory" in controllers:
            file = folder / ("memory.oom_control" if controllers else "memory.events")
            with contextlib.suppress(OSError):
                found = _OOM_KILLS.search(file.read_text())
                kills = max(kills, 0 if found is None else int(found[1]))
    return kills


def _status_of(pid: int) -> dict[bytes, bytes]:
    """Return the fields of a process's status, from any thread that still has its memory."""
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
    with contextlib.suppress(OSError):
        for pid in children_of(zygote):
            with contextlib.suppress(ProcessLookupError):
                if pid != worker and os.getpgid(pid) == worker:
                    yield pid


def share_of(pid: int) -> int:
    """Return the proportional set size of a process, swap included, in bytes; 0 if it has ended.

    Raises:
        PermissionError: The kernel denies access to another user id's process.
    """
    refused: PermissionError | None = None
    for folder in threads_of(pid):
        try:
            with as_owner_of(pid):
                return sum(map(int, _SHARES.findall(read_proc(f"{folder}/smaps_rollup")))) * _KIB
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError as error:
            # The files of an ended thread belong to root; give up only if access to every thread is denied.
            refused = error
    if refused is not None:
        raise refused
    return 0
