"""No input of at most 1 MiB holds the event loop of a real server, whatever its entry point."""

import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port
from stall_probe import StallProbe
from stall_servers import SERVERS, measured

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

LIMIT_S = 1.0
"""Ten times what a quiet machine shows: others use its caches. Each input that was found cost more."""

_SERVER = """
import http.server, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        end = time.thread_time() + float(self.path[1:])
        while time.thread_time() < end:
            pass
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def blocking() -> Iterator[tuple[str, int]]:
    """A server that does one thing at a time: as long as its path says, in seconds."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(_SERVER), str(port)])
    try:
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.kill()
        process.wait()


def _get(url: str) -> None:
    request = urllib.request.Request(url, headers={"Connection": "close"})
    while True:
        try:
            with urllib.request.urlopen(request, timeout=100):
                return
        except urllib.error.URLError as error:
            # It does not listen yet.
            if not isinstance(error.reason, ConnectionRefusedError):
                raise


def test_probe_of_a_blocked_server_measures_the_stall(blocking: tuple[str, int]) -> None:
    address, pid = blocking
    _get(f"{address}/0")
    probe = StallProbe(pid, lambda: _get(f"{address}/0"))
    try:
        with probe.watching() as idle:
            pass
        with probe.watching() as held:
            _get(f"{address}/0.5")
    finally:
        probe.close()

    assert idle() < 0.2
    assert 0.4 < held() < 2


@pytest.mark.parametrize("server", list(SERVERS))
def test_no_input_holds_the_event_loop(server: str, user: str, tmp_path: Path) -> None:
    start, rows = SERVERS[server]
    with start(tmp_path, user) as (client, probe):
        found = [
            (stall, row.entry, row.input, said[:60]) for row, stall, said in measured(client, probe, rows)
        ]

    assert [each for each in found if "Session not found" in each[3] or each[3].startswith("closed")] == []
    assert [each for each in found if each[0] > LIMIT_S] == []
