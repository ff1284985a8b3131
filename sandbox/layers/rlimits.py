"""Layer `rlimits`: how much memory, processor time, file and descriptors a process may use.

Memory is RLIMIT_DATA, counted from what the process has already. RLIMIT_AS would count address
space that is reserved and never touched (allocators reserve 64 MiB to 1 GiB at a time) and every
library the zygote has mapped, so it kills honest programs long before the limit that it names. It is a whole
number of MiB: V8 takes an eighth of it for its code, and ends its process where that is not a whole number
of pages, as a renderer of Chromium, which says nothing more.

What this layer cannot bound: shared anonymous memory and the sum over several processes, which the host
watches and a cgroup bounds; and the number of processes where users share a user id.

A worker is handed to the host by a message that carries descriptors, and the kernel refuses such messages
to a process once its whole user id has more of them under way than that process may have open. So what
hands over may have more open than a call may: whatever a call sends itself, the next worker gets through.

Source: getrlimit(2), timer_create(2), proc_pid_status(5), unix(7) on ETOOMANYREFS.
"""

import math
import os
import re
import resource
from collections.abc import Mapping
from pathlib import Path

from sandbox.policy import Limits

__all__ = [
    "SPARE_DESCRIPTORS",
    "apply",
    "call_limits",
    "data_bytes",
    "may_raise_limits",
    "narrowed",
    "open_status",
    "renew",
    "resident_bytes",
    "worker_limits",
    "zygote_limits",
]

SPARE_DESCRIPTORS = 8192
"""Descriptors that may be open, beyond what a call may have open, where a worker is handed over. A message
carries up to 253, so thirty processes could send one each past a call's limit at the same moment."""

_KIB = 1024
_MIB = 1024 * _KIB
_CAP_SYS_RESOURCE = 24
_LOCKED_BYTES = 64 * _KIB
# Timers and signals that wait are counted for the user id as a whole, and refused to a process for which they
# are too many. Where the host has the same user id, it may have far more, and so some are always left for it.
_PENDING_SIGNALS = 512
# What Linux gives by default. It is not a part of RLIMIT_DATA, and without a hard limit it grows without end.
_STACK_BYTES = 8192 * _KIB
_STATUS_BYTES = 8192
_VM_DATA = re.compile(rb"^VmData:\s*(\d+) kB$", re.MULTILINE)
_RSS_ANON = re.compile(rb"^RssAnon:\s*(\d+) kB$", re.MULTILINE)

Pairs = Mapping[int, tuple[int, int]]


def apply(limits: Pairs) -> None:
    """Set soft and hard limits.

    A hard limit that is lower already stays, so this never asks for privilege.
    """
    for which, (soft, hard) in limits.items():
        resource.setrlimit(which, narrowed((soft, hard), resource.getrlimit(which)[1]))


def narrowed(wanted: tuple[int, int], present_hard: int) -> tuple[int, int]:
    """Return `wanted` with neither half above the present hard limit."""
    if present_hard == resource.RLIM_INFINITY:
        return wanted
    return min(wanted[0], present_hard), min(wanted[1], present_hard)


def zygote_limits(limits: Limits, *, data: int, counts_processes: bool = False) -> Pairs:
    """Return the limits of a zygote that uses `data` bytes now; its workers inherit them.

    The hard limit of memory leaves room for the load and for a worker's own share on top of it. The
    number of processes is counted by user id and user namespace, so it needs one that is the zygote's own.
    """
    fixed = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files + SPARE_DESCRIPTORS,
        resource.RLIMIT_MEMLOCK: _LOCKED_BYTES,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: _PENDING_SIGNALS,
        # Nobody inside goes before others, whatever the operator's own limits are.
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_STACK: _STACK_BYTES,
    }
    if counts_processes:
        fixed[resource.RLIMIT_NPROC] = limits.processes
    return {
        **{which: (value, value) for which, value in fixed.items()},
        resource.RLIMIT_DATA: (
            _whole_mib(data + limits.memory_bytes),
            _whole_mib(data + 2 * limits.memory_bytes),
        ),
    }


