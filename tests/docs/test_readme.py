"""README: each block of it is run, and its output compared with what the README shows."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from console_examples import ROOT, Session, code_blocks, console_sessions, pattern, run

README = (ROOT / "README.md").read_text()


def sessions() -> list[Session]:
    """Return every command of the README with its output, by block."""
    install_and_call, _tests = code_blocks(README, "sh")
    first_call = (install_and_call.split("&&")[-1].strip(), code_blocks(README, "text")[0])
    return [[first_call], *console_sessions(README)]


@pytest.mark.kernel
def test_readme_commands_print_their_output(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    shutil.copytree(ROOT / "sample_tools", tmp_path / "sample_tools")
    blocks = sessions()

    # At once: each command spends seconds of one processor on imports.
    with ThreadPoolExecutor(len(blocks)) as threads:
        done = [threads.submit(run, block, tmp_path, tmp_path) for block in blocks]

    assert sum(map(len, blocks)) == 6
    for each in done:
        each.result()


def test_readme_output_pattern_refuses_another_line() -> None:
    assert re.fullmatch(pattern("one\n…\nlast …\n"), "one\ntwo\nthree\nlast of all\n")
    assert not re.fullmatch(pattern("one\n…\nlast …\n"), "one\ntwo\nlast of all\nand more\n")


def test_readme_tool_file_is_the_sample() -> None:
    assert code_blocks(README, "python") == [(ROOT / "sample_tools" / "hello.py").read_text()]


def test_readme_row_count_is_that_of_the_sample_data() -> None:
    rows = len((ROOT / "sample_tools" / "data" / "sales.csv").read_text().splitlines()) - 1

    assert f"{rows:,} rows" in README
