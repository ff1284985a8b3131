"""Run one command confined, its standard streams those of this process, until it or the host ends.

For programs that are not our Python, such as a server on its standard streams. This
process stays outside: it reads the policy, forks, and waits. The child puts the layers of a zygote and of a
worker in place, and only then becomes the command. Whatever the command started is killed with it.

usage: python -m sandbox.inside.exec_main POLICY_FILE HOST_PID PROGRAM [ARGUMENT...]
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from sandbox.errors import ConfinementError, in_words
from sandbox.frames import GATE
from sandbox.inside.confine import confine_zygote
from sandbox.inside.reaper import Reaper
from sandbox.inside.session import end_session
from sandbox.layers import cgroup, namespaces, oom
from sandbox.layers.privileges import adopt_orphans
from sandbox.layers.proc import own_folder
from sandbox.policy import Policy

__all__ = ["main"]

NOT_CONFINED = 125
NOT_RUN = 127


def main() -> None:
    """Run the command that the arguments name, and end with its status."""
    file, host, command = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    policy = Policy.from_json(json.loads(file.read_text()))
    # There may be keys in the environment that it names.
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
        first_parent = 0 if policy.namespaces else parent
        _become(policy, command, first_parent, theirs, cgroups, own_users=own_users)
    theirs.close()
    if not policy.namespaces:
        # Until the end: what is held open is not forgotten, and the rule on its files speaks of it.
        os.open(own_folder(child), os.O_PATH | os.O_CLOEXEC)
    if policy.is_gated:
        from sandbox.inside import exec_gate  # noqa: PLC0415 - half of the start, where there is no gate

        # After the fork: who forks has one thread.
        exec_gate.serve_in_a_thread(ours, policy)
    # The streams are the child's alone: their reader must see end of file when it exits.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    status = _wait(child, reaper, (ended, wake))
    cgroup.remove(cgroups)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _fork(policy: Policy, *, own_users: bool) -> tuple[int, tuple[Path, ...]]:
    """Fork the process that becomes the command; return as `os.fork`, with the folders of its control group.

    In a pid namespace it is the first process: when it ends, the kernel ends all that it started.
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
    """Be the command. Runs in a process just forked; never returns."""
    try:
        home = None
        if policy.home is not None:
            home = os.open(policy.home, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        without = frozenset(policy.without)
        layers = confine_zygote(
            policy,
            own_users=own_users,
            home_fd=home,
            keep={0, 1, 2, channel.fileno()},
            parent=parent,
            without=without,
            cgroups=cgroups,
            forks=False,
            hand_over=lambda gate: _give(channel, gate),
        )
        layers.apply(parent=parent)
        channel.close()
        _make_folder(policy.environment.get("TMPDIR"))
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


def _make_folder(path: str | None) -> None:
    """Make the folder of temporary files, which a home that others use as well may lack. Runs confined."""
    if path is not None:
        with contextlib.suppress(OSError):
            os.mkdir(path, 0o700)


def _give(channel: socket.socket, gate: int) -> None:
    """Give the gate to the process that waits, before the command is there to keep a copy of it."""
    with channel:
        socket.send_fds(channel, [GATE], [gate])
    os.close(gate)


def _wait(child: int, reaper: Reaper, ends: Sequence[int]) -> int:
    """Return the child's wait status once nothing of its session is left."""
    poll = select.poll()
    for watched in (*ends, reaper.wake_fd):
        poll.register(watched, select.POLLIN)
    found: list[int] = []
    while not found:
        ready = [fd for fd, _event in poll.poll()]
        if any(fd in ready for fd in ends):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            for fd in ends:
                with contextlib.suppress(KeyError):
                    poll.unregister(fd)
        found += [
            status
            for pid, status in reaper.reap(lambda pid: end_session(pid) if pid == child else None)
            if pid == child
        ]
    return found[0]


def _say(text: str) -> None:
    os.write(2, f"runner: {text}\n".encode())


if __name__ == "__main__":
    main()
