"""The control of each attempt: the same program and the same act, in a process without any layer.

One process imports the program and forks a child for each control, as a forkserver without confinement would.

usage: python -m sandbox.selftest.unconfined CONTROL_FD PROGRAM_MODULE
"""

import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import NoReturn

from sandbox.denials.paths import PathRules
from sandbox.frames import CONTROL_BYTES, FrameKind, receive, send
from sandbox.inside.program import Channel, Program

__all__ = ["main"]


def main() -> None:
    """Fork a child for each order, until the host lets go."""
    program: Program = importlib.import_module(sys.argv[2]).PROGRAM
    # A terminal's Ctrl-C goes to the whole foreground group; only the host decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nobody waits for the children, so the kernel need not keep them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        control.set_inheritable(False)
        while (order := receive(control, CONTROL_BYTES)) is not None:
            connection, output = order[2]
            pid = os.fork()
            if pid == 0:
                control.close()
                _serve(program, order[1], connection, output)
            os.close(connection)
            os.close(output)
            send(control, FrameKind.STARTED, {"pid": pid})


def _serve(program: Program, call: object, connection: int, output: int) -> NoReturn:
    """Serve one call, then wait to be killed."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A group of its own, so that an act which plays with groups finds nobody but itself there.
        os.setpgid(0, 0)
        for standard in (1, 2):
            os.dup2(output, standard)
        os.close(output)
        channel = Channel(socket.socket(fileno=connection), PathRules())
        os.chdir(str(call["folder"]) if isinstance(call, Mapping) else "/")
        channel.send(FrameKind.ANSWER, program.serve(call, channel))
        channel.receive()
        status = 0
    except BaseException:  # noqa: BLE001 - the last stop, as in a worker: whatever it was, somebody must read it
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
