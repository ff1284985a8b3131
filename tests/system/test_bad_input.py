"""Bad tool files and bad command lines: one clear sentence, the right exit status, never our own frames.

What a file does wrong is tried with a cell in this process; the exit status is the command's.
"""

from pathlib import Path
from typing import Any

import pytest
from support import SAMPLES, Ran, call, error_code, open_cell

from sandbox.errors import LoadError, SandboxError

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

HELLO = SAMPLES / "hello.py"

GOOD = '''from fastmcp import FastMCP

mcp = FastMCP("good")


@mcp.tool
def hi() -> str:
    """Answer."""
    return "hi"


'''

WITH_HOME = '''import os
from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("at-home")
if os.environ["USER"] != "nobody":
    Path(os.environ["HOME"], "../USER/early.txt").write_text("early")


@mcp.tool
def save(username: str) -> str:
    """Write."""
    Path(f"/tmp/{username}/late.txt").write_text("late")
    return "late"
'''

WITH_LIFESPAN = """from contextlib import asynccontextmanager

from fastmcp import FastMCP


@asynccontextmanager
async def lifespan(server):
    raise RuntimeError("no database")
    yield


mcp = FastMCP("with-lifespan", lifespan=lifespan)
"""

TWO = '''from fastmcp import FastMCP

first = FastMCP("first")
second = FastMCP("second")


@second.tool
def hi() -> str:
    """Answer."""
    return "hi from the second"


'''

NOT_AT_IMPORT = (
    "while the file was being imported; "
    "a tool file may write nothing and read no user's files at import: move it into a tool"
)


def written(folder: Path, text: str) -> Path:
    file = folder / "files" / "tool.py"
    file.parent.mkdir()
    file.write_text(text)
    return file


async def refusal(folder: Path, text: str, user: str | None = None, **settings: Any) -> str:
    """Return what is said of a file that cannot be loaded."""
    with pytest.raises(SandboxError) as caught:
        async with open_cell(written(folder, text), folder, user, **settings):
            pytest.fail("the file was loaded")
    return str(caught.value)


def one_sentence(ran: Ran) -> str:
    """Return what a command said, after checking that it is one line of ours and no more."""
    assert ran.out == ""
    assert ran.err.startswith("runner: ")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    return ran.err.removeprefix("runner: ").rstrip("\n")


async def test_a_good_file_is_loaded(folder: Path, user: str) -> None:
    async with open_cell(written(folder, GOOD), folder) as cell:
        completed = await call(cell, user, "hi")

    assert completed.processed.value == {"results": "hi"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(
            "from fastmcp import FastMCP\ndef broken(:\n",
            "tool.py, line 2: `def broken(:` is not Python: invalid syntax",
            id="syntax",
        ),
        pytest.param(
            "x = '\0'\n",
            "tool.py is not Python: source code string cannot contain null bytes",
            id="zero-byte",
        ),
        pytest.param(
            "answer = 42\n",
            "tool.py has no FastMCP object at its top level; "
            "add `mcp = FastMCP('name')` and decorate the tools with `@mcp.tool`",
            id="no-server",
        ),
        pytest.param(
            TWO,
            "tool.py has 2 FastMCP objects (first, second); say which one to serve: tool.py:first",
            id="two-servers",
        ),
        pytest.param(
            GOOD + "raise RuntimeError('no luck')\n",
            "tool.py, line 12: `raise RuntimeError('no luck')` raised RuntimeError: no luck",
            id="raises",
        ),
        pytest.param(
            GOOD + "import json\njson.loads('{')\n",
            "tool.py, line 13: `json.loads('{')` raised JSONDecodeError: "
            "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
            id="raises-in-a-library",
        ),
        pytest.param(
            GOOD + "import nowhere_to_be_found\n",
            "tool.py, line 12: `import nowhere_to_be_found` needs the module 'nowhere_to_be_found', "
            "which is not installed here",
            id="missing-module",
        ),
        pytest.param(
            GOOD + "import sys\nsys.exit(4)\n",
            "tool.py, line 13: `sys.exit(4)` left the interpreter (SystemExit 4) at import",
            id="exits",
        ),
        pytest.param(
            GOOD + "import os\nos._exit(4)\n",
            "the process that imported it ended with exit status 4",
            id="ends-its-process",
        ),
        pytest.param(
            GOOD + "import ctypes\nctypes.string_at(0)\n",
            "the process that imported it ended with signal SIGSEGV",
            id="crashes",
        ),
        pytest.param(WITH_LIFESPAN, "its lifespan raised RuntimeError: no database", id="lifespan"),
    ],
)
async def test_a_bad_file_is_refused_with_its_own_line(folder: Path, text: str, sentence: str) -> None:
    said = await refusal(folder, text)

    assert said == sentence


