"""Code mode: what clients get, what code may do, and what its calls of tools count for."""

import contextlib
import json
import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.exceptions import ToolError
from support import becomes, settings_in

from runner.errors import UsageError
from runner.server.code_mode import MOST_CALLS, narrowed
from runner.server.host import make_host
from runner.server.serve import with_code
from runner.settings.execution import ToolSettings
from runner.toolset.approvals import ApprovalFiles
from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

TOOL_FILE = """
import os
from fastmcp import FastMCP
mcp = FastMCP("plain")

@mcp.tool
def rows(count: int) -> list[dict[str, int]]:
    "Return rows of sales."
    return [{"sale": each} for each in range(count)]

@mcp.tool
def search(word: str) -> str:
    "Search the archive."
    return f"the archive has {word}"

@mcp.tool
def fail(text: str) -> str:
    raise ValueError(text)

@mcp.tool
def secret() -> str:
    return os.environ["CODE_TEST"]

@mcp.tool
def scoped() -> str:
    return "for few"

@mcp.tool(meta={"ui": {"visibility": ["app"]}})
def buy() -> str:
    return "bought"
"""


@contextlib.asynccontextmanager
async def serving(folder: Path, file: str = "tools.py", **more: Any) -> AsyncIterator[Client[Any]]:
    """Serve the file in code mode to one user."""
    folder.chmod(0o700)
    (folder / file).write_text(TOOL_FILE)
    user = f"t-{uuid.uuid4().hex[:12]}"
    settings = settings_in(folder, **({"user": user, "code_mode": True} | more))
    opened = Toolset.open(settings, [str(folder / file)])
    async with (
        with_code(settings, opened) as toolset,
        Client(make_host(toolset, transport="stdio", download_url=None)) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def audit_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory, audit_dir: Path) -> AsyncIterator[Client[Any]]:
    """A client whose user may have one call at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CODE_TEST", "of the operator")
        more: dict[str, Any] = {"allow_env": ("CODE_TEST",), "audit_dir": audit_dir, "max_calls_per_user": 1}
        async with serving(tmp_path_factory.mktemp("code"), **more) as it:
            yield it


async def run(client: Client[Any], code: str) -> Any:
    """Run code; return its result as the client reads it."""
    result = await client.call_tool("execute", {"code": code})
    return text_of(result) if result.structured_content is None else result.structured_content


def text_of(result: Any) -> str:
    return "".join(block.text for block in result.content if block.type == "text")


async def test_code_mode_lists_three_tools(client: Client[Any]) -> None:
    listed = [tool.name for tool in await client.list_tools()]

    assert [name for name in listed if name in ("search", "get_schema", "execute")] == listed[:3]
    assert not {"rows", "fail"} & set(listed)


async def test_code_mode_search_and_schema_show_tools_of_file(client: Client[Any]) -> None:
    found = await client.call_tool("search", {"query": "rows of sales"})
    schema = await client.call_tool("get_schema", {"tools": ["rows", "search"]})

    assert "- rows: Return rows of sales." in text_of(found)
    assert "`count` (integer, required)" in text_of(schema)
    assert "`word` (string, required)" in text_of(schema)


async def test_code_calls_tools_and_returns_answer_only(client: Client[Any]) -> None:
    code = (
        "found = await call_tool('rows', {'count': 100})\nreturn sum(row['sale'] for row in found['result'])"
    )

    assert await run(client, code) == "4950"


async def test_code_reaches_tool_with_name_of_code_mode(client: Client[Any]) -> None:
    assert (await run(client, "return await call_tool('search', {'word': 'x'})"))[
        "result"
    ] == "the archive has x"


async def test_code_gets_error_of_tool_and_goes_on(client: Client[Any]) -> None:
    code = """
try:
    await call_tool('fail', {'text': 'no rows'})
except Exception as error:
    return {'told': str(error)}
"""
    assert "no rows" in (await run(client, code))["told"]


async def test_tool_of_pages_alone_not_reached_by_code(client: Client[Any]) -> None:
    by_page = await client.call_tool("buy")
    with pytest.raises(ToolError, match="may not be called by code"):
        await run(client, "await call_tool('buy')")
    found = text_of(await client.call_tool("get_schema", {"tools": ["buy", "rows"]}))

    assert text_of(by_page) == "bought"
    assert "### rows" in found
    assert "### buy" not in found


@pytest.mark.parametrize("name", ["execute", "get_schema"])
async def test_code_cannot_run_code(name: str, client: Client[Any]) -> None:
    with pytest.raises(ToolError, match="no tool"):
        await run(client, f"await call_tool({name!r}, {{'code': 'return 1', 'tools': []}})")


async def test_calls_of_one_run_bounded(client: Client[Any]) -> None:
    code = f"""
