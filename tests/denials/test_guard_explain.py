import errno
import os
import socket
import socketserver
from pathlib import Path
from typing import Any

import pytest
from guard_world import World

from sandbox.denials.judge import GuardDenied
from sandbox.denials.paths import PathRules
from sandbox.denials.recognise import explain
from sandbox.outcome import Denial

RULES = PathRules(home=Path("/tmp/alice"), homes=(Path("/tmp"),))
PING = Denial(operation="socket.socket", path="AF_INET SOCK_RAW protocol 1", layer="kernel")
KERNEL = Denial(operation="file operation", path="/etc/new", layer="kernel")


def denied(path: str | bytes | None = "/etc/new", number: int = errno.EACCES) -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_denied_path_outside_the_home_is_the_kernels_denial(number: int) -> None:
    assert explain(denied(number=number), RULES) == KERNEL


@pytest.mark.parametrize(
    "error",
    [
        denied("/tmp/alice/new"),
        denied("/dev/null"),
        denied(None),
        denied(number=errno.ENOENT),
        GuardDenied(errno.EACCES, "told already", "/etc/new"),
        ValueError("/etc/new"),
    ],
)
def test_other_errors_are_not_kernel_denials(error: Exception) -> None:
    assert explain(error, RULES) is None


def test_a_path_in_bytes_is_explained_too() -> None:
    assert explain(denied(b"/etc/new"), RULES) == KERNEL


def test_the_second_path_of_a_rename_is_explained_too() -> None:
    error = OSError(errno.EACCES, "Permission denied", "/tmp/alice/a", None, "/etc/new")

    assert explain(error, RULES) == KERNEL


def test_a_denial_is_found_behind_causes_contexts_and_groups() -> None:
    cause = ValueError("no report")
    cause.__cause__ = denied()
    context = ValueError("no report")
    context.__context__ = cause
    group = ExceptionGroup("several", [ValueError("other"), ExceptionGroup("inner", [context])])

    assert explain(cause, RULES) == KERNEL
    assert explain(context, RULES) == KERNEL
    assert explain(group, RULES) == KERNEL


def test_circular_error_causes_terminate() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__ = second
    second.__context__ = first

    assert explain(first, RULES) is None


def test_kernel_denial_is_explained_by_its_path(world: World) -> None:
    report = world.run("""
        import os
        os.chmod(home / "file", 0o600)
        value = "changed at home"
        if os.getuid() == 0:
            os.setuid(65534)
        os.chmod("/etc/passwd", 0o600)
    """)

    assert report.value == "changed at home"
    assert report.error is not None
    assert not report.error.guard
    assert report.error.explained == Denial(operation="file operation", path="/etc/passwd", layer="kernel")


@pytest.mark.parametrize(
    ("kind", "caller", "function", "expected"),
    [
        (socket.SOCK_STREAM, "tool.py", "create_server", ("socket.socket", "")),
        (socket.SOCK_STREAM | socket.SOCK_CLOEXEC, "tool.py", "f", ("socket.socket", "")),
        (socket.SOCK_STREAM, socket.__file__, "create_server", ("socket.bind", "")),
        (socket.SOCK_STREAM, socketserver.__file__, "__init__", ("socket.bind", "")),
        (socket.SOCK_DGRAM, "tool.py", "f", ("socket.socket", "AF_INET SOCK_DGRAM protocol 0")),
    ],
)
def test_denied_socket_of_server_is_told_from_client(
    kind: int, caller: str, function: str, expected: tuple[str, str]
) -> None:
    names: dict[str, Any] = {}
    makes = "def __init__(family, type, proto=0): raise PermissionError(1, 'Operation not permitted')"
    exec(compile(makes, socket.__file__, "exec"), names)
    exec(compile(f"make = __init__\ndef {function}(kind): make(2, kind)", caller, "exec"), names)

    with pytest.raises(PermissionError) as raised:
        names[function](kind)

    operation, path = expected
    assert explain(raised.value, RULES) == Denial(operation=operation, path=path, layer="kernel")


def test_a_socket_that_the_kernel_denies_is_explained_as_network(world: World) -> None:
    report = world.run("""
        import os, socket
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
        value = "made one that is allowed"
        if os.getuid() == 0:
            os.setuid(65534)
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    """)

    assert report.value == "made one that is allowed"
    assert report.error is not None
    assert report.error.kind == "PermissionError"
    assert report.error.explained == PING


def test_wrapped_connection_error_is_network_denial_without_path(world: World) -> None:
    report = world.run("""
        import os, socket
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
        value = "made one that is allowed"
        if os.getuid() == 0:
            os.setuid(65534)
        # As urllib3 says it, and requests after that.
        try:
            socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        except OSError as denial:
            raise OSError(f"Max retries with url: / (Caused by {denial}: Permission denied)") from denial
    """)

    assert report.value == "made one that is allowed"
    assert report.error is not None
    assert report.error.explained == PING
