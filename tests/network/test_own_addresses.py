"""Addresses of this machine while its interfaces change."""

import json
import subprocess
import sys

import pytest
from support import ROOT

pytestmark = pytest.mark.kernel


def test_own_addresses_follow_the_interfaces() -> None:
    program = ROOT / "tests/programs/own_addresses.py"

    done = subprocess.run(
        ["unshare", "--net", sys.executable, str(program)], capture_output=True, text=True, timeout=180
    )

    assert done.returncode == 0, done.stderr
    loopback, four, six = ["127.0.0.1", "::1"], "93.184.215.14", "2606:2800:220:1::14"
    own = dict(json.loads(line) for line in done.stdout.splitlines())
    assert own["link set lo up"] == own["link set own up"] == loopback
    # Its neighbour in the same network is somebody else.
    assert own["address add 93.184.215.14/24 dev own"] == [four, *loopback]
    assert own["address add 2606:2800:220:1::14/64 dev own nodad"] == [four, six, *loopback]
    assert own["route add default dev own"] == [four, six, *loopback]
    assert own["address del 93.184.215.14/24 dev own"] == [six, *loopback]
    assert own["route add local 203.0.113.0/24 dev lo"] == [six, "203.0.113.7", *loopback]
    # Not an address of an interface, nor the source of what is sent there.
    prefix = "2606:2800:220:9::"
    assert own[f"route add local {prefix}/64 dev own"] == [six, "203.0.113.7", f"{prefix}7", *loopback]
