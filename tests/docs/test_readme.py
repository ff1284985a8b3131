"""README: each block of it is run, and its output compared with what the README shows."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent
ENDLESS = "serve"


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def sessions() -> Iterator[tuple[str, str]]:
    """Yield each command that the README shows with its output."""
    install_and_call, _tests = code_blocks("sh")
    yield install_and_call.split("&&")[-1].strip(), code_blocks("text")[0]
    for block in code_blocks("console"):
        for session in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = session.partition("\n")
            yield command, output


def pattern(output: str) -> str:
    """Make a regular expression of an output: `…` is any text, alone on a line any lines."""
    lines = (
        "(?:.*\n)*?" if line.strip() == "…" else re.escape(line).replace("…", ".*") + "\n"
        for line in output.splitlines()
    )
    # The server of the test takes any free port.
    return "".join(lines).replace(":8000/", r":\d+/")


def run(command: str, folder: Path) -> str:
    words = shlex.split(command.replace("v/bin/", f"{BIN}/", 1))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")}
    environment |= {
        "RUNNER_PORT": "0",
        # So that it promises no more memory than a small machine has, and does not say so.
        "RUNNER_MAX_CALLS": "1",
        # Homes that killed tests left in /tmp are swept at a start, and logged.
        "RUNNER_LOG_LEVEL": "warning",
        "RUNNER_STATE_DIR": f"{folder}/state",
        "RUNNER_STORE": f"file://{folder}/store",
    }
    with subprocess.Popen(
        words,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        if words[1] != ENDLESS:
            return process.stdout.read()
        shown = ""
        for line in process.stdout:
            shown += line
            if line.startswith("Playground:"):
                break
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        return shown


@pytest.mark.kernel
def test_readme_commands_print_their_output(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    for command, output in sessions():
        shown = run(command, tmp_path)

        assert re.fullmatch(pattern(output), shown), shown


def test_readme_output_pattern_refuses_another_line() -> None:
    assert re.fullmatch(pattern("one\n…\nlast …\n"), "one\ntwo\nthree\nlast of all\n")
    assert not re.fullmatch(pattern("one\n…\nlast …\n"), "one\ntwo\nlast of all\nand more\n")


def test_readme_tool_file_is_the_sample() -> None:
    assert code_blocks("python") == [(ROOT / "sample_tools" / "hello.py").read_text()]


def test_readme_row_count_is_that_of_the_sample_data() -> None:
    rows = len((ROOT / "sample_tools" / "data" / "sales.csv").read_text().splitlines()) - 1

    assert f"{rows:,} rows" in README
