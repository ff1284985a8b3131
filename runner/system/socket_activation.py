"""A listening socket opened by the parent that starts the server, as systemd does for a socket unit.

Between two lives of the server it stays open, so who connects meanwhile waits and is not refused.

Source: sd_listen_fds(3).
"""

import os
import socket
from collections.abc import MutableMapping

from runner.errors import UsageError
from runner.system.listening import BACKLOG

__all__ = ["inherited_listener"]

_FIRST_DESCRIPTOR = 3

_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


def inherited_listener(
    host: str, port: int, *, environ: MutableMapping[str, str] = os.environ
) -> socket.socket | None:
    """Return the socket that this process was started with; None if there is none.

    Args:
        host: The address that the settings name; who may call is decided by it, so the socket has to have it.
        port: The port that the settings name.
        environ: The variables of this process; those of the socket are taken out.

    Raises:
        UsageError: What was handed over is not one socket that listens there.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()) or "LISTEN_FDS" not in environ:
        return None
    count = environ["LISTEN_FDS"]
    for variable in _VARIABLES:
        environ.pop(variable, None)
    if count != "1":
        raise UsageError(
            f"LISTEN_FDS={count}: a server takes one socket; give the socket unit one ListenStream="
        )
    try:
        listener = socket.socket(fileno=_FIRST_DESCRIPTOR)
    except OSError as error:
        message = f"LISTEN_FDS=1, but descriptor {_FIRST_DESCRIPTOR} is not a socket: {error.strerror}"
        raise UsageError(message) from error
    try:
        listener.set_inheritable(False)
        _check(listener, host, port)
        # It listens already, or its parent leaves that to us.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        message = f"the socket that was handed over (LISTEN_FDS) cannot listen: {error.strerror}"
        raise UsageError(message) from error
    except UsageError:
        listener.close()
        raise
    return listener


def _check(listener: socket.socket, host: str, port: int) -> None:
    if listener.family not in {socket.AF_INET, socket.AF_INET6} or listener.type != socket.SOCK_STREAM:
        raise UsageError(
            "the socket that was handed over (LISTEN_FDS) is not one of TCP; "
            f"give the socket unit ListenStream={host}:{port}"
        )
    address, own_port = listener.getsockname()[:2]
    if own_port != port or address not in _addresses(host, listener.family):
        raise UsageError(
            f"the socket that was handed over (LISTEN_FDS) is at {address} port {own_port}, and the settings "
            f"say {host} port {port}; have --host and --port say the same as the socket"
        )


def _addresses(host: str, family: int) -> set[str]:
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, family=family, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {str(address[0]) for *_, address in found}
