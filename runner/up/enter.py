"""Become a user's server: enter its control group, take its limits and its user id, and run its command.

What to become is read from standard input, so that no secret is on a command line. It is the first thing that
runs in the new process, started by `runner.up.processes`.

Source: credentials(7), setrlimit(2), cgroups(7), PR_SET_NO_NEW_PRIVS(2const), sd_listen_fds(3).
"""

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from runner.system.socket_activation import FIRST_DESCRIPTOR, handed_over
from sandbox.layers import identity
from sandbox.layers.privileges import refuse_new_privileges

__all__ = ["main"]


def main() -> None:
    """Read what to become, and become it; what fails is said on standard error, and the status is 5."""
    try:
        told: dict[str, Any] = json.load(sys.stdin)
    except ValueError:
        # The supervisor has ended before it could say what to become.
        sys.exit(5)
    try:
        _become(told)
    except OSError as error:
        print(f"runner: the server of a user cannot be started: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(5)


def _become(told: dict[str, Any]) -> None:
    for folder in told["groups"]:
        Path(folder, "cgroup.procs").write_text("0")
    for which, value in told["rlimits"]:
        resource.setrlimit(which, (value, value))
    os.umask(0o077)
    os.chdir("/")
    if told["uid"] is not None:
        identity.apply(told["uid"])
    refuse_new_privileges()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    command = told["command"]
    environment = {**told["environment"], **_handed_over(told["listener"])}
    try:
        os.execve(command[0], command, environment)  # noqa: S606 - no shell is wanted
    except PermissionError as error:
        raise OSError(_refusal(command[0])) from error


def _refusal(program: str) -> str:
    """Say what keeps us from a program: where it is a link, as a virtual environment's, not what it names."""
    target = Path(os.path.realpath(program))
    where = f"{program}" if str(target) == program else f"{program}, which is {target},"
    shut = (each for each in reversed(target.parents) if not os.access(each, os.X_OK, effective_ids=True))
    folder = next(shut, None)
    if folder is None:
        return f"{where} may not be run by the user id {os.geteuid()}; see to its mode (chmod a+rx)"
    return (
        f"{where} cannot be reached by the user id {os.geteuid()}, which the folder {folder} does not let "
        f"through; allow it (chmod a+x {folder}), or use a Python outside of it"
    )


def _handed_over(listener: int) -> dict[str, str]:
    """Put the listening socket where the server looks for it; return the variables that say so."""
    if listener != FIRST_DESCRIPTOR:
        os.dup2(listener, FIRST_DESCRIPTOR)
        os.close(listener)
    return handed_over(os.getpid())


if __name__ == "__main__":
    main()
