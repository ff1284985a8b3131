"""Forkservers for the toolsets of tests, forked from one that has imported the framework already.

A forkserver needs some 1.6 s of processor time to import the framework, and tests open more than a thousand
toolsets in the processes of pytest. So each of these processes has a template that has run all steps of
`sandbox.inside.forkserver_main` but the last, for which it forks a process. That process is a child of
pytest, like one that `sandbox.host.launch` starts, with the same environment, folder and standard error.
The command `runner` uses the real forkserver.

usage: python -P tests/forkserver_template.py SOCKET_FD MODULE
"""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sandbox.host.launch import Launched, launch
from sandbox.inside.forkserver_main import imported, serve_orders, settle, watch

# The only program with a template; others import next to nothing.
PROGRAM = "runner.worker.program"
_ORDER_BYTES = 1 << 16
_CLONE_PARENT = 0x8000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}


@dataclass(frozen=True, slots=True)
class _Template:
    orders: socket.socket
    process: "subprocess.Popen[bytes]"
    environment: Mapping[str, str]

    @classmethod
    def start(cls, program: str, environment: Mapping[str, str]) -> "_Template":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", __file__, str(theirs.fileno()), program]
        with theirs, open(os.devnull, "r+b") as nothing:
            process = subprocess.Popen(
                command,
                env={**environment, "PYTHONPATH": str(Path(__file__).parents[1])},
                pass_fds=[theirs.fileno()],
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                start_new_session=True,
            )
        return cls(ours, process, dict(environment))

    def fork(self, control: socket.socket) -> int:
        """Fork a forkserver connected to `control`; return its process id."""
        order = {"host": os.getpid(), "folder": os.getcwd(), "mask": umask()}
        with open(os.devnull, "wb") as nothing:
            output = sys.stderr.fileno() if _has_fileno(sys.stderr) else nothing.fileno()
            socket.send_fds(self.orders, [json.dumps(order).encode()], [control.fileno(), output, 2])
        return int(self.orders.recv(_ORDER_BYTES))


class Forked:
    """A child created by `fork_sibling`, with the part of `subprocess.Popen` that the product uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code, or None if it is still running."""
        return self._reaped(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until it ends; return its exit code."""
        if timeout is not None and self.returncode is None:
            pidfd = os.pidfd_open(self.pid)
            try:
                if not select.select([pidfd], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired("forkserver", timeout)
            finally:
                os.close(pidfd)
        return self._reaped(0)

    def kill(self) -> None:
        """Kill it, unless it has been reaped."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reaped(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class Templates:
    """Launcher of forkservers for this process, from templates where possible."""

    def __init__(self) -> None:
        self._started: dict[str, _Template] = {}

    def launch(self, program: str, *, environment: Mapping[str, str], lasting: bool) -> Launched:
        """Launch a forkserver as `sandbox.host.launch.launch` does."""
        if program != PROGRAM or not lasting or (known := self._template(program, environment)) is None:
            return launch(program, environment=environment, lasting=lasting)
        ours, theirs = socket.socketpair()
        with theirs:
            process = Forked(known.fork(theirs))
        return Launched(
            program=program,
            environment=dict(environment),
            lasting=lasting,
            process=cast(Any, process),
            control=ours,
        )

    def close(self) -> None:
        """End the templates; the forkservers that they forked keep running."""
        for template in self._started.values():
            template.orders.close()
            template.process.wait()

    def _template(self, program: str, environment: Mapping[str, str]) -> _Template | None:
        """Return the template of a program, unless it was started with another environment."""
        if program not in self._started:
            self._started[program] = _Template.start(program, environment)
        known = self._started[program]
        return known if known.environment == environment else None


def umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _has_fileno(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True


def _main() -> None:
    """Import a program, and fork a forkserver for each order until the orders' socket is closed."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    orders.set_inheritable(False)
    module = sys.argv[2]
    settle()
    program = imported(module, lasting=True)
    while True:
        order, descriptors, _flags, _address = socket.recv_fds(orders, _ORDER_BYTES, 3)
        if not order:
            return
        control, output, words = descriptors
        pid = fork_sibling()
        if pid == 0:
            orders.close()
            order_fields = json.loads(order)
            os.setsid()
            # `process_tree` distinguishes it from its template by this name.
            Path("/proc/self/comm").write_text("forkserver")
            os.chdir(order_fields["folder"])
            os.umask(order_fields["mask"])
            os.dup2(output, 1)
            os.dup2(words, 2)
            for descriptor in (output, words):
                os.close(descriptor)
            settle()
            serve_orders(socket.socket(fileno=control), watch(order_fields["host"]), program)
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
        orders.send(str(pid).encode())


def fork_sibling() -> int:
    """Fork a child of our parent.

    Source: clone(2) on CLONE_PARENT; "Operating System Utilities" of Python's C API on PyOS_BeforeFork.
    """
    python = ctypes.pythonapi
    flags = ctypes.c_long(_CLONE_PARENT | signal.SIGCHLD)
    number = ctypes.c_long(_SYS_CLONE[os.uname().machine])
    nothing = ctypes.c_long(0)
    python.PyOS_BeforeFork()
    pid = int(python.syscall(number, flags, nothing, nothing, nothing, nothing))
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError("the template of forkservers could fork none")
    return pid


if __name__ == "__main__":
    _main()
