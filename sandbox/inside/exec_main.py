"""Run one command confined, with the standard streams of this process, until it or the host ends.

It is for programs other than our Python code, such as a server on its standard streams. This process stays
outside: it reads the policy, forks, and waits. The child puts the layers of a zygote and of a worker in
place, and only then becomes the command. All processes started by the command are killed with it.
It runs in the folder that its variable `PWD` names, else in its home.

usage: python -m sandbox.inside.exec_main POLICY_FILE HOST_PID PROGRAM [ARGUMENT...]
"""

import contextlib
import json
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sandbox.errors import ConfinementError, in_words
from sandbox.frames import GATE
from sandbox.inside.confine import confine_zygote
from sandbox.inside.reaper import AGAIN_S, Reaper
from sandbox.inside.session import end_session
from sandbox.layers import cgroup, namespaces, oom
from sandbox.layers.privileges import adopt_orphans
from sandbox.layers.proc import own_folder
from sandbox.policy import Policy

__all__ = ["main"]

NOT_CONFINED = 125
NOT_RUN = 127
SIGNALLED = 128
DYING_S = 10


def main() -> None:
    """Run the command named by the arguments, and exit with its status."""
    file, host, command = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    policy = Policy.from_json(json.loads(file.read_text()))
    # The environment in it may contain keys.
    file.unlink()
    ended = os.pidfd_open(host)
    adopt_orphans()
    with contextlib.suppress(OSError):
        oom.offer(oom.STARTS_OTHERS)
    wake, woken = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: os.write(woken, b"."))
    reaper = Reaper()
    parent = os.getpid()
    ours, theirs = socket.socketpair()
    own_users = policy.namespaces and namespaces.needs_user_namespace()
    child, cgroups = _fork(policy, own_users=own_users)
    if child == 0:
        reaper.forget()
        ours.close()
        _become(policy, command, 0 if policy.namespaces else parent, theirs, cgroups, own_users=own_users)
    theirs.close()
    if not policy.namespaces:
        # Never closed: the kernel keeps the inode while it is open, and the rule on its files refers to it.
        os.open(own_folder(child), os.O_PATH | os.O_CLOEXEC)
    if policy.is_gated:
        from sandbox.inside import exec_gate  # noqa: PLC0415 - half of the start, where there is no gate

        # After the fork: a process that forks must have a single thread.
        exec_gate.serve_in_a_thread(ours, policy)
    # The streams belong to the child alone: their reader must see end of file when it exits.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    status = _wait(child, reaper, (ended, wake))
    cgroup.remove(cgroups)
    code = os.waitstatus_to_exitcode(status)
    # As a shell reports a signal.
    os._exit(code if code >= 0 else SIGNALLED - code)


def _fork(policy: Policy, *, own_users: bool) -> tuple[int, tuple[Path, ...]]:
    """Fork the process that becomes the command; return like `os.fork`, with its control group's folders.

    In a pid namespace it is the init process: when it ends, the kernel kills all processes that it started.
    """
    if not policy.namespaces:
        return os.fork(), ()
    cgroups: tuple[Path, ...] = ()
    try:
        cgroups = cgroup.make(f"{os.getpid()}-command", policy.limits)
        return namespaces.fork_first_process(own_users=own_users), cgroups
    except OSError as error:
        cgroup.remove(cgroups)
        _say(f"the server could not be confined: namespaces: {error}")
        os._exit(NOT_CONFINED)


def _become(
    policy: Policy,
    command: Sequence[str],
    parent: int,
    channel: socket.socket,
    cgroups: Sequence[Path],
    *,
    own_users: bool,
) -> None:
    """Confine this freshly forked process and execute the command; never returns."""
    try:
        home = None
        if policy.home is not None:
            home = os.open(policy.home, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        layers = confine_zygote(
            policy,
            own_users=own_users,
            home_fd=home,
            keep={0, 1, 2, channel.fileno()},
            parent=parent,
            without=frozenset(policy.without),
            cgroups=cgroups,
            forks=False,
            hand_over=lambda gate: _give(channel, gate),
        )
        layers.apply(parent=parent)
        channel.close()
        # The folder of temporary files, which a shared home may lack.
        if (folder := policy.environment.get("TMPDIR")) is not None:
            with contextlib.suppress(OSError):
                os.mkdir(folder, 0o700)
        # As in a shell; a folder that is not open to the command is not entered.
        if (folder := policy.environment.get("PWD")) is not None:
            with contextlib.suppress(OSError):
                os.chdir(folder)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
            with contextlib.suppress(OSError):
                signal.signal(number, signal.SIG_DFL)
    except (OSError, ValueError, ConfinementError) as error:
        _say(f"the server could not be confined: {in_words(error)}")
        os._exit(NOT_CONFINED)
    try:
        os.execve(command[0], list(command), dict(policy.environment))  # noqa: S606 - that is its purpose
    except OSError as error:
        _say(f"{command[0]} cannot be run: {error.strerror}")
    os._exit(NOT_RUN)


def _give(channel: socket.socket, gate: int) -> None:
    """Send the gate to the waiting process, before the command starts and could keep a copy of it."""
    with channel:
        socket.send_fds(channel, [GATE], [gate])
    os.close(gate)


def _wait(child: int, reaper: Reaper, ends: Sequence[int]) -> int:
    """Return the child's wait status once nothing of its session is left, or a while after it was killed."""
    watched = {*ends, reaper.wake_fd}
    until = math.inf
    while time.monotonic() < until:
        ready, _, _ = select.select(watched, (), (), None if until == math.inf else AGAIN_S)
        if ended := watched.intersection(ends, ready):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            watched -= ended
        for pid, status in reaper.reap(lambda pid: pid != child or end_session(pid)):
            if pid == child:
                return status
        if ended or reaper.holds:
            until = min(until, time.monotonic() + DYING_S)
    # It is in an uninterruptible system call, such as a read from a file server that does not answer.
    _say(f"a process of the command still runs {DYING_S} seconds after SIGKILL, and is left behind")
    return signal.SIGKILL


def _say(text: str) -> None:
    os.write(2, f"runner: {text}\n".encode())


if __name__ == "__main__":
    main()
