"""Attempts of kind `survive`: leave a process or an object in memory after the call has ended.

A surviving process holds a lock in the home, which belongs to the open file that every descendant inherits.

Source: flock(2), fork(2), clone(2), setsid(2), setpgid(2), prctl(2), posix_spawn(3), sysvipc(7),
mq_overview(7), keyctl(2).
"""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable

from sandbox.selftest.attempt import Act, AttemptKind, Judge, Rows, Surroundings, rows
from sandbox.selftest.calls import call, libc, raised
from sandbox.selftest.kernel_objects import KernelObject

__all__ = ["SURVIVING", "pulse", "stay", "wait_until_ready"]

_PR_SET_CHILD_SUBREAPER, _PR_SET_PDEATHSIG = 36, 1
_CLONE_PARENT = 0x8000
_CHAIN_S = 8.0
_STAY_S, _START_S = 60, 5.0


def pulse(place: Surroundings) -> None:
    """Take the lock, and signal that."""
    descriptor = os.open(f"{place.home}/pulse", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    # If nothing kills it, it ends itself.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_STAY_S)
    ready(place)


def ready(place: Surroundings) -> None:
    """End the wait of `wait_until_ready`."""
    os.close(os.open(f"{place.home}/ready", os.O_WRONLY | os.O_CREAT, 0o600))


def live() -> None:
    """Sleep until killed."""
    while True:
        signal.pause()


def stay(place: Surroundings) -> None:
    """Take the lock, and sleep until killed."""
    pulse(place)
    live()


def wait_until_ready(place: Surroundings) -> None:
    """Wait until a descendant has the lock, or has evidently failed to get it."""
    deadline = time.monotonic() + _START_S
    while not os.path.exists(f"{place.home}/ready") and time.monotonic() < deadline:
        time.sleep(0.002)


def _left_in_kernel(kind: KernelObject) -> tuple[Judge, Act]:
    return lambda world, _seen: kind in world.leftovers(), lambda place: kind.make(place.fresh, "0" * 20)


def _left(life: Act, fork: Callable[[], int] = os.fork) -> Callable[[Surroundings], int]:
    """Return an act that leaves a child behind, and answers with its process id."""

    def act(place: Surroundings) -> int:
        pid = fork()
        if pid == 0:
            try:
                life(place)
            finally:
                # End the wait for a child that failed.
                ready(place)
                os._exit(0)
        wait_until_ready(place)
        return pid

    return act


def _then(become: Callable[[], object], life: Act = stay) -> Act:
    def act(place: Surroundings) -> None:
        become()
        life(place)

    return act


def _parents_group(place: Surroundings) -> None:
    """Enter the process group of the parent."""
    group = os.getpgid(os.getppid())
    os.setpgid(_left(stay)(place), group)


def _subreaper(place: Surroundings) -> None:
    raised("prctl", libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    _left(_left(stay))(place)
    live()


def _deaf() -> None:
    """Disable the parent-death signal, and ignore all signals that can be ignored."""
    raised("prctl", libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0))
    signal.pthread_sigmask(signal.SIG_SETMASK, set(signal.Signals))


def _stopped(place: Surroundings) -> None:
    # The signal that the kernel sends to stopped orphans.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    pulse(place)
    while True:
        os.kill(os.getpid(), signal.SIGSTOP)


def _chain(place: Surroundings) -> None:
    """Fork faster than a list of processes can be walked."""
    pulse(place)
    deadline = time.monotonic() + _CHAIN_S
    while time.monotonic() < deadline and os.fork() == 0:
        # Long enough that the machine does not notice.
        time.sleep(0.0005)


def _siblings_clone() -> int:
    return call("clone", _CLONE_PARENT | signal.SIGCHLD, None, None, None, None)


def _clone3() -> int:
    # flags, pidfd, child_tid, parent_tid, exit_signal; all else is zero.
    return call("clone3", struct.pack("=11Q", *(0, 0, 0, 0, signal.SIGCHLD), *(0,) * 6), 88)


def _program(place: Surroundings) -> list[str]:
    # In Python, since flock(1) is not always installed.
    text = (
        "import fcntl,os,time;d=os.open('pulse',66,384);fcntl.flock(d,2);"
        "os.close(os.open('ready',65,384));time.sleep(60)"
    )
    return [sys.executable, "-I", "-S", "-c", f"import os;os.chdir({place.home!r});{text}"]


def _spawned(place: Surroundings) -> None:
    arguments = _program(place)
    os.posix_spawn(arguments[0], arguments, os.environ, setsid=True)
    wait_until_ready(place)


def _started(place: Surroundings) -> None:
    subprocess.Popen(_program(place), start_new_session=True, stdin=subprocess.DEVNULL)
    wait_until_ready(place)


_ROWS: Rows = {
    "fork: fork(2), and stay": _left(stay),
    "orphan: fork(2) twice, and become an orphan": _left(_left(stay)),
    "setsid: setsid(2), a session of one's own": _left(_then(os.setsid)),
    "daemon: setsid(2), then fork(2): a daemon": _left(_then(lambda: call("setsid"), _left(stay))),
    "setpgid: setpgid(2), a group of one's own": _left(_then(lambda: os.setpgid(0, 0))),
    "group: setpgid(2), into the group of the parent's parent": _parents_group,
    "subreaper: prctl(2) PR_SET_CHILD_SUBREAPER, to keep orphans": _left(_subreaper),
    "deaf: prctl(2) PR_SET_PDEATHSIG, and every signal blocked": _left(_then(_deaf)),
    "stopped: SIGSTOP, so that it takes part in nothing": _left(_stopped),
    "chain: a chain of forks, racing the kill": _left(_chain),
    "sibling: clone(2) with CLONE_PARENT": _left(stay, _siblings_clone),
    "clone3": _left(stay, _clone3),
    "spawn: posix_spawn(3) with POSIX_SPAWN_SETSID": _spawned,
    "program: vfork(2) and execve(2) of another program": _started,
    "segment: shmget(2)": _left_in_kernel(KernelObject.SEGMENT),
    "messages: msgget(2)": _left_in_kernel(KernelObject.MESSAGES),
    "semaphore: semget(2)": _left_in_kernel(KernelObject.SEMAPHORE),
    "queue: mq_open(2)": _left_in_kernel(KernelObject.QUEUE),
    "key: add_key(2)": _left_in_kernel(KernelObject.KEY),
    "shared: shm_open(3)": _left_in_kernel(KernelObject.SHARED),
}

SURVIVING = rows(AttemptKind.SURVIVE, lambda world, _seen: world.outlived(), _ROWS)
