import errno
import os
from pathlib import Path

import pytest
from guard_world import World

from sandbox.denials.judge import GuardDenied
from sandbox.denials.paths import PathRules
from sandbox.denials.recognise import explain
from sandbox.outcome import Denial

RULES = PathRules(home=Path("/tmp/alice"), homes=(Path("/tmp"),))
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
    assert report.error.explained == Denial(operation="socket.socket", path="", layer="kernel")


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
    assert report.error.explained == Denial(operation="socket.socket", path="", layer="kernel")
