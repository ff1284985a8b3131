"""Escape sequences from a tool file or the command line, in what a command prints on a terminal."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.release

SEQUENCE = "\x1b]52;c;eA==\x07\x1b[2J\x9b2J\u202e\U000e0041"
SHOWN = rb"\x1b]52;c;eA==\x07\x1b[2J\x9b2J\u202e\U000e0041"
TOOLS = f"""
import os, sys
from fastmcp import FastMCP
from fastmcp.exceptions import ToolError

mcp = FastMCP("t")

@mcp.tool
def result() -> str:
    return {SEQUENCE!a}

@mcp.tool
def error() -> str:
    raise ToolError({SEQUENCE!a})

@mcp.tool
def crash() -> str:
    sys.stderr.write({SEQUENCE!a} + "\\n")
    sys.stderr.flush()
    os._exit(3)

mcp.tool(lambda: "x", name="name" + {SEQUENCE!a})
"""


def run(folder: Path, words: list[str], *, on_terminal: bool) -> bytes:
    """Run the command with its output on a terminal of its own, or on a pipe; return what it wrote."""
    (folder / "tools.py").write_text(TOOLS)
    (folder / "broken.py").write_text(f"raise RuntimeError({SEQUENCE!a})\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")}
    env |= {"RUNNER_STATE_DIR": str(folder / "state"), "RUNNER_STORE": f"file://{folder}/store"}
    env |= {"PYTHONUTF8": "1"}
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    command = [sys.executable, "-m", "runner", *words]
    with subprocess.Popen(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        got = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:
                # A terminal without a writer is not readable.
                break
            if not data:
                break
            got += data
        process.wait(timeout=180)
    os.close(ours)
    return got


@pytest.mark.parametrize(
    "words",
    [
        ["check", "tools.py"],
        ["check", "broken.py"],
        ["call", "tools.py", "result"],
        ["call", "tools.py", "error"],
        ["call", "tools.py", "crash"],
        ["call", "tools.py", SEQUENCE],
        ["serve", "broken.py"],
        ["files", SEQUENCE],
        [SEQUENCE],
    ],
    ids=ascii,
)
def test_terminal_receives_sequences_of_others_as_escapes(tmp_path: Path, words: list[str]) -> None:
    got = run(tmp_path, words, on_terminal=True)

    assert SHOWN in got.replace(b"\r\n", b"")
    assert not {0x1B, 0x07} & set(got)
    assert "\u202e".encode() not in got


def test_pipe_receives_the_value_of_a_call_unchanged(tmp_path: Path) -> None:
    assert SEQUENCE.encode() in run(tmp_path, ["call", "tools.py", "result"], on_terminal=False)


@pytest.mark.parametrize("on_terminal", [True, False])
def test_json_of_a_call_holds_escapes_of_json(tmp_path: Path, on_terminal: bool) -> None:
    got = run(tmp_path, ["call", "tools.py", "result", "--json"], on_terminal=on_terminal)

    assert rb"\u001b]52;c;eA==\u0007\u001b[2J\u009b2J\u202e\udb40\udc41" in got
    assert 0x1B not in got
