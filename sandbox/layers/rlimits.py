"""Layer `rlimits`: limits of memory, processor time, file size and descriptors of a process.

Memory is RLIMIT_DATA, counted from what the process has already. RLIMIT_AS would count address
space that is reserved and never touched (allocators reserve 64 MiB to 1 GiB at a time) and every
library the zygote has mapped, so it kills honest programs long before its limit is used. The limit is a whole
number of MiB: V8 uses an eighth of it for its code, and ends its process if that is not a whole number
of pages. A Chromium renderer then exits without a message.

This layer cannot bound shared anonymous memory and the sum over several processes, which the host
watches and a cgroup bounds; nor the number of processes if users share a user id.

A worker is handed to the host by a message that carries descriptors. The kernel refuses such a message
(ETOOMANYREFS) if its user id has more descriptors in flight than the sender may have open. So the descriptor
limit is higher during the handover than in a call: messages sent by calls cannot block the next worker.

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
"""Descriptors that may be open during the handover of a worker, beyond the limit of a call. A message
carries up to 253, so thirty processes could each send one past a call's limit at the same moment."""

_KIB = 1024
_MIB = 1024 * _KIB
_CAP_SYS_RESOURCE = 24
_LOCKED_BYTES = 64 * _KIB
# Timers and pending signals count for the whole user id, against the limit of the process that adds one.
# A host with the same user id has a far higher limit, so some are always left for it.
_PENDING_SIGNALS = 512
# The default of Linux. The stack is not part of RLIMIT_DATA, and grows without end without a hard limit.
_STACK_BYTES = 8192 * _KIB
_STATUS_BYTES = 8192
_VM_DATA = re.compile(rb"^VmData:\s*(\d+) kB$", re.MULTILINE)
_RSS_ANON = re.compile(rb"^RssAnon:\s*(\d+) kB$", re.MULTILINE)

Pairs = Mapping[int, tuple[int, int]]


def apply(limits: Pairs) -> None:
    """Set soft and hard limits.

    A hard limit that is already lower stays, so this never needs privilege.
    """
    for which, (soft, hard) in limits.items():
        resource.setrlimit(which, narrowed((soft, hard), resource.getrlimit(which)[1]))


def narrowed(wanted: tuple[int, int], present_hard: int) -> tuple[int, int]:
    """Return `wanted` with both values capped at the present hard limit."""
    if present_hard == resource.RLIM_INFINITY:
        return wanted
    return min(wanted[0], present_hard), min(wanted[1], present_hard)


def zygote_limits(limits: Limits, *, data: int, counts_processes: bool = False) -> Pairs:
    """Return the limits of a zygote that uses `data` bytes now; its workers inherit them.

    The hard limit of memory leaves room for the load and for a worker's own share on top of it. The number
    of processes is counted by user id and user namespace, so the zygote needs one of these of its own.
    """
    fixed = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files + SPARE_DESCRIPTORS,
        resource.RLIMIT_MEMLOCK: _LOCKED_BYTES,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: _PENDING_SIGNALS,
        # No confined process may raise its priority, whatever the operator's own limits are.
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
        data: Bytes of private memory that it has inherited.
        renewable: Whether to leave hard values unset, since the host could not raise them for the next call.
            `CallWatch` detects a call that exploits that.
    """
    memory = _whole_mib(data + limits.memory_bytes)
    most = _whole_mib(data + 2 * limits.memory_bytes) if renewable else memory
    return {
        resource.RLIMIT_DATA: (memory, most),
        # One second between SIGXCPU, which Python code may see, and SIGKILL.
        resource.RLIMIT_CPU: (limits.cpu_s, resource.RLIM_INFINITY if renewable else limits.cpu_s + 1),
    }


def call_limits(limits: Limits, *, granted: Limits, renewable: bool = False) -> Pairs:
    """Return the limits of a worker, created with `granted`, for calls with `limits` of their own."""
    data, most = resource.getrlimit(resource.RLIMIT_DATA)
    cut = granted.memory_bytes - limits.memory_bytes
    # Without a limit in place (layer left out), there is nothing to subtract from.
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
    """Grant a reused worker the processor time and memory of one more call, from outside or by itself.

    Both are counted over the life of a process, so the new limits are added to its usage so far. Raising a
    hard value needs CAP_SYS_RESOURCE; a process without it raises its own soft values, up to the hard ones.

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

    Landlock hides /proc from processes forked later, but the descriptor stays readable.
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