async def test_a_bad_file_is_refused_the_same_where_a_user_is_expected(folder: Path, user: str) -> None:
    said = await refusal(folder, GOOD + "raise RuntimeError('no luck')\n", user)

    assert said == "tool.py, line 12: `raise RuntimeError('no luck')` raised RuntimeError: no luck"


async def test_a_fault_in_a_module_beside_the_file_is_told_with_that_modules_line(folder: Path) -> None:
    file = written(folder, GOOD + "import beside\n")
    (file.parent / "beside.py").write_text("def start():\n    raise ValueError('deep')\n\n\nstart()\n")

    with pytest.raises(LoadError) as caught:
        async with open_cell(file, folder):
            pytest.fail("the file was loaded")

    assert str(caught.value) == "beside.py, line 2: `raise ValueError('deep')` raised ValueError: deep"


@pytest.mark.parametrize(
    "act", ["open({!r}, 'w')", "__import__('os').mkdir({!r})", "__import__('pathlib').Path({!r}).touch()"]
)
async def test_a_file_cannot_write_while_it_is_imported(folder: Path, act: str) -> None:
    target = folder / "outside"
    line = act.format(str(target))

    said = await refusal(folder, f"{GOOD}{line}\n")

    assert said == f"tool.py, line 12: `{line}` tried to use {str(target)!r} {NOT_AT_IMPORT}"
    assert not target.exists()


async def test_a_file_cannot_write_into_its_users_home_while_it_is_imported(folder: Path, user: str) -> None:
    file = written(folder, WITH_HOME)

    async with open_cell(file, folder) as cell:
        good = await call(cell, user, "save")
        file.write_text(WITH_HOME.replace("../USER", f"/tmp/{user}"))
        with cell.homes.lease(user) as home:
            pass
    async with open_cell(file, folder) as cell:
        bad = await call(cell, user, "save")
        left = sorted(path.name for path in home.path.iterdir())

    # Where the import may write is its own scratch folder, which no call sees.
    assert error_code(good) in (None, "E_TOOL")
    assert error_code(bad) == "E_TOOL"
    assert NOT_AT_IMPORT in str(bad.processed.value["results"])
    assert left == ["input_files"]


async def test_an_import_that_hangs_is_ended(folder: Path) -> None:
    said = await refusal(folder, GOOD + "import time\ntime.sleep(3600)\n", load_timeout_s=0.5)

    assert said == "it was still being imported after 0.5 seconds"


async def test_a_name_after_a_colon_picks_one_of_several_servers(folder: Path, user: str) -> None:
    file = written(folder, TWO)

    async with open_cell(Path(f"{file}:second"), folder) as cell:
        completed = await call(cell, user, "hi")

    assert completed.processed.value == {"results": "hi from the second"}


async def test_a_server_mounted_in_another_does_not_count(folder: Path, user: str) -> None:
    file = written(folder, TWO + "first.mount(second, namespace='inner')\n")

    async with open_cell(file, folder) as cell:
        completed = await call(cell, user, "inner_hi")

    assert completed.processed.value == {"results": "hi from the second"}


async def test_a_file_that_starts_a_thread_is_served_by_processes_of_one_call_each(
    folder: Path, user: str
) -> None:
    thread = (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
    )

    async with open_cell(written(folder, GOOD + thread), folder) as cell:
        async with cell.seat(cell_user(user), ACCESS) as seat:
            forks = seat.pool.forks
        completed = [await call(cell, user, "hi") for _ in range(2)]

    assert not forks
    assert [one.processed.value for one in completed] == [{"results": "hi"}] * 2