def worker_limits(limits: Limits, *, data: int, renewable: bool = False) -> Pairs:
    """Return the further limits of a worker whose zygote uses `data` bytes.

    Processor time is limited here only: a zygote lives as long as its server.

    Args:
        limits: The limits of its first call.
        data: Bytes of private memory that it has been given.
        renewable: Leave the hard values open, since the host could not raise them again for the next call.
            What the first call then makes of that, the watch sees.
    """
    memory = _whole_mib(data + limits.memory_bytes)
    most = _whole_mib(data + 2 * limits.memory_bytes) if renewable else memory
    return {
        resource.RLIMIT_DATA: (memory, most),
        # One second between SIGXCPU, which Python code may see, and SIGKILL.
        resource.RLIMIT_CPU: (limits.cpu_s, resource.RLIM_INFINITY if renewable else limits.cpu_s + 1),
    }


def call_limits(limits: Limits, *, granted: Limits, renewable: bool = False) -> Pairs:
    """Return the limits of a worker, made within `granted`, for calls that have `limits` of their own."""
    data, most = resource.getrlimit(resource.RLIMIT_DATA)
    cut = granted.memory_bytes - limits.memory_bytes
    # Where the layer was left out there is nothing to count from.
    memory = data if data == resource.RLIM_INFINITY else _whole_mib(data - cut)
    return {
        resource.RLIMIT_DATA: (memory, most if renewable else memory),
        resource.RLIMIT_CPU: (limits.cpu_s, resource.RLIM_INFINITY if renewable else limits.cpu_s + 1),
        resource.RLIMIT_FSIZE: (limits.file_bytes, limits.file_bytes),
        resource.RLIMIT_NOFILE: (limits.open_files, limits.open_files),
    }


def may_raise_limits() -> bool:
    """Return whether this process may raise hard limits: whether it has CAP_SYS_RESOURCE."""
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return effective is not None and bool(int(effective[1], 16) >> _CAP_SYS_RESOURCE & 1)


def renew(pid: int, limits: Limits, *, cpu_s: float, data_bytes: int) -> None:
    """Give a worker that stays the processor time and memory of one more call, from outside or by itself.

    Both are counted over the life of a process, so they are counted again from what it has used. Raising a
    hard value needs CAP_SYS_RESOURCE; a process without it raises its own soft values, as far as the hard
    ones go.

    Args:
        pid: Its process id; 0 for this process.
        limits: The limits of the call.
        cpu_s: Processor seconds it has used in its life.
        data_bytes: Its private writable memory.

    Raises:
        OSError: It has ended.
    """
    seconds, memory = math.ceil(cpu_s) + limits.cpu_s, _whole_mib(data_bytes + limits.memory_bytes)
    for which, soft, hard in (
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_DATA, memory, memory),
    ):
        if pid:
            resource.prlimit(pid, which, (soft, hard))
        else:
            hard_limit = resource.getrlimit(which)[1]
            resource.setrlimit(which, narrowed((soft, hard_limit), hard_limit))


def open_status() -> int:
    """Return a descriptor on this process's status file.

    Landlock hides /proc from what is forked later, and the descriptor still answers.
    """
    return os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)


def data_bytes(status: int) -> int:
    """Return the private writable memory, in bytes, of the process whose status file is `status`."""
    return _bytes(status, "VmData", _VM_DATA)


def resident_bytes(status: int) -> int:
    """Return the resident anonymous memory of a process in bytes."""
    return _bytes(status, "RssAnon", _RSS_ANON)


def _whole_mib(size: int) -> int:
    return -(-size // _MIB) * _MIB


def _bytes(status: int, name: str, pattern: "re.Pattern[bytes]") -> int:
    found = pattern.search(os.pread(status, _STATUS_BYTES, 0))
    if found is None:
        raise OSError(f"the status file on descriptor {status} names no {name}")
    return int(found[1]) * _KIB