import asyncio
done = await asyncio.gather(
    *(call_tool('search', {{'word': str(each)}}) for each in range({MOST_CALLS + 3})), return_exceptions=True
)
return {{'failed': sum(isinstance(one, Exception) for one in done)}}
"""
    assert (await run(client, code))["failed"] == 3


async def test_code_waits_for_tools_in_its_own_place(client: Client[Any]) -> None:
    """With one call at a time for each user, a run that needed a second place would wait for ever."""
    assert await run(client, "return (await call_tool('rows', {'count': 1}))['result'][0]['sale']") == "0"


async def test_each_inner_call_is_in_audit_log(client: Client[Any], audit_dir: Path) -> None:
    with pytest.raises(ToolError):
        await run(client, "await call_tool('fail', {'text': 'x'})")

    def ended() -> list[str]:
        (log,) = audit_dir.glob("*.jsonl")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [line["tool"] for line in lines if "outcome" in line][-2:]

    assert await becomes(lambda: ended() == ["fail", "execute"])


async def test_code_is_denied_what_tools_are_granted(client: Client[Any]) -> None:
    inside = await run(client, "return await call_tool('secret')")
    outside = await run(client, "import os\nreturn {'found': os.environ.get('CODE_TEST')}")

    assert inside == {"result": "of the operator"}
    assert outside == {"found": None}


DENIED = {
    "write": ("open({place!r} + '/code.txt', 'w').close()", ("/etc", "/usr", "/var/tmp")),
    "other home": ("import os; os.listdir({place!r})", ("/tmp/{other}",)),
    "network": ("import socket; socket.create_connection(({place!r}, 53), 2)", ("192.0.2.1", "127.0.0.1")),
}


@pytest.mark.parametrize(
    ("act", "place"), [(act, place) for act, places in DENIED.values() for place in places]
)
async def test_code_denied_outside_its_home(act: str, place: str, client: Client[Any]) -> None:
    other = Path("/tmp", f"t-{uuid.uuid4().hex[:12]}")
    other.mkdir(0o777)
    try:
        allowed = await run(client, "open('own.txt', 'w').close(); import os; return os.listdir('.')")
        with pytest.raises(ToolError) as denied:
            await run(client, act.format(place=place.format(other=other.name)))
    finally:
        other.rmdir()

    assert "own.txt" in json.dumps(allowed)
    assert re.search(r"E_INVALID_PATH|E_NETWORK_DENIED|No such file", str(denied.value)), str(denied.value)
    assert not Path(place, "code.txt").exists()


async def test_code_starts_in_fresh_process(client: Client[Any]) -> None:
    code = (
        "import json\nold = getattr(json, 'left', None)\njson.left = 1\nreturn {'old': old, 'new': json.left}"
    )

    first, second = await run(client, code), await run(client, code)

    assert first == second == {"old": None, "new": 1}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1\nreturn (", "line 2: SyntaxError"),
        ("x = 1\nraise KeyError('gone')", "line 2: KeyError: 'gone'"),
        ("yield 1", "line 1: TypeError"),
        ("x = '\0'", "line 1: SyntaxError"),
        (f"x = {'-' * 20000}1", "line 1: MemoryError"),
    ],
)
async def test_code_at_fault_named_by_line(code: str, words: str, client: Client[Any]) -> None:
    with pytest.raises(ToolError) as failure:
        await run(client, code)

    assert words in str(failure.value)


async def test_approval_of_code_is_for_tools_of_one_server(tmp_path: Path) -> None:
    shared: dict[str, Any] = {
        "user": f"t-{uuid.uuid4().hex[:12]}",
        "approvals": {"code": {"tools": ["execute"], "by": "operator"}},
    }
    files = ApprovalFiles(settings_in(tmp_path).state_dir)
    async with serving(tmp_path, **shared) as one, serving(tmp_path, "other.py", **shared) as other:
        with pytest.raises(ToolError, match="was not run"):
            await run(one, "return 1")
        ((pending, _, _),) = files.listed()
        files.answer(pending.id, approve=True)
        with pytest.raises(ToolError, match="was not run"):
            await run(other, "return 1")
        assert await run(one, "return 1") == "1"

    assert pending.server == "code_mode.py, tools.py"


PATTERN = {
    "allow_net": ("192.0.2.1",),
    "allow_env": ("CODE_TEST",),
    "allow_read": (Path("/usr/share"),),
    "allow_write": (Path("/usr/share"),),
    "allow_sockets": True,
    "background_jobs": True,
    "worker_reuse": "shared",
}


@pytest.mark.parametrize(("table", "is_granted"), [("execute", True), ("*", False), ("exec*", False)])
def test_pattern_of_tools_grants_code_nothing(table: str, is_granted: bool, tmp_path: Path) -> None:
    own = ToolSettings(**PATTERN, allow_run=(), memory_mb=64, scopes=("few",))
    settings = narrowed(settings_in(tmp_path, tools={table: own}))

    granted = settings.of_tool("execute")

    assert [getattr(granted, name) == value for name, value in PATTERN.items()] == [is_granted] * len(PATTERN)
    assert (granted.allow_run, granted.memory_mb, settings.scopes("execute")) == ((), 64, ("few",))


async def test_table_of_settings_for_two_tools_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\[tools.search\].*rename"):
        async with serving(tmp_path, tools={"search": ToolSettings(memory_mb=64)}):
            raise AssertionError("it was served")


async def test_silent_code_killed_by_ladder(tmp_path: Path) -> None:
    async with serving(tmp_path, idle_timeout_s=1.0, total_timeout_s=20.0) as client:
        with pytest.raises(ToolError, match="E_TIMEOUT"):
            await run(client, "while True: pass")
        assert await run(client, "return 'alive'") == "alive"


async def test_code_mode_refused_for_fleet(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="code_mode does not work in a fleet"):
        async with serving(tmp_path, redis_url="redis://127.0.0.1:1", redis_insecure=True):
            raise AssertionError("it was opened")
