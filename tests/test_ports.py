"""Ports that tests give to servers: free, and reserved until they are used."""

import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port


def test_a_port_is_free_and_given_out_once() -> None:
    ports = [free_port() for _ in range(20)]

    assert len(set(ports)) == 20
    with socket.create_server(("127.0.0.1", ports[0])):
        pass


def test_no_port_is_in_the_ephemeral_range() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    assert free_port() < lowest, "the kernel gives out low ports here, so tests may meet on one"


def test_port_given_to_or_used_by_other_process_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "from ports import free_port; print(free_port(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parent)},
    ) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        with socket.create_server(("127.0.0.1", free_port())) as listener:
            listened = listener.getsockname()[1]
            monkeypatch.setattr(
                random,
                "shuffle",
                lambda found: found.sort(key=lambda port: port not in (theirs, listened)),
            )

            mine = free_port()

        other.communicate("\n")

    assert mine not in (theirs, listened)
