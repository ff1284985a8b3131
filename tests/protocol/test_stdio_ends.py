"""Errors of `runner serve` without a usable standard input or output."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from somebody import somebody

TOOLS = """
from fastmcp import FastMCP

mcp = FastMCP("unheard")
"""


@pytest.mark.parametrize(
    ("streams", "status", "message"),
    [
        pytest.param("</dev/null <&-", 5, "one of them is closed", id="no input"),
        pytest.param(">&-", 5, "one of them is closed", id="no output", marks=pytest.mark.release),
        pytest.param("</dev/null", 0, "", id="both", marks=pytest.mark.release),
    ],
)
def test_closed_standard_stream_reported_in_a_sentence(
    tmp_path: Path, streams: str, status: int, message: str
) -> None:
    tmp_path.chmod(0o700)
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    environment = {
        "PATH": "/usr/bin:/bin",
        "RUNNER_STATE_DIR": str(tmp_path / "state"),
        "RUNNER_STORE": (tmp_path / "store").as_uri(),
    }

    with somebody() as user:
        command = [sys.executable, "-m", "runner", "serve", str(file), "--user", user]
        ran = subprocess.run(
            ["/bin/sh", "-c", f'exec "$@" {streams}', "sh", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            timeout=180,
            check=False,
        )

    assert ran.returncode == status, ran.stderr
    assert message in ran.stderr
    assert "fault of the runner itself" not in ran.stderr


REQUESTS = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    '"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}',
    '{"jsonrpc":"2.0","method":"notifications/initialized"}',
    '{"jsonrpc":"2.0","id":2,"method":"tools/list"}',
    '{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"wait","arguments":{"seconds":0.5}}}',
    '{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"wait","arguments":{"seconds":600}}}',
)


@pytest.mark.parametrize(
    ("drain_s", "answered"), [pytest.param("60", [1, 2, 3], marks=pytest.mark.release), ("2", [1, 2, 3])]
)
def test_requests_of_a_file_are_answered_within_drain_s(
    tmp_path: Path, drain_s: str, answered: list[int]
) -> None:
    file, requests = tmp_path / "tools.py", tmp_path / "requests.jsonl"
    tmp_path.chmod(0o700)
    file.write_text(
        TOOLS + "\nimport asyncio\n\n@mcp.tool\nasync def wait(seconds: float) -> None:\n"
        "    await asyncio.sleep(seconds)\n"
    )
    last = None if drain_s == "2" else -1
    requests.write_text("\n".join(REQUESTS[:last]))
    environment = {
        "PATH": "/usr/bin:/bin",
        "RUNNER_STATE_DIR": str(tmp_path / "state"),
        "RUNNER_STORE": (tmp_path / "store").as_uri(),
        "RUNNER_DRAIN_S": drain_s,
    }

    with somebody() as user, requests.open() as stdin:
        ran = subprocess.run(
            [sys.executable, "-m", "runner", "serve", str(file), "--user", user],
            stdin=stdin,
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
            check=False,
        )

    messages = [json.loads(line) for line in ran.stdout.splitlines()]
    assert sorted(message["id"] for message in messages if "result" in message) == answered
    assert ran.returncode == 0
