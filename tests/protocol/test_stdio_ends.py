"""What `runner serve` says where there is nothing to speak MCP over."""

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
    ("streams", "status", "said"),
    [
        pytest.param("</dev/null <&-", 5, "one of them is closed", id="no input"),
        pytest.param(">&-", 5, "one of them is closed", id="no output", marks=pytest.mark.release),
        pytest.param("</dev/null", 0, "", id="both", marks=pytest.mark.release),
    ],
)
def test_a_closed_standard_stream_is_told_in_a_sentence(
    tmp_path: Path, streams: str, status: int, said: str
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
            timeout=60,
            check=False,
        )

    assert ran.returncode == status, ran.stderr
    assert said in ran.stderr
    assert "fault of the runner itself" not in ran.stderr
