"""Readiness metrics of a server over stdio, which has no `/readyz`."""

import os
import sys
import urllib.request
from pathlib import Path

import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from ports import free_port
from somebody import somebody
from support import becomes

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

TOOLS = Path(__file__).with_name("watched_tools.py")


@pytest.mark.release
async def test_stdio_server_is_not_ready_while_state_is_unwritable(tmp_path: Path) -> None:
    state, port = tmp_path / "state", free_port()
    variables = {
        **os.environ,
        "RUNNER_STATE_DIR": str(state),
        "RUNNER_METRICS_ADDRESS": f"127.0.0.1:{port}",
    }
    words = ["-m", "runner", "serve", str(TOOLS), "--transport", "stdio"]

    def tells(line: str) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
            return line in answer.read().decode().splitlines()

    with somebody() as user:
        transport = StdioTransport(sys.executable, [*words, "--user", user], env=variables, keep_alive=False)
        async with Client(transport):
            assert await becomes(lambda: tells("toolcell_ready 1.0"))
            os.rename(state, state.with_name("elsewhere"))
            # With nothing in its place, the next call would recreate it.
            state.write_text("a file")
            not_ready = await becomes(lambda: tells("toolcell_ready 0.0"))
            named = await becomes(lambda: tells('toolcell_fault{part="state"} 1.0'))
            state.unlink()
            os.rename(state.with_name("elsewhere"), state)
            again = await becomes(lambda: tells("toolcell_ready 1.0"))

    assert not_ready
    assert named
    assert again
