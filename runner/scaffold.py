"""What `runner init` writes: a tool file that works, its test, and a runner.toml to start from."""

from pathlib import Path

from runner.errors import UsageError

__all__ = ["FILES", "next_steps", "write_project"]

_TOOL = '''"""Count the words of a text file.

    runner call my_tool.py count_words filename=@some.txt --user me
"""

from collections import Counter
from pathlib import Path
from typing import Any

from fastmcp import Context, FastMCP

mcp = FastMCP("my-tool")

REPORT_EVERY = 10_000


@mcp.tool
async def count_words(filename: str, username: str, ctx: Context, most: int = 10) -> dict[str, Any]:
    """Count the words of a text file and write a table of all of them.

    Args:
        filename: A text file of the user.
        username: Filled in by the server: who calls. A tool that takes it may write to /tmp/{username}/.
        ctx: Filled in by the server.
        most: How many of the most frequent words to return.
    """
    counted: Counter[str] = Counter()
    with open(filename, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file):
            counted.update(line.lower().split())
            # A call that says nothing for 30 seconds is ended.
            if number % REPORT_EVERY == 0:
                await ctx.report_progress(number, message=f"{number} lines read")

    table = Path(f"/tmp/{username}/words.csv")
    rows = (f'"{word.replace(chr(34), chr(34) * 2)}",{count}' for word, count in counted.most_common())
    table.write_text("\\n".join(["word,count", *rows]) + "\\n", encoding="utf-8")

    return {
        "results": {"words": counted.total(), "most_frequent": dict(counted.most_common(most))},
        "artifacts": [
            {
                "name": "words.csv",
                "path": str(table),
                "mime": "text/csv",
                "description": "Every word and how often it occurs",
            }
        ],
    }
'''

_TEST = '''"""The tool as its users get it: called by `runner`, confined, its files collected."""

import base64
import json
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

TOOL = Path(__file__).with_name("my_tool.py")


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """Run `runner ARGUMENT...` with state and store of its own, as a user nobody else is."""
    command = shutil.which("runner", path=Path(sys.executable).parent) or shutil.which("runner")
    assert command, "install toolcell into this environment: pip install toolcell"
    tmp_path.chmod(0o700)
    user = f"test-{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("RUNNER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("RUNNER_STORE", (tmp_path / "store").as_uri())
    monkeypatch.setenv("RUNNER_USER", user)

    def run(*arguments):
        words = [command, *map(str, arguments)]
        return subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)

    yield run
    shutil.rmtree(f"/tmp/{user}", ignore_errors=True)


def test_words_are_counted_and_written_to_a_table(runner, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("One fish two fish\\n")

    called = runner("call", TOOL, "count_words", f"filename=@{text}", "--json")

    assert called.returncode == 0, called.stderr
    answer = json.loads(called.stdout)
    assert answer["results"] == {"words": 4, "most_frequent": {"fish": 2, "one": 1, "two": 1}}
    table = base64.b64decode(answer["artifacts"][0]["b64"]).decode()
    assert table.splitlines() == ["word,count", \'"fish",2\', \'"one",1\', \'"two",1\']


def test_nothing_in_the_file_would_surprise_its_author(runner):
    checked = runner("check", TOOL, "--json")

    assert json.loads(checked.stdout)["findings"] == []
    assert checked.returncode == 0
'''

_CONFIG = """# Settings of `runner` in this folder. `runner config` shows all and where each came from.

# Longest silence of a call and longest call, in seconds.
idle_timeout_s = 30
total_timeout_s = 600
"""

FILES = {"my_tool.py": _TOOL, "test_my_tool.py": _TEST, "runner.toml": _CONFIG}
"""What is written: names and contents."""


def write_project(folder: Path) -> list[Path]:
    """Write the files into a folder, which is made if it is missing, and return them.

    Raises:
        UsageError: One of them exists, or the folder cannot be written.
    """
    taken = [name for name in FILES if (folder / name).exists() or (folder / name).is_symlink()]
    if taken:
        where = folder if folder != Path() else "this folder"
        raise UsageError(f"{where} already has {', '.join(taken)}; nothing was written: name another folder")
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
            written.append(folder / name)
    except OSError as error:
        raise UsageError(f"{error.filename or folder} cannot be written: {error.strerror}") from error
    return written


def next_steps(written: list[Path]) -> str:
    """Return what to say to whoever ran `runner init`."""
    tool = written[0]
    return "\n".join(
        [
            *(f"wrote {path}" for path in written),
            "next:",
            f"  runner check {tool}",
            f"  runner call {tool} count_words filename=@{written[2]}",
            f"  pytest {written[1]}",
        ]
    )
