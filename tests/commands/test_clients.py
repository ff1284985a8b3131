"""Served tools as clients see them: both SDK clients, both transports, both protocol eras.

What FastMCP itself answers for the same file is the expectation for everything but tool results,
which pass through the contract.
"""

import importlib.util
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

import mcp
import pytest
from answer_parts import blob_of, contract_of, meta_of, structured_of, text_of
from fastmcp import Client, FastMCP
from fastmcp.client.transports import StdioTransport
from mcp.client.stdio import StdioServerParameters, stdio_client
from support import TOOLS, environment_in, serving_over_http

from runner.toolset.hidden_identity import without_parameter

pytestmark = [
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.kernel,
    # The log messages of the handshake era, which tools still send and clients still get.
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

FILE = TOOLS / "every.py"
USER = f"t-{uuid.uuid4().hex[:12]}"
TRANSPORTS = ("stdio", "http")
MODES = ("auto", "legacy")

Connect = Callable[..., "AbstractAsyncContextManager[Client[Any]]"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("clients")
    return environment_in(folder, RUNNER_USER=USER)


@pytest.fixture(scope="module")
def url(environment: dict[str, str]) -> Iterator[str]:
    with serving_over_http(FILE, environment) as address:
        yield address


def over_stdio(environment: dict[str, str], mode: str, **options: Any) -> "Client[Any]":
    arguments = ["-m", "runner.cli.app", "serve", str(FILE), "--transport", "stdio"]
    stdio = StdioTransport(sys.executable, arguments, env=environment, keep_alive=False)
    return Client(stdio, mode=mode, **options)


@pytest.fixture(scope="module")
async def connected(environment: dict[str, str]) -> AsyncIterator[dict[str, "Client[Any]"]]:
    """One client over stdio for each era, for the tests that need no connection of their own."""
    async with AsyncExitStack() as stack:
        yield {mode: await stack.enter_async_context(over_stdio(environment, mode)) for mode in MODES}


@pytest.fixture(params=[(t, m) for t in TRANSPORTS for m in MODES], ids="-".join)
def connect(
    request: pytest.FixtureRequest,
    url: str,
    environment: dict[str, str],
    connected: dict[str, "Client[Any]"],
) -> Connect:
    """Make a FastMCP client of the runner, over each transport in each era; one with options is its own."""
    transport, mode = request.param

    def make(**options: Any) -> "AbstractAsyncContextManager[Client[Any]]":
        if transport == "http":
            return Client(url, mode=mode, **options)
        return over_stdio(environment, mode, **options) if options else nullcontext(connected[mode])

    return make


@pytest.fixture(params=[(t, m) for t in TRANSPORTS for m in MODES], ids="-".join)
def connect_sdk(
    request: pytest.FixtureRequest, url: str, environment: dict[str, str]
) -> "AbstractAsyncContextManager[mcp.Client]":
    """Connect a client of the plain SDK, over each transport in each era."""
    transport, mode = request.param

    @asynccontextmanager
    async def connected() -> AsyncIterator[mcp.Client]:
        parameters = StdioServerParameters(
            command=sys.executable,
            args=["-m", "runner.cli.app", "serve", str(FILE), "--transport", "stdio"],
            env=environment,
        )
        target = url if transport == "http" else stdio_client(parameters)
        async with mcp.Client(target, mode=mode) as client:
            yield client

    return connected()


@pytest.fixture(scope="module")
def plain() -> FastMCP:
    """The same file's own server, unconfined in this process."""
    spec = importlib.util.spec_from_file_location("every_plain", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server: FastMCP = module.mcp
    return server


def version_of(client: "Client[Any]") -> str:
    """Return the version that a connected client speaks."""
    assert client.protocol_version is not None
    return client.protocol_version


def dumped(items: Any) -> Any:
    if isinstance(items, list):
        return [dumped(item) for item in items]
    return items.model_dump(by_alias=True, mode="json", exclude_none=True)


async def test_file_offers_listed_as_by_fastmcp(connect: Connect, plain: FastMCP) -> None:
    async with connect() as client:
        ours = [
            dumped(await client.list_tools()),
            dumped(await client.list_resources()),
            dumped(await client.list_resource_templates()),
            dumped(await client.list_prompts()),
        ]
        version = version_of(client)
    era = "legacy" if version < "2026" else "auto"

    async with Client(plain, mode=era) as client:
        expected = [
            dumped(await client.list_tools()),
            dumped(await client.list_resources()),
            dumped(await client.list_resource_templates()),
            dumped(await client.list_prompts()),
        ]

    # Who calls is filled in by the server, and no business of its clients.
    for tool in expected[0]:
        tool["inputSchema"] = without_parameter(tool["inputSchema"], "username")

    assert [mine[: len(theirs)] for mine, theirs in zip(ours, expected, strict=True)] == expected
    added = [item for mine, theirs in zip(ours, expected, strict=True) for item in mine[len(theirs) :]]
    assert {"artifact_read", "runner://contract/2.1", "artifact://{id}{?offset,length}"} <= {
        item.get("uri", item.get("uriTemplate", item["name"])) for item in added
    }


async def test_server_introduction_equals_that_of_file(connect: Connect, plain: FastMCP) -> None:
    async with connect() as client:
        ours = (client.server_info, client.server_capabilities, version_of(client))
        instructions = client.instructions or ""
    era = "legacy" if ours[2] < "2026" else "auto"

    async with Client(plain, mode=era) as client:
        capabilities = client.server_capabilities
        assert capabilities is not None
        assert capabilities.resources is not None
        # The runner's own: clients may subscribe to the user's files.
        resources = capabilities.resources.model_copy(update={"subscribe": True})
        expected = (
            client.server_info,
            capabilities.model_copy(update={"resources": resources}),
            version_of(client),
        )
        of_file = client.instructions or ""

    assert ours == expected
    # The user may have files by now, which are named behind what the file says.
    assert of_file
    assert instructions.startswith(of_file)


async def test_resources_prompts_and_errors_pass_through(connect: Connect, plain: FastMCP) -> None:
    async def everything(client: "Client[Any]") -> list[Any]:
        read = [await client.read_resource("data://config"), await client.read_resource("data://item/7")]
        prompt = await client.get_prompt("about", {"topic": "bees"})
        with pytest.raises(mcp.MCPError) as missing:
            await client.read_resource("data://nothing")
        return [dumped(list(read[0])), dumped(list(read[1])), dumped(prompt.messages), missing.value.error]

    async with connect() as client:
        ours, version = await everything(client), version_of(client)
    async with Client(plain, mode="legacy" if version < "2026" else "auto") as client:
        expected = await everything(client)

    assert ours == expected


async def test_results_follow_contract_and_validate(connect: Connect) -> None:
    async with connect() as client:
        number = await client.call_tool("add", {"a": 40})
        text = await client.call_tool("greet", {"name": "Ann"})
        numbers = await client.call_tool("numbers", {"count": 3})
        point = await client.call_tool("shape", {"p": {"x": 3, "y": 1}, "n": 2})
        facts = await client.call_tool("facts", {"key": "k"})

    assert (number.data, number.structured_content) == (42, {"result": 42})
    assert (text.data, text_of(text.content[0])) == ("hello Ann", "hello Ann")
    assert (numbers.data, numbers.structured_content) == ([0, 1, 2], {"result": [0, 1, 2]})
    assert point.structured_content == {"x": 6, "y": 1}
    assert facts.structured_content == {"key": "k", "nested": {"a": [1, None, True]}}
    for bare in (number, text, numbers, point, facts):
        assert bare.meta is not None
        assert "results" in bare.meta["toolcell/result"]


async def test_plain_sdk_client_gets_equal_results(
    connect_sdk: "AbstractAsyncContextManager[mcp.Client]",
) -> None:
    async with connect_sdk as client:
        await client.list_tools()
        query: dict[str, dict[str, Any]] = {
            "add": {"a": 40},
            "greet": {"name": "Ann"},
            "numbers": {"count": 2},
            "shape": {"p": {"x": 1}},
            "facts": {"key": "k"},
        }
        results = {name: await client.call_tool(name, arguments) for name, arguments in query.items()}
        failed = await client.call_tool("fails", {"reason": "no luck"})

    assert {name: result.structured_content for name, result in results.items()} == {
        "add": {"result": 42},
        "greet": {"result": "hello Ann"},
        "numbers": {"result": [0, 1]},
        "shape": {"x": 1, "y": 0},
        "facts": {"key": "k", "nested": {"a": [1, None, True]}},
    }
    assert failed.is_error
    assert "no luck" in text_of(failed.content[0])
    assert '"E_TOOL"' in text_of(failed.content[1])


async def test_raising_tool_returns_error_with_author_line(
    connect: Connect,
) -> None:
    async with connect() as client:
        result = await client.call_tool("fails", {"reason": "no luck"}, raise_on_error=False)

    assert result.is_error
    envelope = contract_of(result)
    assert envelope["results"] == {"error": "no luck"}
    assert envelope["meta_data"]["details"]["exception_type"] == "ValueError"
    assert envelope["meta_data"]["details"]["frames"][-1].startswith("every.py, line ")
    assert "raise ValueError(reason)" in envelope["meta_data"]["details"]["frames"][-1]


async def test_content_blocks_and_tool_results_kept(connect: Connect) -> None:
    async with connect() as client:
        mixed = await client.call_tool("mixed")
        raw = await client.call_tool("raw")
        injected = await client.call_tool("injected", {"word": "so"})

    assert [block.type for block in mixed.content] == ["text", "resource_link"]
    assert raw.structured_content == {"a": 1}
    assert meta_of(raw)["m"] == 1
    assert injected.data == "so every? every"


async def test_image_becomes_readable_user_file(
    connect: Connect,
) -> None:
    async with connect() as client:
        result = await client.call_tool("picture")
        (file,) = contract_of(result)["artifacts"]
        contents = await client.read_resource(file["uri"])

    assert [block.type for block in result.content] == ["image"]
    assert file["mime"] == "image/png"
    assert contents[0].mime_type == "image/png"
    assert len(blob_of(contents[0])) == 96


async def test_progress_and_messages_reach_client(connect: Connect) -> None:
    reports: list[tuple[float, float | None, str | None]] = []
    messages: list[tuple[str, Any]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    async def on_message(message: Any) -> None:
        messages.append((message.level, message.data["msg"]))

    async with connect(progress_handler=on_progress, log_handler=on_message) as client:
        result = await client.call_tool("steps", {"count": 2})
        era = version_of(client)

    assert reports == [(1, 2, "step 1"), (2, 2, "step 2")]
    assert structured_of(result)["request_id"]
    if era < "2026":
        # A client of the modern era asks for messages in each request, which FastMCP's does not.
        expected = [
            (level, f"{level} {n}") for n in (0, 1) for level in ("debug", "info", "warning", "error")
        ]
        assert messages == expected


async def test_tool_knows_calling_user(connect: Connect) -> None:
    async with connect() as client:
        result = await client.call_tool("whoami", {"username": "somebody else"})

    facts = structured_of(result)
    assert facts["username"] == USER
    assert facts["session"] is True
    assert facts["transport"] in ("stdio", "streamable-http")


async def test_session_state_lives_as_long_as_in_fastmcp(connect: Connect, plain: FastMCP) -> None:
    async def stored_word(client: "Client[Any]") -> str:
        await client.call_tool("remember", {"value": "this"})
        return str((await client.call_tool("remember")).data)

    async with connect() as client:
        ours, version = await stored_word(client), version_of(client)
    async with Client(plain, mode="legacy" if version < "2026" else "auto") as client:
        expected = await stored_word(client)

    assert ours == expected


async def test_tool_can_elicit_from_user(connect: Connect) -> None:
    async def answer(message: str, response_type: Any, params: Any, context: Any) -> Any:
        assert message == "What is your name?"
        return {"value": "Ann"}

    async with connect(elicitation_handler=answer) as client:
        tool = "ask" if version_of(client) < "2026" else "ask_again"
        result = await client.call_tool(tool)

    assert text_of(result.content[0]) in ("accept: Ann", "asked once: Ann")
