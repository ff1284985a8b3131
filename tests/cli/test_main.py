"""The way in: when a forkserver gets a head start, and that it is gone when nobody wants it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.__main__ import head_start

ROOT = Path(__file__).parents[2]


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    (folder / "homes").mkdir(mode=0o700, exist_ok=True)
    environment = {
        **os.environ,
        "RUNNER_STATE_DIR": str(folder / "state"),
        "RUNNER_STORE": (folder / "store").as_uri(),
        "RUNNER_HOMES": str(folder / "homes"),
    }
    command = [sys.executable, "-m", "runner", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False
    )


@pytest.mark.kernel
def test_a_call_is_answered_through_the_way_in(tmp_path: Path) -> None:
    done = run(tmp_path, "call", "sample_tools/hello.py", "shout", "text=hi", "--user", "t-way-in")

    assert (done.returncode, done.stdout) == (0, "HI\n"), done.stderr


@pytest.mark.release
@pytest.mark.kernel
def test_a_variable_that_tools_may_see_reaches_them_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "seen.py"
    file.write_text(
        "import os\nfrom fastmcp import FastMCP\nmcp = FastMCP('seen')\n"
        "@mcp.tool\ndef seen() -> str:\n    return os.environ.get('SEEN_BY_TOOLS', 'nothing')\n"
    )
    monkeypatch.setenv("SEEN_BY_TOOLS", "something")

    done = run(tmp_path, "call", str(file), "seen", "--user", "t-seen", "--allow-env", "SEEN_BY_TOOLS")

    assert (done.returncode, done.stdout) == (0, "something\n"), done.stderr


@pytest.mark.release
@pytest.mark.kernel
def test_errors_masked_by_environment_have_no_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "masked.py"
    file.write_text(
        "from fastmcp import FastMCP\nmcp = FastMCP('masked')\n"
        "@mcp.tool\ndef fails() -> str:\n    raise ValueError('a detail')\n"
    )
    open_call = run(tmp_path, "call", str(file), "fails", "--user", "t-masked")
    monkeypatch.setenv("FASTMCP_MASK_ERROR_DETAILS", "true")

    masked_call = run(tmp_path, "call", str(file), "fails", "--user", "t-masked")

    assert "Error: a detail [E_TOOL]" in open_call.stderr + open_call.stdout
    assert "Error: Error calling tool 'fails' [E_TOOL]" in masked_call.stderr + masked_call.stdout


@pytest.mark.parametrize("words", [[], ["doctor"], ["call", "--help"], ["--version"]])
def test_a_command_without_a_tool_file_starts_no_forkserver(words: list[str]) -> None:
    assert head_start(words) is None


@pytest.mark.parametrize(("command", "lasting"), [("serve", True), ("call", False)])
def test_a_head_start_is_a_process_that_can_be_discarded(command: str, lasting: bool) -> None:
    launched = head_start([command, "file.py"])

    assert launched is not None
    running = launched.process.poll() is None
    launched.discard()
    assert (running, launched.lasting) == (True, lasting)
    assert launched.process.returncode is not None
