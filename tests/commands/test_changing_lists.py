"""Lists that change while a server runs, for one session or all, compared with `fastmcp run`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.messages import MessageHandler
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from support import TOOLS, plain_server

pytestmark = [
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.kernel,
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

FILE = TOOLS / "changing.py"
VERSIONS = pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25", "2026-07-28"])
TRANSPORTS = pytest.mark.parametrize("transport", ["http", "stdio"])
OURS = ("available_files", "runner://", "artifact")


class Heard(MessageHandler):
    """Keeps which lists were said to have changed."""

    def __init__(self) -> None:
        self.changed: list[str] = []

    async def on_tool_list_changed(self, message: Any) -> None:
        self.changed.append("tools")

    async def on_resource_list_changed(self, message: Any) -> None:
        self.changed.append("resources")

    async def on_prompt_list_changed(self, message: Any) -> None:
        self.changed.append("prompts")


@pytest.fixture
def plain_http() -> Iterator[Callable[[Path], str]]:
    """Start a file as `fastmcp run` does; returns the URL of its MCP endpoint."""
    with ExitStack() as stack:
        yield lambda file: stack.enter_context(plain_server(file))


async def offered(client: Client[Any]) -> list[str]:
    tools = [tool.name for tool in await client.list_tools()]
    resources = [str(resource.uri) for resource in await client.list_resources()]
    prompts = [prompt.name for prompt in await client.list_prompts()]
    return sorted(name for name in (*tools, *resources, *prompts) if not name.startswith(OURS))


async def call_text(client: Client[Any], tool: str, **arguments: object) -> str:
    """Return the text that a tool answers with, or that it cannot be called."""
    try:
        answer = await client.call_tool(tool, arguments)
    except ToolError as error:
        # Which tool it was, both say; ours says which names are like it, too.
        return f"no {tool}" if tool in str(error) else str(error)
    return str(answer.data)


async def through(target: Any, version: str, act: Callable[..., Any]) -> list[object]:
    listener = Heard()
    mode = "legacy" if version < "2026" else version
    async with Client(target, mode=mode, message_handler=listener) as client:
        return [*await act(client), sorted(listener.changed)]


async def of_a_session(client: Client[Any]) -> list[object]:
    steps: list[object] = [await offered(client), await call_text(client, "secret", number=1)]
    steps += [
        await call_text(client, "reveal"),
        await offered(client),
        await call_text(client, "secret", number=2),
    ]
    if "hidden://page" in (await offered(client)):
        steps.append((await client.read_resource("hidden://page"))[0].text)  # type: ignore[union-attr]
        steps.append((await client.get_prompt("whisper")).messages[0].content.text)  # type: ignore[union-attr]
    return [
        *steps,
        await call_text(client, "conceal"),
        await offered(client),
        await call_text(client, "secret", number=3),
    ]


async def of_all(client: Client[Any]) -> list[object]:
    steps: list[object] = [await offered(client), await call_text(client, "added", number=1)]
    steps += [
        await call_text(client, "grow"),
        await offered(client),
        await call_text(client, "added", number=2),
    ]
    steps.append((await client.read_resource("added://page"))[0].text)  # type: ignore[union-attr]
    steps.append((await client.get_prompt("added_prompt")).messages[0].content.text)  # type: ignore[union-attr]
    steps += [
        await call_text(client, "shrink"),
        await offered(client),
        await call_text(client, "added", number=3),
    ]
    return [*steps, await call_text(client, "conceal")]


async def of_middleware(client: Client[Any]) -> list[object]:
    return [await call_text(client, "counted") for _ in range(3)]


ACTS = [of_a_session, of_all, of_middleware]


@VERSIONS
@TRANSPORTS
@pytest.mark.parametrize("act", ACTS, ids=[act.__name__ for act in ACTS])
async def test_list_changes_while_running_equal_fastmcp_run(
    act: Callable[..., Any],
    transport: str,
    version: str,
    serve_http: Callable[..., str],
    plain_http: Callable[[Path], str],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp.client.session.LATEST_HANDSHAKE_VERSION", version)
    script = str(Path(sys.executable).with_name("fastmcp"))
    plain = ["run", str(FILE), "--transport", "stdio", "--no-banner", "--skip-env"]
    served = ["-m", "runner.cli.app", "serve", str(FILE), "--transport", "stdio"]

    if transport == "http":
        theirs = await through(plain_http(FILE), version, act)
        ours = await through(serve_http(FILE), version, act)
    else:
        theirs = await through(StdioTransport(script, plain, env=environment, keep_alive=False), version, act)
        command = StdioTransport(sys.executable, served, env=environment, keep_alive=False)
        ours = await through(command, version, act)

    assert ours == theirs
