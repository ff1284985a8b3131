"""`runner init`: a working tool file, its test, and an initial runner.toml."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from runner.errors import UsageError
from runner.settings.sources import SCHEMA
from runner.settings.trust import UnsafeFile, read_judged, trust

__all__ = ["FILES", "init"]

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

_TEST = '''"""The tool as its users get it: called by `runner`, confined, its files collected.

    python test_my_tool.py

pytest runs it too, where it is installed.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import uuid
from pathlib import Path

TOOL = Path(__file__).resolve().with_name("my_tool.py")


class MyToolTest(unittest.TestCase):
    def setUp(self):
        """Give `runner` state and store of its own, and a user nobody else is."""
        self.command = shutil.which("runner", path=Path(sys.executable).parent) or shutil.which("runner")
        assert self.command, "install toolcell into this environment: pip install toolcell"
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        user = f"test-{uuid.uuid4().hex[:8]}"
        self.addCleanup(shutil.rmtree, f"/tmp/{user}", ignore_errors=True)
        store = (self.folder / "store").as_uri()
        own = {"RUNNER_STATE_DIR": str(self.folder / "state"), "RUNNER_STORE": store, "RUNNER_USER": user}
        self.environment = {**os.environ, **own}

    def runner(self, *arguments):
        words = [self.command, *map(str, arguments)]
        return subprocess.run(
            words, capture_output=True, text=True, cwd=self.folder, env=self.environment, check=False
        )

    def test_words_are_counted_and_written_to_a_table(self):
        text = self.folder / "text.txt"
        text.write_text("One fish two fish\\n")

        called = self.runner("call", TOOL, "count_words", f"filename=@{text}", "--json")

        self.assertEqual(called.returncode, 0, called.stderr)
        answer = json.loads(called.stdout)
        self.assertEqual(
            answer["results"], {"words": 4, "most_frequent": {"fish": 2, "one": 1, "two": 1}}
        )
        table = base64.b64decode(answer["artifacts"][0]["b64"]).decode()
        self.assertEqual(table.splitlines(), ["word,count", \'"fish",2\', \'"one",1\', \'"two",1\'])

    def test_nothing_in_the_file_would_surprise_its_author(self):
        checked = self.runner("check", TOOL, "--json")

        self.assertEqual(json.loads(checked.stdout)["findings"], [])
        self.assertEqual(checked.returncode, 0)


if __name__ == "__main__":
    unittest.main()
'''

_CONFIG = f"""#:schema {SCHEMA.as_uri()}
# Settings of `runner` in this folder. `runner config` shows all and where each came from.

# Longest silence of a call and longest call, in seconds.
idle_timeout_s = 30
total_timeout_s = 600
"""

FILES = {"my_tool.py": _TOOL, "test_my_tool.py": _TEST, "runner.toml": _CONFIG}
"""Files to write, content by name."""


def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder to write to.")] = Path(),
) -> int:
    """Write the files; what exists is never overwritten."""
    written = _write(folder)
    print(_next_steps(written, _trust(written[-1])))  # noqa: T201
    return 0


def _write(folder: Path) -> list[Path]:
    """Write the files into a folder, which is created if missing, and return them.

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
            with open(folder / name, "x", encoding="utf-8", opener=_closed_to_writers) as file:
                file.write(text)
            written.append(folder / name)
    except OSError as error:
        raise UsageError(f"{error.filename or folder} cannot be written: {error.strerror}") from error
    return written


def _closed_to_writers(name: str, flags: int) -> int:
    """Open a file that no other user can write, whatever the umask: otherwise it would not be trusted."""
    return os.open(name, flags, 0o644)


def _trust(config: Path) -> str:
    """Trust the new configuration file; return a sentence about it."""
    try:
        trust([read_judged(config)])
    except (OSError, UnsafeFile, UsageError) as error:
        return f"{config} is not trusted: {error}"
    return f"trusted {config}"


def _next_steps(written: list[Path], trusted: str) -> str:
    """Return the lines for the caller of `runner init`."""
    tool = written[0]
    return "\n".join(
        [
            *(f"wrote {path}" for path in written),
            trusted,
            "next:",
            f"  runner check {tool}",
            f"  runner call {tool} count_words filename=@{written[2]}",
            f"  {_python()} {written[1]}",
        ]
    )


def _python() -> str:
    """Return the shell word that starts the interpreter with `runner`."""
    found = shutil.which("python")
    is_this = found is not None and Path(found).resolve() == Path(sys.executable).resolve()
    return "python" if is_this and Path(found or "").parent == Path(sys.executable).parent else sys.executable
