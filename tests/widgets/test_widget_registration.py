"""Widgets on a server: both addresses, versions, lists and reads, under plain FastMCP and the runner."""

from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.exceptions import McpError
from fastmcp.server.middleware import Middleware
from jsonschema import Draft202012Validator
from support import SAMPLES, open_toolset, settings_in

from runner.server.host import make_host
from runner.toolset.admission import Admission, FairQueue
from runner.toolset.toolset import Toolset
from runner.widgets import Csp, Widget, add_widgets
from runner.widgets.registration import served_pages

pytestmark = pytest.mark.anyio

SKYBRIDGE, MCP_APP = "text/html+skybridge", "text/html;profile=mcp-app"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

TOOL_FILE = '''
import os
from fastmcp import FastMCP
from fastmcp.tools import ToolResult
from runner.widgets import Widget, add_widgets

mcp = FastMCP("prices")
chart = Widget(name="chart", html="<p>A chart</p>", description="A chart")
add_widgets(mcp, [chart])


@mcp.tool(meta=chart.tool_meta(invoking="Drawing...", invoked="Chart ready"))
def show(points: list[int]) -> dict[str, list[int]]:
    """Show a chart."""
    return {"points": points}


@mcp.tool
def plain() -> int:
    """Return the number of a process."""
    return os.getpid()
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def server(*widgets: Widget) -> FastMCP:
    app: FastMCP = FastMCP("prices")
    shown = widgets or (Widget(name="chart", html="<p>A chart</p>", description="A chart"),)

    @app.tool(meta=shown[0].tool_meta(invoking="Drawing...", invoked="Chart ready"))
    def show() -> dict[str, int]:
        return {"points": 3}

    @app.tool
    def plain() -> int:
        return 1

    add_widgets(app, shown)
    return app


async def read(client: "Client[Any]", uri: str) -> dict[str, Any]:
    [content] = (await client.read_resource_mcp(uri)).contents
    return content.model_dump(by_alias=True, mode="json", exclude_none=True)


@pytest.mark.parametrize(
    ("uri", "mime"),
    [
        ("ui://widget/chart.html", SKYBRIDGE),
        ("ui://widget/chart.html?v=1.0.0", SKYBRIDGE),
        ("ui://widget/chart.html?v=2&x=%20", SKYBRIDGE),
        ("ui://widget/mcp-app/chart.html", MCP_APP),
        ("ui://widget/mcp-app/chart.html?v=3", MCP_APP),
    ],
)
async def test_page_answers_at_both_addresses_for_any_version(uri: str, mime: str) -> None:
    async with Client(server()) as client:
        content = await read(client, uri)

    assert (content["uri"], content["mimeType"], content["text"]) == (uri, mime, "<p>A chart</p>")
    assert content["_meta"]["ui"] == {
        "prefersBorder": True,
        "csp": {"connectDomains": [], "resourceDomains": []},
    }


@pytest.mark.parametrize("uri", ["ui://widget/other.html", "ui://widget/mcp-app/other.html", "ui://widget/"])
async def test_an_address_of_no_page_is_not_found(uri: str) -> None:
    async with Client(server()) as client:
        assert await read(client, "ui://widget/chart.html")

        with pytest.raises(McpError, match=r"(?i)not found|unknown"):
            await read(client, uri)


async def test_only_documented_address_is_listed_with_its_read_meta() -> None:
    csp = Csp(resources=("cdn.example.com",))
    both = [Widget(name=name, html=f"<p>{name}</p>", description=name, csp=csp) for name in ("one", "two")]

    async with Client(server(*both)) as client:
        listed = [item.model_dump(by_alias=True, mode="json") for item in await client.list_resources()]
        templates = await client.list_resource_templates()
        contents = [await read(client, item["uri"]) for item in listed]

    assert [item["uri"] for item in listed] == ["ui://widget/one.html", "ui://widget/two.html"]
    assert [item["_meta"] for item in listed] == [content["_meta"] for content in contents]
    assert {item["mimeType"] for item in listed} == {SKYBRIDGE}
    assert templates == []


async def test_schema_names_its_dialect_only_for_tools_with_a_page() -> None:
    async with Client(server()) as client:
        schemas = {tool.name: tool.input_schema for tool in await client.list_tools()}

    assert schemas["show"]["$schema"] == DIALECT
    assert "$schema" not in schemas["plain"]


def test_two_widgets_of_one_name_are_refused() -> None:
    twice = [Widget(name="chart", html="<p>1</p>", description="A chart") for _ in range(2)]

    with pytest.raises(ValueError, match="there are two widgets named 'chart'"):
        server(*twice)


def test_page_with_missing_file_is_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.html"):
        server(Widget(name="chart", html=tmp_path / "nowhere.html", description="A chart"))


class Sees(Middleware):
    async def on_read_resource(self, context: Any, call_next: Any) -> Any:
        return await call_next(context)


class Looks(Middleware):
    async def on_call_tool(self, context: Any, call_next: Any) -> Any:
        return await call_next(context)


async def test_host_serves_pages_unless_author_observes_reads() -> None:
    open_one, closed = server(), server()
    open_one.add_middleware(Looks())
    closed.add_middleware(Sees())

    assert [page["uris"] for page in await served_pages(open_one)] == [
        {"ui://widget/chart.html": SKYBRIDGE, "ui://widget/mcp-app/chart.html": MCP_APP}
    ]
    assert await served_pages(closed) == []


@pytest.mark.kernel
async def test_host_reads_page_without_worker_like_plain_fastmcp(folder: Path) -> None:
    file = folder / "prices.py"
    file.write_text(TOOL_FILE)
    plain: dict[str, Any] = {}
    exec(TOOL_FILE, plain)
    uris = ("ui://widget/chart.html", "ui://widget/mcp-app/chart.html", "ui://widget/chart.html?v=9")

    async with Client(plain["mcp"]) as client:
        expected = [await read(client, uri) for uri in uris]
        listed = [tool.model_dump(by_alias=True, mode="json") for tool in await client.list_tools()]
    async with (
        open_toolset(file, folder) as toolset,
        Client(make_host(toolset, transport="stdio", download_url=None)) as client,
    ):
        # No call may start: whatever needs a worker is refused.
        admission, toolset.admission = (
            toolset.admission,
            Admission(FairQueue(max_calls=0, max_calls_per_user=0, max_queue=0)),
        )
        found = [await read(client, uri) for uri in uris]
        with pytest.raises(McpError, match="waiting already"):
            await client.list_resources()
        toolset.admission = admission
        relayed = [tool.model_dump(by_alias=True, mode="json") for tool in await client.list_tools()]

    assert found == expected
    assert relayed[: len(listed)] == listed
    assert all(tool["name"].startswith("artifact_") for tool in relayed[len(listed) :])


@pytest.mark.kernel
async def test_tools_of_several_files_name_pages_where_they_then_are(folder: Path) -> None:
    for name in ("first", "second"):
        (folder / f"{name}.py").write_text(TOOL_FILE.replace("A chart</p>", f"{name}</p>"))
    files = [str(folder / f"{name}.py") for name in ("first", "second")]

    async with (
        Toolset.open(settings_in(folder), files) as toolset,
        Client(make_host(toolset, transport="stdio", download_url=None)) as client,
    ):
        tools = {tool.name: tool.meta or {} for tool in await client.list_tools()}
        listed = {str(resource.uri) for resource in await client.list_resources()}
        pages = {
            uri: (await read(client, uri))["text"]
            for tool in ("first_show", "second_show")
            for uri in (tools[tool]["openai/outputTemplate"], tools[tool]["ui"]["resourceUri"])
        }

    assert pages == {
        "ui://first/widget/chart.html": "<p>first</p>",
        "ui://first/widget/mcp-app/chart.html": "<p>first</p>",
        "ui://second/widget/chart.html": "<p>second</p>",
        "ui://second/widget/mcp-app/chart.html": "<p>second</p>",
    }
    assert {"ui://first/widget/chart.html", "ui://second/widget/chart.html"} <= listed


@pytest.mark.kernel
async def test_large_table_is_shortened_and_still_fits_its_schema(folder: Path) -> None:
    rows = [{"name": f"pizza {number}", "note": "with olives " * 3} for number in range(3000)]

    async with (
        open_toolset(SAMPLES / "chatui.py", folder) as toolset,
        Client(make_host(toolset, transport="stdio", download_url=None)) as client,
    ):
        [table] = [tool for tool in await client.list_tools() if tool.name == "display_table"]
        result = await client.call_tool_mcp("display_table", {"columns": ["name", "note"], "rows": rows})

    shown = result.structured_content or {}
    assert result.content[0].text == "Table with 3000 rows"
    assert 0 < len(shown["data"]) < 3000
    assert shown["data"][0] == rows[0]
    Draft202012Validator(table.output_schema or {}).validate(shown)
