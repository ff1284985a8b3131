"""A server takes the listening socket that it is started with, as socket units of systemd hand one over."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil
import pytest
from fastmcp import Client
from ports import free_port, holders_of
from support import ROOT, SAMPLES, environment_in, server_url

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

BARE = ROOT / "tests" / "proxy" / "bare.py"

# What systemd does between fork and exec: the socket becomes descriptor 3, and the variables say so.
HANDS_OVER = """
import os, sys
fd, pid, count, *command = sys.argv[1:]
os.dup2(int(fd), 3, inheritable=True)
pid = os.getpid() if pid == "own" else int(pid)
os.execve(command[0], command, {**os.environ, "LISTEN_PID": str(pid), "LISTEN_FDS": count})
"""


@contextmanager
def served(
    folder: Path,
    fd: int,
    *options: str,
    pid: str = "own",
    count: str = "1",
    mode: str = "serve",
) -> Iterator["subprocess.Popen[str]"]:
    what = [str(SAMPLES / "hello.py")] if mode == "serve" else ["--", sys.executable, str(BARE)]
    runner = [sys.executable, "-m", "runner", mode, "--transport", "http", *options, "--user", "t-handed"]
    with subprocess.Popen(
        [sys.executable, "-c", HANDS_OVER, str(fd), pid, count, *runner, *what],
        env=environment_in(folder),
        pass_fds=[fd],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def refusal(folder: Path, fd: int, *options: str, **how: str) -> str:
    """Return what a server says that ends at once, as one does that cannot be started as it was asked to."""
    with served(folder, fd, *options, **how) as process:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 2, errors
    return errors


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        yield listener


@pytest.mark.parametrize("mode", ["serve", "proxy"])
async def test_early_connection_answered_by_activated_server(
    mode: str, tmp_path: Path, bound: socket.socket
) -> None:
    port = bound.getsockname()[1]
    with socket.create_connection(bound.getsockname(), timeout=120) as early:
        early.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        with served(tmp_path, bound.fileno(), "--port", str(port), mode=mode) as process:
            answer = b"".join(iter(lambda: early.recv(4096), b""))
            url = server_url(process)
            async with Client(url) as client:
                tools = await client.list_tools()
            held = holders_of(port)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert url == f"http://127.0.0.1:{port}/mcp"
    assert tools
    # Neither the tools nor the server behind a proxy reach clients of this server.
    assert held == {os.getpid(), process.pid}


async def test_server_takes_socket_from_systemd(tmp_path: Path) -> None:
    activate = shutil.which("systemd-socket-activate")
    assert activate, "systemd-socket-activate is missing: apt-get install systemd"
    address = f"127.0.0.1:{free_port()}"
    environment = environment_in(tmp_path)
    command = [activate, "-l", address, *(f"--setenv={name}" for name in environment)]
    command += [sys.executable, "-m", "runner", "serve", str(SAMPLES / "hello.py"), "--user", "t-handed"]
    command += ["--transport", "http", "--port", address.partition(":")[2]]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "Listening on" in process.stderr.readline()
            async with Client(f"http://{address}/mcp") as client:
                assert (await client.call_tool("shout", {"text": "hi"})).data == "HI"
            held = [
                one.laddr[:2] for one in psutil.Process(process.pid).net_connections("tcp") if not one.raddr
            ]
        finally:
            process.kill()
            process.communicate()

    assert ("127.0.0.1", int(address.partition(":")[2])) in held


async def test_server_restarted_on_socket_refuses_no_client(tmp_path: Path, bound: socket.socket) -> None:
    port = bound.getsockname()[1]
    health = f"http://127.0.0.1:{port}/healthz"
    async with httpx2.AsyncClient(timeout=120) as http:
        for _ in range(2):
            with served(tmp_path, bound.fileno(), "--port", str(port)):
                # Sent at once: refused, if nobody listened.
                assert (await http.get(health)).status_code == 200


def test_socket_at_address_other_than_settings_refused(tmp_path: Path, bound: socket.socket) -> None:
    """Refuse a socket whose address differs from the settings, which decide who may call without a login."""
    port = bound.getsockname()[1]
    with socket.create_server(("0.0.0.0", free_port())) as everywhere:
        open_to_all = refusal(tmp_path, everywhere.fileno(), "--port", str(everywhere.getsockname()[1]))

    assert "at 0.0.0.0 port " in open_to_all
    assert "--host" in open_to_all
    assert f"at 127.0.0.1 port {port}, and the settings say 127.0.0.1 port {port - 1};" in refusal(
        tmp_path, bound.fileno(), "--port", str(port - 1)
    )


def test_invalid_activation_socket_refused(tmp_path: Path, bound: socket.socket) -> None:
    port = str(bound.getsockname()[1])
    two = refusal(tmp_path, bound.fileno(), "--port", port, count="2")
    with socket.socket(socket.AF_UNIX) as local, open(os.devnull, "rb") as file:
        unix = refusal(tmp_path, local.fileno(), "--port", port)
        none = refusal(tmp_path, file.fileno(), "--port", port)

    assert "LISTEN_FDS=2: a server takes one socket" in two
    assert "is not one of TCP" in unix
    assert f"ListenStream=127.0.0.1:{port}" in unix
    assert "descriptor 3 is not a socket" in none
    assert "Traceback" not in two + unix + none


async def test_socket_for_another_process_ignored(tmp_path: Path, bound: socket.socket) -> None:
    with served(tmp_path, bound.fileno(), "--port", "0", pid=str(os.getpid())) as process:
        url = server_url(process)
        async with Client(url) as client:
            assert (await client.call_tool("shout", {"text": "hi"})).data == "HI"

    assert f":{bound.getsockname()[1]}/" not in url
