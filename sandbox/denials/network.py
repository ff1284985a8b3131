"""Network target of a denied operation: found in the error, or announced beforehand.

The kernel's error contains neither name nor address. If it passed through a function that knew the target,
the frame of that function still holds it.

Source: Python documentation, module `socket`; `sandbox.network.egress`.
"""

import enum
import errno
import ipaddress
import os
import socket
from collections.abc import Iterator
from types import FrameType, TracebackType

from sandbox.denials.paths import PathRules
from sandbox.network.destinations import Destinations, written
from sandbox.outcome import Denial

__all__ = ["BIND", "KIND", "LOOKUP", "denied_network", "is_numeric"]

LOOKUP = "socket.getaddrinfo"
KIND = "socket.socket"
BIND = "socket.bind"

_TCP = ("AF_INET SOCK_STREAM", "AF_INET6 SOCK_STREAM")
_SERVERS = os.path.join(os.path.dirname(socket.__file__), "socketserver.py")
_FLAGS = socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK


def denied_network(error: BaseException, rules: PathRules) -> Denial | None:
    """Return the denial of a name, a connection or a socket that an error itself represents."""
    if isinstance(error, socket.gaierror):
        return _denied_name(error, rules)
    # The error of a denied socket or connection has neither an address nor a file name.
    if not isinstance(error, OSError) or error.filename is not None:
        return None
    if error.errno not in (errno.EACCES, errno.EPERM):
        return None
    frames = list(_frames(error.__traceback__))
    if frames and _place(frames[0]) == (socket.__file__, "__init__"):
        kind = _kind(frames[0])
        if rules.is_gated or not kind.startswith(_TCP):
            return Denial(operation=KIND, path=kind, layer="kernel")
        # Without any network, the kind of a TCP socket is not the reason for its denial.
        operation = BIND if any(map(_is_listening, frames)) else KIND
        return Denial(operation=operation, path=_wanted(frames, rules), layer="kernel")
    if rules.is_gated and error.errno == errno.EACCES:
        return Denial(operation="socket.connect", path=_wanted(frames, rules), layer="kernel")
    return None


def is_numeric(host: str) -> bool:
    """Return whether a host is an address, which needs no lookup."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _denied_name(error: socket.gaierror, rules: PathRules) -> Denial | None:
    for frame in _frames(error.__traceback__):
        if _place(frame) != (socket.__file__, "getaddrinfo"):
            continue
        host, port = frame.f_locals.get("host"), frame.f_locals.get("port")
        name = host.decode(errors="replace") if isinstance(host, bytes) else host
        number = port if isinstance(port, int) and port else None
        if not isinstance(name, str) or (is_numeric(name) and rules.is_gated):
            return None
        if Destinations.parse(rules.net).may_look_up(name, number):
            return None
        return Denial(operation=LOOKUP, path=written(name, number), layer="kernel")
    return None


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    """Yield the frames of a traceback, innermost first."""
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    yield from reversed(frames)


def _wanted(frames: list[FrameType], rules: PathRules) -> str:
    """Return the target of a connection from a frame of the standard library, or one like it."""
    allowed = Destinations.parse(rules.net)
    for frame in frames:
        if frame.f_code.co_name != "create_connection":
            continue
        known = frame.f_locals
        match known.get("host"), known.get("port"), known.get("sa"):
            case (str() as name, int() as port, _) if not allowed.may_look_up(name, port):
                return written(name, port)
            case (_, _, (str() as address, int() as port, *_)):
                # The name is allowed, so the address must be denied.
                return written(address, port)
    return ""


def _is_listening(frame: FrameType) -> bool:
    """Return whether a frame is of the standard library's servers, which connect to nothing."""
    file, function = _place(frame)
    return file == _SERVERS or (file, function) == (socket.__file__, "create_server")


def _kind(frame: FrameType) -> str:
    """Return the kind of the requested socket."""
    family, kind, protocol = (frame.f_locals.get(name) for name in ("family", "type", "proto"))
    kind = kind & ~_FLAGS if isinstance(kind, int) else kind
    names = (_name(socket.AddressFamily, family, "AF_"), _name(socket.SocketKind, kind, "SOCK_"))
    return " ".join((*names, f"protocol {protocol}"))


def _name(names: "type[enum.IntEnum]", value: object, prefix: str) -> str:
    known = {int(member): member.name for member in names}
    return known.get(value, f"{prefix}{value}") if isinstance(value, int) else f"{prefix}?"


def _place(frame: FrameType) -> tuple[str, str]:
    return os.path.abspath(frame.f_code.co_filename), frame.f_code.co_name
