"""Standard streams of a tool file, whatever those of its server are."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

FILE = """
import sys
sys.stdout.reconfigure(encoding="utf-8")
from fastmcp import FastMCP
mcp = FastMCP("streams")

@mcp.tool
def prints() -> str:
    print("first")
    sys.stdout.reconfigure(encoding="utf-8")
    return "done"
"""


def test_streams_reconfigured_while_stderr_of_server_is_file(tmp_path: Path, user: str) -> None:
    file, output = tmp_path / "streams.py", tmp_path / "err.log"
    file.write_text(FILE)

    with output.open("w") as stderr:
        called = subprocess.run(
            [Path(sys.executable).with_name("runner"), "call", file, "prints", "--user", user],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    assert called.stdout == "done\n"
    assert "first" in output.read_text()
