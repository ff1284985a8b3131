"""Start of a forkserver's process: only an exec, so that it can precede all other imports.

`sandbox.host.forkserver` communicates with the process afterwards.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Launched", "launch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A started forkserver without a connection yet.

    Attributes:
        program: Module of the program that it imports.
        environment: Its environment variables.
        lasting: Whether it was started for many calls.
        process: The process, a child of this one.
        control: Our end of its control socket.
    """

    program: str
    environment: Mapping[str, str]
    lasting: bool
    process: "subprocess.Popen[bytes]"
    control: socket.socket

    def fits(self, program: str, environment: Mapping[str, str], *, lasting: bool) -> bool:
        """Return whether `launch` would start the same process with these arguments."""
        return (self.program, self.environment, self.lasting) == (program, environment, lasting)

    def discard(self) -> None:
        """End the process, and wait until it is gone."""
        self.control.close()
        self.process.kill()
        self.process.wait()


def launch(program: str, *, environment: Mapping[str, str], lasting: bool) -> Launched:
    """Start a process that will offer `program`, and return at once.

    Args:
        program: Name of a module with a `PROGRAM`.
        environment: The whole environment of the forkserver and all below it; no secrets.
        lasting: Whether it is for many calls, so that preparing them well is worth some time at the start.
    """
    ours, theirs = socket.socketpair()
    command = [
        *(sys.executable, "-P", "-m", "sandbox.inside.forkserver_main"),
        *(str(theirs.fileno()), str(os.getpid()), program, *(["lasting"] if lasting else [])),
    ]
    process = subprocess.Popen(
        command,
        env=dict(environment),
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if _has_fileno(sys.stderr) else subprocess.DEVNULL,
        start_new_session=True,
    )
    theirs.close()
    return Launched(
        program=program, environment=dict(environment), lasting=lasting, process=process, control=ours
    )


def _has_fileno(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True
