"""Bad tool files and bad command lines: one clear sentence, the right exit status, never our own frames.

What a file does wrong is tried with a toolset in this process; the exit status is the command's.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from support import SAMPLES, Ran, call, open_toolset

from runner.homes.homes import Homes
from runner.toolset.user_pool import HomeAccess
from runner.users.identity import User
from sandbox.errors import LoadError, SandboxError

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

HELLO = SAMPLES / "hello.py"

GOOD = '''from fastmcp import FastMCP

mcp = FastMCP("good")


@mcp.tool
def hi() -> str:
    """Answer."""
    return "hi"


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
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


async def refusal(folder: Path, text: str, **settings: Any) -> str:
    """Return what is said of a file that cannot be loaded."""
    with pytest.raises(SandboxError) as caught:
        async with open_toolset(written(folder, text), folder, isolation="process", **settings):
            pytest.fail("the file was loaded")
    return str(caught.value)


def one_sentence(ran: Ran) -> str:
    """Return what a command said, after checking that it is one line of ours and no more."""
    assert ran.out == ""
    assert ran.err.startswith("runner: ")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    return ran.err.removeprefix("runner: ").rstrip("\n")


async def test_good_file_is_loaded(folder: Path, user: str) -> None:
    async with open_toolset(written(folder, GOOD), folder) as toolset:
        completed = await call(toolset, user, "hi")

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
            GOOD + "import sys\nsys.path[:0] = [sys.path, '/srv/team/modules']\nimport nowhere_to_be_found\n",
            "tool.py, line 14: `import nowhere_to_be_found` needs the module 'nowhere_to_be_found', "
            "which is not installed here. For the operator: --allow-read=/srv/team/modules lends a folder of "
            "sys.path to be read, where it is there",
            id="module-in-a-folder-not-lent",
        ),
        pytest.param(
            GOOD + "import sys\nsys.exit(4)\n",
            "tool.py, line 13: `sys.exit(4)` left the interpreter (SystemExit 4) at import",
            id="exits",
        ),
        pytest.param(
            GOOD + "import os\nos.environ['A_KEY_OF_MINE']\n",
            "tool.py, line 13: `os.environ['A_KEY_OF_MINE']` raised KeyError: 'A_KEY_OF_MINE'; "
            "tools see few variables of the environment, and what it asks for with --allow-env=A_KEY_OF_MINE",
            id="variable-not-shown",
        ),
        pytest.param(
            GOOD + "{}['A_KEY_OF_MINE']\n",
            "tool.py, line 12: `{}['A_KEY_OF_MINE']` raised KeyError: 'A_KEY_OF_MINE'",
            id="key-of-no-variable",
        ),
        pytest.param(
            GOOD + "raise OSError('Temporary failure in name resolution')\n",
            "tool.py, line 12: `raise OSError('Temporary failure in name resolution')` raised OSError: "
            "Temporary failure in name resolution; without --allow-net=HOST a tool file has no network",
            id="network",
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
    ],
)
async def test_bad_file_refused_with_its_own_line(folder: Path, text: str, sentence: str) -> None:
    message = await refusal(folder, text)

    assert message == sentence


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param("mcp.run()", id="stdio"),
        pytest.param("mcp.run(transport='http', port=0)", id="http"),
        pytest.param("import asyncio\nasyncio.run(mcp.run_async())", id="async"),
        pytest.param("import anyio\nanyio.run(mcp.run_http_async)", id="async-http"),
        pytest.param(
            "from mcp.server import MCPServer\nMCPServer('other').run('streamable-http')", id="of-the-sdk"
        ),
    ],
)
async def test_file_that_runs_server_at_import_served_normally(folder: Path, user: str, ending: str) -> None:
    # What follows shows that serving came back, and that nothing of it goes on in a thread.
    after = "\nimport threading\nassert threading.active_count() == 1\n"
    async with open_toolset(written(folder, f"{GOOD}{ending}{after}"), folder) as toolset:
        completed = await call(toolset, user, "hi")

    assert completed.processed.value == {"results": "hi"}


async def test_raising_lifespan_refused(folder: Path) -> None:
    with pytest.raises(SandboxError, match=r"^its lifespan raised RuntimeError: no database$"):
        async with open_toolset(written(folder, WITH_LIFESPAN), folder):
            pytest.fail("the file was loaded")


async def test_bad_file_refused_alike_where_user_expected(folder: Path, user: str) -> None:
    with pytest.raises(LoadError, match=r"raised RuntimeError: no luck$"):
        async with open_toolset(written(folder, GOOD + "raise RuntimeError('no luck')\n"), folder, user):
            pytest.fail("the file was loaded")


async def test_fault_in_sibling_module_reports_its_line(folder: Path) -> None:
    (folder / "files").mkdir()
    (folder / "files" / "beside.py").write_text("def start():\n    raise ValueError('deep')\n\n\nstart()\n")

    message = await refusal(folder, GOOD + "import beside\n")

    assert message == "beside.py, line 2: `raise ValueError('deep')` raised ValueError: deep"


@pytest.mark.parametrize(
    "act", ["open({!r}, 'w')", "__import__('os').mkdir({!r})", "__import__('pathlib').Path({!r}).touch()"]
)
async def test_file_cannot_write_during_import(folder: Path, act: str) -> None:
    target = folder / "outside"
    line = act.format(str(target))

    message = await refusal(folder, f"{GOOD}{line}\n")

    assert message == f"tool.py, line 12: `{line}` tried to use {str(target)!r} {NOT_AT_IMPORT}"
    assert not target.exists()


@pytest.mark.parametrize("isolation", ["process", "namespace"])
async def test_denied_read_at_import_names_allow_read_option(folder: Path, isolation: str) -> None:
    text = f"{GOOD}open('/srv/elsewhere/notes.txt').read()\n"

    with pytest.raises(
        SandboxError, match="--allow-read=/srv/elsewhere lends it to be read, where it is there"
    ):
        async with open_toolset(written(folder, text), folder, isolation=isolation):
            pytest.fail("the file was loaded")


async def test_file_cannot_write_into_home_during_import(folder: Path, user: str) -> None:
    with Homes(Path("/tmp"), folder / "state").lease(user) as home:
        line = f"open('{home.path}/early.txt', 'w')"

        message = await refusal(folder, f"{GOOD}{line}\n")

        assert message == f"tool.py, line 12: `{line}` tried to use '{home.path}/early.txt' {NOT_AT_IMPORT}"
        assert sorted(path.name for path in home.path.iterdir()) == ["input_files"]


async def test_hanging_import_ended(folder: Path) -> None:
    message = await refusal(folder, GOOD + "import time\ntime.sleep(3600)\n", load_timeout_s=0.5)

    assert message == "it was still being imported after 0.5 seconds (load_timeout_s)"


async def test_name_after_colon_selects_server(folder: Path, user: str) -> None:
    file = written(folder, TWO)

    async with open_toolset(Path(f"{file}:second"), folder) as toolset:
        completed = await call(toolset, user, "hi")

    assert completed.processed.value == {"results": "hi from the second"}


async def test_mounted_server_does_not_count_as_second(folder: Path, user: str) -> None:
    file = written(folder, TWO + "first.mount(second, namespace='inner')\n")

    async with open_toolset(file, folder) as toolset:
        completed = await call(toolset, user, "inner_hi")

    assert completed.processed.value == {"results": "hi from the second"}


async def test_file_starting_thread_served_by_single_call_processes(folder: Path, user: str) -> None:
    thread = (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
    )

    async with open_toolset(written(folder, GOOD + thread), folder) as toolset:
        async with toolset.user_pool(
            User(user), toolset.key(User(user), access=HomeAccess.NONE)
        ) as user_pool:
            forks = user_pool.pool.forks
        completed = [await call(toolset, user, "hi") for _ in range(2)]

    assert not forks
    assert [one.processed.value for one in completed] == [{"results": "hi"}] * 2


async def test_printed_output_does_not_break_protocol(
    folder: Path, environment: dict[str, str], user: str
) -> None:
    noise = "import os\nprint('noise')\nos.system('echo noise from a shell')\nos.write(1, b'noise\\n')\n"
    file = written(folder, GOOD.replace('return "hi"', 'print("noise"); return "hi"') + noise)
    arguments = ["-m", "runner.cli.app", "serve", str(file), "--transport", "stdio", "--user", user]

    async with Client(StdioTransport(sys.executable, arguments, env=environment)) as client:
        answered = await client.call_tool("hi")

    assert answered.data == "hi"


def test_printed_output_stays_out_of_json_document(run: Callable[..., Ran], folder: Path, user: str) -> None:
    noise = "import os\nprint('noise')\nos.system('echo noise from a shell')\n"
    file = written(folder, GOOD.replace('return "hi"', 'print("noise"); return "hi"') + noise)

    ran = run("call", file, "hi", "--json", "--user", user)

    assert ran.status == 0
    assert ran.out == '{"results": "hi"}\n'


def test_hidden_file_is_reported_below_the_result(
    environment: dict[str, str], folder: Path, user: str
) -> None:
    file = written(folder, GOOD.replace('return "hi"', 'return ".env"'))
    (file.parent / ".env").write_text("TOKEN=1\n")
    command = [sys.executable, "-m", "runner.cli.app", "call", str(file), "hi", "--user", user]

    ran = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )

    *_, result, notice = ran.stdout.splitlines()
    assert result == ".env"
    assert "hidden file not lent" in notice
    assert f"--allow-read={file.parent / '.env'}" in notice


@pytest.mark.parametrize("command", ["call", "serve"])
def test_unloadable_file_ends_command(run: Callable[..., Ran], folder: Path, user: str, command: str) -> None:
    file = written(folder, GOOD + "raise RuntimeError('no luck')\n")

    ran = run(command, file, *(["hi"] if command == "call" else []), "--user", user)

    assert ran.status == 2
    assert one_sentence(ran) == (
        "tool.py cannot be served: tool.py, line 12: `raise RuntimeError('no luck')` "
        "raised RuntimeError: no luck"
    )


def test_file_hanging_at_import_ends_command(run: Callable[..., Ran], folder: Path, user: str) -> None:
    file = written(folder, GOOD + "import time\ntime.sleep(3600)\n")

    ran = run("call", file, "hi", "--user", user, RUNNER_LOAD_TIMEOUT_S="1")

    assert ran.status == 2
    assert one_sentence(ran) == (
        "tool.py cannot be served: it was still being imported after 1 seconds (load_timeout_s)"
    )


def test_file_ending_its_process_is_named(run: Callable[..., Ran], folder: Path, user: str) -> None:
    file = written(folder, GOOD + "import os\nos._exit(4)\n")

    ran = run("call", file, "hi", "--user", user)

    assert ran.status == 2
    assert one_sentence(ran) == (
        "tool.py cannot be served: the process that imported it ended with exit status 4"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.py", "hi"], "there is no file missing.py"),
        (
            [".", "hi"],
            ". is a folder, and none of fastmcp.json, server.py, __init__.py, main.py, app.py, mcp.py, "
            "__main__.py in it makes a server, nor is there a */SKILL.md; name the Python file that does",
        ),
        (["notes.txt", "hi"], "notes.txt is not a Python file: its name must end in .py"),
        (
            [HELLO, "shout", "--args", "{a"],
            "--args: '{a' is not a JSON object: "
            "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        (
            [HELLO, "shout", "loud"],
            "'loud' is not an argument; write name=value, name:=json or name=@path",
        ),
        (
            [HELLO, "shout", "--timeout", "-3"],
            "flag --timeout: -3.0 will not do for idle_timeout_s: input should be greater than 0",
        ),
        (
            [HELLO, "shout", "--config", "missing.toml"],
            "configuration file missing.toml does not exist; check --config",
        ),
        (
            [HELLO, "shout", "--config", "misspelt.toml"],
            "misspelt.toml, line 1: there is no setting idle_timeout; did you mean idle_timeout_s?",
        ),
        (
            [HELLO, "shout", "--config", "broken.toml"],
            "configuration file broken.toml cannot be read: Invalid statement (at line 1, column 1)",
        ),
    ],
    ids=[
        "missing-file",
        "folder",
        "no-python",
        "bad-json",
        "no-argument",
        "bad-timeout",
        "missing-config",
        "misspelt-config",
        "broken-config",
    ],
)
def test_wrong_command_line_answered_with_one_sentence(
    run: Callable[..., Ran], folder: Path, arguments: list[str | Path], sentence: str
) -> None:
    (folder / "notes.txt").write_text("no tool")
    (folder / "misspelt.toml").write_text("idle_timeout = 3\n")
    (folder / "broken.toml").write_text("= 3\n")

    ran = run("call", *arguments)

    assert ran.status == 2
    assert one_sentence(ran) == sentence


@pytest.mark.parametrize(
    "arguments",
    [["call", HELLO], ["call", HELLO, "shout", "--loud"], ["serve"]],
    ids=["no-tool", "unknown-option", "no-file"],
)
def test_misused_command_prints_usage(run: Callable[..., Ran], arguments: list[str | Path]) -> None:
    ran = run(*arguments)

    assert ran.status == 2
    assert ran.err.startswith("Usage: ")
    assert "Traceback" not in ran.err


def test_unavailable_isolation_ends_command(run: Callable[..., Ran], folder: Path) -> None:
    # In a folder that is closed to every other user, so no user of its own could read it.
    closed = folder / "closed.py"
    shutil.copy(HELLO, closed)

    ran = run("call", closed, "shout", "text=hi", "--isolation", "user")

    assert ran.status == 5
    sentence = one_sentence(ran)
    assert "closed to other users" in sentence or "root" in sentence


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shoot", "text=hi"], "There is no tool named 'shoot'"),
        (["shout", "text:=3"], "text: Input should be a valid string, got 3"),
        (["shout", "text:={}"], "text: Input should be a valid string, got an object"),
    ],
    ids=["unknown-tool", "wrong-type", "wrong-type-of-object"],
)
def test_call_with_wrong_arguments_prints_json_error(
    run: Callable[..., Ran], user: str, arguments: list[str], message: str
) -> None:
    ran = run("call", HELLO, *arguments, "--json", "--user", user)

    assert ran.status == 2
    assert ran.json["results"] == {"error": message}
    assert ran.err == ""


def test_result_is_printed_if_its_files_cannot_be_written(run: Callable[..., Ran], user: str) -> None:
    ran = run("call", HELLO, "shout", "text=hi", "--json", "--user", user, "--out", "/dev/null/folder")

    assert ran.status == 2
    assert ran.json == {"results": "HI"}
    assert "cannot be written to /dev/null/folder" in ran.err
