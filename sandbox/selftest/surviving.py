"""Attempts of kind `survive`: leave something alive or in memory when the call has ended.

Source: fork(2), clone(2), setsid(2), setpgid(2), prctl(2), posix_spawn(3), sysvipc(7), mq_overview(7),
keyctl(2).
"""

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable

from sandbox.selftest.attempt import Act, AttemptKind, Judge, Rows, Surroundings, rows
from sandbox.selftest.calls import call, libc, raised
from sandbox.selftest.life import live, pulse, ready, stay, wait_until_ready
from sandbox.selftest.planted import KernelObject

__all__ = ["SURVIVING"]

_PR_SET_CHILD_SUBREAPER, _PR_SET_PDEATHSIG = 36, 1
_CLONE_PARENT = 0x8000
_CHAIN_S = 8.0


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
                # Nobody need wait for one that could not become what it wanted to be.
                ready(place)
                os._exit(0)
        wait_until_ready(place)
        return pid

    return act


def _new_session(place: Surroundings) -> None:
    os.setsid()
    stay(place)


def _new_group(place: Surroundings) -> None:
    os.setpgid(0, 0)
    stay(place)


def _raw_session(place: Surroundings) -> None:
    call("setsid")
    _left(stay)(place)


def _parents_group(place: Surroundings) -> None:
    """Enter the group of the process that started this one."""
    group = os.getpgid(os.getppid())
    os.setpgid(_left(stay)(place), group)


def _subreaper(place: Surroundings) -> None:
    raised("prctl", libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    _left(_left(stay))(place)
    live()


def _deaf(place: Surroundings) -> None:
    """Refuse the signal at the death of the parent, and all others that can be refused."""
    raised("prctl", libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0))
    signal.pthread_sigmask(signal.SIG_SETMASK, set(signal.Signals))
    stay(place)


def _stopped(place: Surroundings) -> None:
    # What the kernel sends to stopped orphans.
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
    # flags, pidfd, child_tid, parent_tid, exit_signal, and what else there is: nothing.
    return call("clone3", struct.pack("=11Q", *(0, 0, 0, 0, signal.SIGCHLD), *(0,) * 6), 88)


def _program(place: Surroundings) -> list[str]:
    # Python, for flock(1) is not everywhere.
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
    "setsid: setsid(2), a session of one's own": _left(_new_session),
    "daemon: setsid(2), then fork(2): a daemon": _left(_raw_session),
    "setpgid: setpgid(2), a group of one's own": _left(_new_group),
    "group: setpgid(2), into the group of the parent's parent": _parents_group,
    "subreaper: prctl(2) PR_SET_CHILD_SUBREAPER, to keep orphans": _left(_subreaper),
    "deaf: prctl(2) PR_SET_PDEATHSIG, and every signal blocked": _left(_deaf),
    "stopped: SIGSTOP, so that it takes part in nothing": _left(_stopped),
    "chain: a chain of forks, racing the kill": _left(_chain),
    "sibling: clone(2) with CLONE_PARENT": _left(stay, _siblings_clone),
    "clone3: clone3(2)": _left(stay, _clone3),
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
