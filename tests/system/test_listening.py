"""Listening sockets on loopback, on machines with and without an IPv4 address of it."""

import json
import subprocess
import sys

import pytest
from support import outer_environment

CODE = """
import json
from runner.system.listening import listen_on_loopback
print(json.dumps([each.getsockname()[:2] for each in listen_on_loopback(0, setting="--host")]))
"""


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("change", "addresses"),
    [("true", ["127.0.0.1", "::1"]), ("ip addr del 127.0.0.1/8 dev lo", ["::1"])],
    ids=["both", "only IPv6"],
)
def test_listening_on_loopback_takes_existing_addresses(change: str, addresses: list[str]) -> None:
    script = f'ip link set lo up && {change} && exec "$@"'
    own_network = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", script, "sh"]
    made = subprocess.run(
        [*own_network, sys.executable, "-c", CODE],
        env=outer_environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )

    listening = json.loads(made.stdout or "[]")
    assert [address for address, _port in listening] == addresses, made.stderr
    assert len({port for _address, port in listening}) == 1
