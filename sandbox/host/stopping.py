"""Stopping and continuing of a worker: in between, none of its threads executes an instruction.

SIGSTOP stops every thread of a process and cannot be blocked, caught or ignored. Its effect is read from the
kernel, since a thread in an uninterruptible system call stops a moment later. Where another process may
continue it (a kernel without signal scopes, users without a user id of their own), that is detected before
its next call, and the worker is retired.

Source: signal(7), pidfd_send_signal(2).
"""

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Iterable

from sandbox.call_value import call_value
from sandbox.host.process_stat import ProcessStat, read_proc, state_of

__all__ = [
    "STOPPED",
    "WHOLE_GROUP",
    "WorkerFacts",
    "is_at_rest",
    "is_stopped",
    "look",
    "resume_process",
    "stop_process",
    "wait_until_stopped",
]

WHOLE_GROUP = 4
"""Flag of pidfd_send_signal(2): send the signal to the process group that the process leads."""

STOPPED = b"T"
"""State letter of a stopped process or thread."""

_ENDED = (b"Z", b"X")
_RESTING = (STOPPED, *_ENDED)

# Room for seven numbers.
_STATM_BYTES = 256
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@call_value
class WorkerFacts:
    """State of a worker in the kernel, between two calls.

    Attributes:
        state: Its state letter.
        threads: Number of its threads.
        cpu_s: Processor seconds it has used in its life.
        data_bytes: Its private writable memory, stack included.
    """

    state: bytes
    threads: int
    cpu_s: float
    data_bytes: int


def look(pid: int) -> WorkerFacts | None:
    """Return a worker's state from the kernel; None if it has ended.

    A worker whose first thread has ended counts as ended: it serves no call any more, although other threads
    may live on and keep its descriptors open.
    """
    try:
        stat = ProcessStat.of(pid)
        pages = int(read_proc(f"/proc/{pid}/statm", _STATM_BYTES).split()[5])
    except (OSError, IndexError):
        return None
    if stat.state in _ENDED:
        return None
    return WorkerFacts(
        state=stat.state, threads=stat.threads, cpu_s=stat.cpu_s, data_bytes=pages * _PAGE_BYTES
    )


def stop_process(pidfd: int) -> None:
    """Send SIGSTOP to a process and its group; `is_stopped` reports its effect.

    A process cannot escape by forking at this moment: the kernel restarts a fork that a signal to the group
    interrupts.

    Raises:
        OSError: It has ended.
    """
    _signal(pidfd, signal.SIGSTOP)


def resume_process(pidfd: int) -> None:
    """Continue a stopped process and its group.

    Raises:
        OSError: It has ended.
    """
    _signal(pidfd, signal.SIGCONT)


def _signal(pidfd: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number, None, WHOLE_GROUP)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # Linux before 6.9 can signal only the process itself.
        signal.pidfd_send_signal(pidfd, number)


def is_stopped(pid: int) -> bool:
    """Return whether every thread of a process is stopped; False if it has ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        states = (state_of(f"{pid}/task/{thread}") for thread in threads)
        return bool(threads) and all(state == STOPPED for state in states)
    except (OSError, IndexError):
        return False


def is_at_rest(pid: int) -> bool:
    """Return whether no thread of a process executes an instruction, since it is stopped or has ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    return all(_thread_rests(f"{pid}/task/{thread}") for thread in threads)


def _thread_rests(thread: str) -> bool:
    try:
        return state_of(thread) in _RESTING
    except (OSError, IndexError):
        return True


async def wait_until_stopped(
    pid: int, *, timeout_s: float, others: Callable[[], Iterable[int]] = tuple
) -> bool:
    """Wait until every thread of a process is stopped; False if that takes longer than `timeout_s`.

    Args:
        pid: The process.
        timeout_s: How long to wait, in seconds.
        others: Returns the other processes that must be stopped, or have ended, as well.
    """
    clock = asyncio.get_running_loop().time
    deadline, delay_s = clock() + timeout_s, 0.0001
    while not (is_stopped(pid) and all(map(is_at_rest, others()))):
        if clock() >= deadline:
            return False
        await asyncio.sleep(delay_s)
        delay_s = min(2 * delay_s, 0.005)
    return True
