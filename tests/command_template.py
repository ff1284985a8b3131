"""Servers for tests, forked from a process that has imported the framework already.

A command of `runner` that serves imports the framework for some two seconds of a processor, and its
forkserver does so once more; tests start more than a thousand of them. Here each process of pytest has a
template that has imported what a worker does, and forks whoever is started as `python -m runner serve …`: a
child of pytest with the arguments, environment, folder and descriptors that `subprocess` would have given it.
It forks its forkserver before it imports anything of the host, and runs the command line from its beginning.

Whatever is asked of a process that is more than this (another user, another interpreter, a folder of its own,
a variable that is read at import, a terminal) starts the real one, as do all other commands.

usage: python -P tests/command_template.py SOCKET_FD
"""

import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Never

from forkserver_template import PROGRAM, adopted, fork_sibling, umask

from sandbox.host import launch as launching
from sandbox.inside.forkserver_main import imported, serve_orders, settle, watch

__all__ = ["CommandTemplate"]

ROOT = Path(__file__).parents[1]
_HERE = str(Path(__file__).parent)

_ORDER_BYTES = 1 << 17
_HIGH = 500
_MOST_DESCRIPTORS = 1000
_MODULES = ("runner", "runner.cli.app")
_COMMANDS = ("dev", "proxy", "serve", "worker")
# Variables that a process of its own has to be started for: they count before the command line runs.
_READ_AT_IMPORT = (
    *("COLUMNS", "COV_", "FASTMCP_", "FORCE_COLOR", "GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "MCP_"),
    *("NO_COLOR", "OTEL_", "PYDANTIC_", "PYTHON", "SSL_", "TERM", "TTY_"),
)


class CommandTemplate:
    """Has `subprocess` start servers from a template, as long as `starting` lasts."""

    def __init__(self) -> None:
        self._started: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Start servers from the template where nothing speaks against it."""
        original: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]

        def execute_child(popen: "subprocess.Popen[bytes]", *given: Any) -> None:
            words = self._words(given)
            if words is None:
                original(popen, *given)
            else:
                self._fork(popen, words, given)

        subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
        try:
            yield
        finally:
            subprocess.Popen._execute_child = original  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the template; what it forked goes on."""
        if self._started is not None:
            process, orders = self._started
            orders.close()
            process.wait()

    def _words(self, given: Sequence[Any]) -> list[str] | None:
        """Return the command line of the server that is asked for, unless it has to be the real one."""
        (args, executable, preexec_fn, close_fds, _pass, cwd, env, _info, _flags, shell, *pipes) = given
        streams, (_signals, gid, gids, uid, mask, _session, group) = pipes[:6], pipes[6:]
        words = [os.fsdecode(word) for word in args] if isinstance(args, list | tuple) else []
        is_server = (
            len(words) > 3
            and words[:2] == [sys.executable, "-m"]
            and words[2] in _MODULES
            and words[3] in _COMMANDS
        )
        is_usual = (
            (executable, preexec_fn, gid, gids, uid, mask) == (None, None, None, None, None, -1)
            and close_fds
            and not shell
            and group in (None, -1)
            and (cwd is None or Path(os.fsdecode(cwd)) == ROOT)
            and Path.cwd() == ROOT
            and _is_late(os.environ if env is None else env)
            and not any(os.isatty(_stream(streams, number)) for number in range(3))
        )
        return words if is_server and is_usual else None

    def _fork(self, popen: "subprocess.Popen[bytes]", words: list[str], given: Sequence[Any]) -> None:
        """Do what `_execute_child` does, by a fork of the template."""
        passed, environment, streams = given[4], given[6], given[10:16]
        order = {
            "words": words[2:],
            "environment": dict(os.environ if environment is None else environment),
            "mask": umask(),
            "session": bool(given[21]),
            "passed": list(passed),
        }
        process_orders = self._orders()
        descriptors = [_stream(streams, number) for number in range(3)]
        socket.send_fds(process_orders, [json.dumps(order).encode()], [*descriptors, *passed])
        popen.pid = int(process_orders.recv(_ORDER_BYTES))
        popen._child_created = True  # type: ignore[attr-defined]
        popen._close_pipe_fds(*streams)  # type: ignore[attr-defined]

    def _orders(self) -> socket.socket:
        if self._started is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, open(os.devnull, "r+b") as nothing:
                process = subprocess.Popen(
                    [sys.executable, "-P", __file__, str(theirs.fileno())],
                    env={**os.environ, "PYTHONPATH": f"{ROOT}:{_HERE}"},
                    cwd=ROOT,
                    pass_fds=[theirs.fileno()],
                    stdin=nothing,
                    stdout=nothing,
                )
            self._started = process, ours
        return self._started[1]


def _is_late(environment: Mapping[Any, Any]) -> bool:
    """Say whether it tells an interpreter, or a library being imported, nothing that ours does not."""
    named = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    return all(
        os.environ.get(name) == value for name, value in named.items() if name.startswith(_READ_AT_IMPORT)
    )


def _stream(streams: Sequence[int], number: int) -> int:
    """Return the descriptor that is to be standard input (0), output (1) or error (2) of the child."""
    theirs = (streams[0], streams[3], streams[5])[number]
    return number if theirs == -1 else theirs


def _main() -> Never:
    """Fork a server for each order, until nobody can send one any more."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    orders.set_inheritable(False)
    # Imported, not begun: what a worker mends in the framework is not for a host.
    importlib.import_module(PROGRAM)
    while True:
        order, descriptors, _flags, _address = socket.recv_fds(orders, _ORDER_BYTES, 64)
        if not order:
            sys.exit()
        pid = fork_sibling()
        if pid == 0:
            orders.close()
            _serve(json.loads(order), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        orders.send(str(pid).encode())


def _serve(said: Mapping[str, Any], descriptors: Sequence[int]) -> Never:
    """Become the process that was ordered, and run its command line."""
    if said["session"]:
        os.setsid()
    os.umask(said["mask"])
    os.environ.clear()
    os.environ.update(said["environment"])
    wanted = [0, 1, 2, *said["passed"]]
    # Those that came could lie where others have to go.
    high = [os.dup2(each, _HIGH + place) for place, each in enumerate(descriptors)]
    for each in descriptors:
        os.close(each)
    forkserver = _Forkserver()
    for each, number in zip(high, wanted, strict=True):
        os.dup2(each, number, inheritable=True)
        os.close(each)
    launching.launch = forkserver.launch
    sys.path.remove(_HERE)
    module, *words = said["words"]
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


class _Forkserver:
    """The forkserver of a server, forked before anything of the host was imported, until it is launched."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        host = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _become_forkserver(theirs, host)
        theirs.close()
        self._order: socket.socket | None = ours

    def launch(self, program: str, *, environment: Mapping[str, str], lasting: bool) -> launching.Launched:
        """Do what `sandbox.host.launch.launch` does."""
        if self._order is None or program != PROGRAM or not lasting:
            return _real(program, environment=environment, lasting=lasting)
        ours, theirs = socket.socketpair()
        with theirs, self._order, open(os.devnull, "r+b") as nothing:
            order = {"environment": dict(environment), "folder": os.getcwd(), "mask": umask()}
            socket.send_fds(
                self._order, [json.dumps(order).encode()], [nothing.fileno(), 2, 2, theirs.fileno()]
            )
        self._order = None
        process = adopted(self._pid)
        return launching.Launched(
            program=program, environment=dict(environment), lasting=lasting, process=process, control=ours
        )


_real = launching.launch


def _become_forkserver(order: socket.socket, host: int) -> Never:
    os.setsid()
    # Pipes of the server would not end with it.
    os.closerange(3, order.fileno())
    os.closerange(order.fileno() + 1, _MOST_DESCRIPTORS)
    said, descriptors, _flags, _address = socket.recv_fds(order, _ORDER_BYTES, 4)
    if not said:
        os._exit(0)
    wanted = json.loads(said)
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["folder"])
    os.umask(wanted["mask"])
    *streams, control = descriptors
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    order.close()
    settle()
    serve_orders(socket.socket(fileno=control), watch(host), imported(PROGRAM, lasting=True))
    os._exit(0)


if __name__ == "__main__":
    _main()
