"""Every kind of file: servers of each library, entries of each form, and modules whose names are taken."""

import importlib.util
import json
import py_compile
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import Request, RequestParams, Result
from support import Ran

pytestmark = [pytest.mark.needs_npm, pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

FASTMCP = """
from fastmcp import FastMCP
mcp = FastMCP("plain")

@mcp.tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
"""
HIGH = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("high")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

@server.tool()
def fail(why: str) -> str:
    "Fail."
    raise ValueError(why)
"""
LOW = """
from contextlib import asynccontextmanager
import mcp.types as types
from mcp.server import Server

@asynccontextmanager
async def lifespan(server):
    yield {"factor": 1}

async def tools(ctx, params):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    factor = ctx.lifespan_context["factor"]
    names = ["add"] if params is None or params.cursor is None else ["more"]
    cursor = "next" if names == ["add"] else None
    listed = [types.Tool(name=name, description="x" * factor, input_schema=schema) for name in names]
    return types.ListToolsResult(tools=listed, next_cursor=cursor)

async def call(ctx, params):
    total = sum(params.arguments.values()) * ctx.lifespan_context["factor"]
    return types.CallToolResult(content=[types.TextContent(type="text", text=str(total))])

app = Server("low", on_list_tools=tools, on_call_tool=call, lifespan=lifespan)
"""


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


PACKAGE = {"pack/__init__.py": "", "pack/server.py": FASTMCP}
TOOL_OF_BASE = "from .base import mcp\n" + FASTMCP.partition('plain")\n')[2]
MADE = """
from fastmcp import FastMCP

async def make() -> FastMCP:
    mcp = FastMCP("made")

    @mcp.tool
    def add(a: int, b: int) -> int:
        "Add."
        return a + b

    return mcp
"""
NEAR = "import near\n" + FASTMCP
CONFIG = '{"source": {"path": "src/tool.py", "entrypoint": "mcp"}}'

ENTRIES = {
    "fastmcp": ({"tool.py": FASTMCP}, "tool.py"),
    "named": ({"tool.py": FASTMCP + "one = mcp\n"}, "tool.py:one"),
    "high": ({"tool.py": HIGH}, "tool.py"),
    "low": ({"tool.py": LOW}, "tool.py"),
    "low-second-page": ({"tool.py": LOW}, "tool.py"),
    "factory": ({"tool.py": FASTMCP + "def make():\n    return mcp\n"}, "tool.py:make"),
    "async-factory": ({"tool.py": MADE}, "tool.py:make"),
    "first-name-of-several": ({"tool.py": FASTMCP + "other = FastMCP('other')\n"}, "tool.py"),
    "config": ({"conf/fastmcp.json": CONFIG, "conf/src/tool.py": FASTMCP}, "conf/fastmcp.json"),
    "config-of-a-folder": (
        {"conf/fastmcp.json": '{"source": {"path": "tool.py:mcp"}}', "conf/tool.py": FASTMCP},
        "conf",
    ),
    "package": (
        {
            "pack/__init__.py": "",
            "pack/server.py": TOOL_OF_BASE,
            "pack/base.py": "from fastmcp import FastMCP\nmcp = FastMCP('pack')\n",
        },
        "pack",
    ),
    "module": (PACKAGE, "pack.server"),
    "module-and-name": (PACKAGE, "pack.server:mcp"),
    "package-by-itself": (
        {"pack/__init__.py": "from pack.inner import mcp", "pack/inner.py": FASTMCP},
        "pack/__init__.py",
    ),
    "dots": ({"a/tool.py": NEAR, "a/near.py": "", "b/c/x": ""}, "b/../b/c/../../a/tool.py"),
    "blank": ({"my tools/tool file.py": NEAR, "my tools/near.py": ""}, "my tools/tool file.py"),
    "letters": ({"wörk/größe-ß.py": "import près\n" + FASTMCP, "wörk/près.py": ""}, "wörk/größe-ß.py"),
}


@pytest.mark.parametrize("kind", ENTRIES)
def test_target_named_in_any_form_is_called(kind: str, run: Callable[..., Ran], folder: Path) -> None:
    files, target = ENTRIES[kind]
    written(folder, files)
    tool = "more" if kind == "low-second-page" else "add"

    ran = run("call", target, tool, "a:=1", "b:=2", "--json")

    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["results"] in (3, {"result": 3}, "3")


@pytest.mark.parametrize("kind", ["high", "config", "package", "module", "dots"])
def test_check_and_install_take_same_targets_as_call(
    kind: str, run: Callable[..., Ran], folder: Path
) -> None:
    files, target = ENTRIES[kind]
    written(folder, files)

    checked = run("check", target, "--json")
    installed = run("install", "mcp-json", target)

    assert "add" in [tool["name"] for tool in json.loads(checked.out)["tools"]], checked.err
    (entry,) = json.loads(installed.out)["mcpServers"].values()
    assert run("call", entry["args"][1], "add", "a:=1", "b:=2").out == "3\n"


def test_sdk_wrapped_result_logs_no_repair(run: Callable[..., Ran], folder: Path) -> None:
    written(folder, {"tool.py": HIGH})

    ran = run("call", "tool.py", "add", "a=1", "b=2", "--log-level", "info")

    assert ran.out == "3\n"
    assert "tool=add" in ran.err
    assert "repaired" not in ran.err


def test_link_to_a_tool_file_finds_modules_where_it_leads(run: Callable[..., Ran], folder: Path) -> None:
    here, there = folder / "here", folder / "there"
    written(there, {"tool.py": "import beside\n" + FASTMCP, "beside.py": "", "other.py": "import planted"})
    written(here, {"beside.py": "raise ValueError('of the link')", "planted.py": ""})
    (here / "link.py").symlink_to(there / "tool.py")
    (here / "other.py").symlink_to(there / "other.py")

    assert run("call", "here/link.py", "add", "a=1", "b=2").out == "3\n"
    assert "needs the module 'planted'" in run("call", "here/other.py", "add").err


READING = """
from fastmcp import FastMCP
from . import value
mcp = FastMCP("reading")

@mcp.tool
def read(path: str) -> str:
    "Read a file."
    return value.TEXT + open(path).read()
"""


@pytest.mark.parametrize("tier", ["process", "namespace"])
def test_link_in_a_package_opens_nothing_and_source_is_loaded(
    tier: str, run: Callable[..., Ran], folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    away = tmp_path_factory.mktemp("away")
    written(folder, {"pk/server.py": READING, "pk/value.py": "TEXT = 'source '", "pk/plain.txt": "plain"})
    written(folder, {"pk/__init__.py": ""})
    written(away, {"empty.py": "", "value.py": "TEXT = 'bytecode '"})
    for source, module in (("empty.py", "pk/__init__.py"), ("value.py", "pk/value.py")):
        py_compile.compile(
            str(away / source),
            cfile=importlib.util.cache_from_source(folder / module),
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    call = ("call", "pk/server.py", "read", "--isolation", tier)
    plain, before = run(*call, f"path={folder}/pk/plain.txt"), run(*call, f"path={away}/value.py")
    (folder / "pk/__init__.py").unlink()
    (folder / "pk/__init__.py").symlink_to(away / "value.py")
    after = run(*call, f"path={away}/value.py")

    assert plain.out == "source plain\n", plain.err
    assert before.status != 0
    assert after.status != 0
    assert "TEXT =" not in after.out


def test_config_passes_arguments_and_variables_not_host_secrets(
    run: Callable[..., Ran], folder: Path
) -> None:
    expected = {
        "source": {"path": "tool.py"},
        "deployment": {
            "args": ["--big"],
            "env": {"MODE": "on", "SEEN": "<${HIDDEN}>", "GIVEN": "<${SHOWN}>"},
        },
    }
    tool = (
        "import os, sys\nfrom fastmcp import FastMCP\nmcp = FastMCP('x')\nARGS = sys.argv[1:]\n@mcp.tool\n"
        "def seen() -> str:\n    'See.'\n"
        "    return ' '.join([*ARGS, *(os.environ[n] for n in ('MODE', 'SEEN', 'GIVEN'))])\n"
    )
    written(folder, {"fastmcp.json": json.dumps(expected), "tool.py": tool})

    ran = run("call", ".", "seen", "--allow-env", "SHOWN", HIDDEN="secret", SHOWN="public")

    assert ran.out == "--big on <${HIDDEN}> <public>\n", ran.err


def test_author_modules_named_like_ours_reach_tool_only(run: Callable[..., Ran], folder: Path) -> None:
    tool = """
import json, runner, sandbox
from runner.deep import DEEP
from fastmcp import FastMCP
import decimal, email.message
mcp = FastMCP("taken")

@mcp.tool
def marks(username: str) -> list[str]:
    "Say whose modules these are."
    import json as again
    import statistics
    from sandbox import MARK
    return [json.MARK, again.MARK, runner.MARK, DEEP, MARK, statistics.__name__]
"""
    written(
        folder,
        {
            "tools/tool.py": tool,
            "tools/json.py": "import sys, os, logging\nMARK = 'my json'\n",
            "tools/sandbox.py": "import json\nMARK = 'my sandbox, ' + json.MARK\n",
            "tools/runner/__init__.py": "MARK = 'my runner'\n",
            "tools/runner/deep.py": "DEEP = 'deep'\n",
        },
    )

    ran = run("call", "tools/tool.py", "marks", "--json")

    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["results"] == [
        "my json", "my json", "my runner", "deep", "my sandbox, my json", "statistics",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["json.py", "runner.py", "sandbox.py", "asyncio.py", "fastmcp.py"])
def test_tool_file_may_share_name_of_module(name: str, run: Callable[..., Ran], folder: Path) -> None:
    written(folder, {f"tools/{name}": FASTMCP})

    assert run("call", f"tools/{name}", "add", "a=1", "b=2").out == "3\n"


@pytest.mark.parametrize("name", ["typer", "json", "sandbox/__init__", "runner/cli", "click"])
def test_working_folder_modules_replace_nothing_in_host(
    name: str, folder: Path, environment: dict[str, str]
) -> None:
    written(folder, {f"{name}.py": "import pathlib\npathlib.Path('ran').touch()\n", "tool.py": FASTMCP})
    by_python = [sys.executable, "-c", f"import {name.split('/')[0]}"]

    # Control: Python itself takes what lies in the folder one stands in.
    subprocess.run(by_python, cwd=folder, check=False, capture_output=True)
    is_taken = (folder / "ran").exists()
    (folder / "ran").unlink(missing_ok=True)
    script = [str(Path(sys.executable).with_name("runner"))]
    # A package of our name hides ours before the first line of ours could run.
    module = [] if "/" in name else [[sys.executable, "-m", "runner"]]
    ended = [
        subprocess.run(
            [*command, "call", "tool.py", "add", "a=1", "b=2"],
            cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=100,
        )
        for command in [script, *module]
    ]  # fmt: skip

    assert is_taken or name == "runner/cli"
    assert [ran.stdout for ran in ended] == ["3\n"] * len(ended)
    assert not (folder / "ran").exists()


PROXY = "runner proxy -- "


@pytest.mark.parametrize(
    ("files", "target", "line"),
    [
        pytest.param({"s.mjs": "//"}, "s.mjs", "runner proxy -- node {folder}/s.mjs", id="node"),
        pytest.param({}, "https://example.com/mcp", "runner proxy https://example.com/mcp", id="address"),
        pytest.param({"m.json": '{"mcpServers": {}}'}, "m.json", "runner proxy {folder}/m.json", id="list"),
        pytest.param(
            {"s.py": "def main():\n    pass\nif __name__ == '__main__':\n    main()\n"},
            "s.py",
            "runner proxy -- {python} {folder}/s.py",
            id="serves-itself",
        ),
        pytest.param(
            {"p/__init__.py": "", "p/__main__.py": "import p.cli"},
            "p",
            "runner proxy --allow-read={folder} -- env PYTHONPATH={folder} {python} -m p",
            id="runs-as-a-module",
        ),
        pytest.param(
            {"s.py": "from mcp.server.fastmcp import FastMCP\n"},
            "s.py",
            "pin 'mcp<2' to keep running v1 code. Serve it from an environment with that version, and what "
            "else it needs: python -m venv mcp1 && mcp1/bin/pip install 'mcp<2', then "
            "runner proxy -- mcp1/bin/python {folder}/s.py",
            id="first-sdk-suggests-a-version",
        ),
    ],
)
def test_unservable_file_names_line_that_serves_it(
    files: dict[str, str], target: str, line: str, run: Callable[..., Ran], folder: Path
) -> None:
    written(folder, files)

    ran = run("serve", target, "--transport", "stdio")

    assert ran.status == 2
    wanted = line.format(folder=folder, python=sys.executable)
    assert wanted in ran.err or wanted.replace(sys.executable, "python") in ran.err


OWN_METHOD = """
from mcp.server import Server
from mcp.types import RequestParams
from pydantic import BaseModel

class Question(RequestParams):
    what: str

class Answer(BaseModel):
    text: str

async def answer(ctx, params):
    return Answer(text=params.what.upper())

server = Server("own")
server.add_request_handler("x-own/ask", Question, answer)
"""


class QuestionParams(RequestParams):
    what: str


class AnswerResult(Result):
    text: str


async def test_low_level_server_answers_methods_and_empty_lists(
    environment: dict[str, str], folder: Path
) -> None:
    file = written(folder, {"own.py": OWN_METHOD}) / "own.py"
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "runner.cli.app", "serve", str(file), "--transport", "stdio"],
        env=environment,
    )

    async with stdio_client(command) as streams, ClientSession(*streams) as session:
        await session.initialize()
        request = Request[QuestionParams, str](method="x-own/ask", params=QuestionParams(what="hello"))
        answer = await session.send_request(request, AnswerResult)
        tools = await session.list_tools()
        prompts = [prompt.name for prompt in (await session.list_prompts()).prompts]

    assert answer.text == "HELLO"
    assert (tools.tools, prompts) == ([], ["available_files"])


SERVES_ITSELF = """
def main():
    from fastmcp import FastMCP
    mcp = FastMCP("inner")

    @mcp.tool
    def hello() -> str:
        "Say hello."
        return "hello"

    mcp.run(show_banner=False)
"""


@pytest.mark.parametrize("target", ["alone.py", "src/pack"])
async def test_suggested_line_serves_file(
    target: str, run: Callable[..., Ran], environment: dict[str, str], folder: Path
) -> None:
    runs = "if __name__ == '__main__':\n    main()\n"
    package = {"__init__": "", "inside": SERVES_ITSELF, "__main__": "from .inside import main\n" + runs}
    written(folder, {"alone.py": SERVES_ITSELF + runs, **{f"src/pack/{k}.py": v for k, v in package.items()}})

    refused = run("serve", target, "--transport", "stdio")
    line = shlex.split(refused.err[refused.err.index("runner proxy") :])
    script = str(Path(sys.executable).with_name("runner"))
    command = StdioServerParameters(command=script, args=line[1:], env=environment)
    async with stdio_client(command) as streams, ClientSession(*streams) as session:
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]

    assert tools[0] == "hello"
