"""The five tools of document 003, called as its prompts ask, over HTTP and on stdio."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pages_support_data import NAMES
from support import environment_in
from widget_server import CHATUI, WidgetServer, serving

from runner.protocol.artifact_tools import READING

pytestmark = [pytest.mark.kernel, pytest.mark.release]

HINTS = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False, "idempotentHint": True}
ONLY_A_UI = "This tool only renders a UI and does not modify external data."
TOOLS = {
    "display_chat": (
        "Use this when the user wants a conversation-style interaction or needs a dedicated chat view. "
        f"{ONLY_A_UI}",
        "chat-view",
        "Opening chat interface...",
        "Chat interface ready",
    ),
    "display_search_results": (
        "Use this when presenting multiple search results or recommendations the user needs to scan. "
        "This tool only renders results and does not perform searches.",
        "search-results",
        "Preparing search results...",
        "Search results displayed",
    ),
    "display_table": (
        "Use this when presenting structured tabular data (comparisons, schedules, lists).",
        "pizzaz-table",
        "Preparing table...",
        "Table displayed",
    ),
    "display_demo": (
        "Use this for testing or demonstrating the widget system (kitchen-sink widget). Read-only.",
        "kitchen-sink-lite",
        "Loading demo...",
        "Demo widget ready",
    ),
    "display_dashboard": (
        f"Use this when the user wants a dashboard-style overview. {ONLY_A_UI}",
        "dashboard-widget",
        "Opening dashboard...",
        "Dashboard ready",
    ),
}
TWO = [
    {"id": 1, "title": "Margherita"},
    {"id": "d", "title": "Diavola", "tags": ["hot"], "url": "https://e.org"},
]
ROWS = [{"name": "Margherita", "price": 8}, {"name": "Diavola", "price": 10.5, "hot": True, "note": None}]


@pytest.fixture(scope="module")
def server() -> Iterator[WidgetServer]:
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def tools(server: WidgetServer) -> dict[str, dict[str, Any]]:
    return server.tools()


def text(result: Mapping[str, Any]) -> str:
    assert not result.get("isError"), result
    [block] = result["content"]
    return str(block["text"])


def test_server_is_chatui_1_0_0_with_five_tools_and_nine_pages(
    server: WidgetServer, tools: dict[str, Any]
) -> None:
    """Source: S3-1, S3-2, S3-4 and S3-88 to S3-96."""
    hello = server.result("initialize")
    listed = [item["uri"] for item in server.result("resources/list")["resources"]]

    assert hello["serverInfo"] == {"name": "chatui", "version": "1.0.0"}
    # The tools that read stored content follow those of the file.
    assert list(tools) == [*TOOLS, *READING]
    assert {uri for uri in listed if uri.startswith("ui://")} == {
        f"ui://widget/{name}.html" for name in NAMES
    }


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_is_listed_as_documented(tools: dict[str, Any], name: str) -> None:
    """Source: S3-3, S3-5, S3-12 to S3-20, S3-34 to S3-42, S3-52 to S3-61, S3-64 to S3-73, S3-79 to S3-86,
    S3-117, S3-122, S3-140 and S3-153.
    """
    description, page, invoking, invoked = TOOLS[name]
    tool = tools[name]
    meta = {key: value for key, value in tool["_meta"].items() if key != "fastmcp"}

    assert tool["description"] == description
    assert tool["annotations"] == HINTS
    assert tool["securitySchemes"] == [{"type": "noauth"}]
    assert tool["inputSchema"]["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert tool["inputSchema"]["additionalProperties"] is False
    assert meta == {
        "securitySchemes": [{"type": "noauth"}],
        "openai/outputTemplate": f"ui://widget/{page}.html",
        "openai/widgetAccessible": False,
        "openai/visibility": "public",
        "openai/toolInvocation/invoking": invoking,
        "openai/toolInvocation/invoked": invoked,
        "openai/fileParams": [],
        "ui": {"resourceUri": f"ui://widget/mcp-app/{page}.html", "visibility": ["model"]},
        "ui/resourceUri": f"ui://widget/mcp-app/{page}.html",
    }


@pytest.mark.parametrize("name", NAMES)
def test_page_has_equal_content_and_policy_in_both_dialects(server: WidgetServer, name: str) -> None:
    """Source: S3-87 and S3-97 to S3-100."""
    [sky] = server.read(f"ui://widget/{name}.html")["contents"]
    [app] = server.read(f"ui://widget/mcp-app/{name}.html")["contents"]

    assert (sky["mimeType"], app["mimeType"]) == ("text/html+skybridge", "text/html;profile=mcp-app")
    assert sky["text"] == app["text"]
    assert sky["_meta"] == app["_meta"]
    assert sky["_meta"]["openai/widgetPrefersBorder"] is True
    assert isinstance(sky["_meta"]["openai/widgetDescription"], str)
    assert sky["_meta"]["openai/widgetCSP"] == {
        "connect_domains": [],
        "resource_domains": ["web-sandbox.oaiusercontent.com"],
    }
    assert sky["_meta"]["ui"] == {
        "prefersBorder": True,
        "csp": {"connectDomains": [], "resourceDomains": ["https://web-sandbox.oaiusercontent.com"]},
    }


def test_open_the_chat_ui(server: WidgetServer) -> None:
    """Source: S3-7 to S3-9 and S3-144."""
    result = server.call("display_chat", {})

    assert text(result) == "Chat interface opened"
    assert result["structuredContent"] == {"seedMessage": "", "locale": "en"}
    assert result["_meta"]["clientInfo"] == {}


def test_show_a_chat_interface_with_the_message_hello(server: WidgetServer) -> None:
    """Source: S3-6 to S3-11 and S3-145."""
    message = {
        "openai/locale": "fr-FR",
        "openai/userAgent": "ChatGPT/1",
        "openai/userLocation": {"city": "Paris"},
    }

    result = server.call("display_chat", {"seedMessage": "Hello"}, **message)

    assert '"Hello"' in text(result)
    assert result["structuredContent"] == {"seedMessage": "Hello", "locale": "fr-FR"}
    assert result["_meta"]["clientInfo"] == {"userAgent": "ChatGPT/1", "location": {"city": "Paris"}}


def test_show_search_results_for_pizza_with_two_items(server: WidgetServer) -> None:
    """Source: S3-21 to S3-33 and S3-146."""
    place = {"openai/locale": "de", "openai/userLocation": {"country": "DE"}}

    result = server.call("display_search_results", {"query": "pizza", "results": TWO}, **place)

    assert text(result) == '2 results for "pizza"'
    assert result["structuredContent"] == {"query": "pizza", "results": TWO, "locale": "de"}
    assert result["_meta"]["searchContext"]["location"] == {"country": "DE"}
    assert datetime.fromisoformat(result["_meta"]["searchContext"]["timestamp"]).tzinfo is not None


def test_display_a_table_with_columns_name_and_price(server: WidgetServer) -> None:
    """Source: S3-43 to S3-51 and S3-147."""
    result = server.call("display_table", {"columns": ["name", "price"], "rows": ROWS, "title": "Menu"})

    assert text(result) == 'Table "Menu" with 2 rows'
    assert result["structuredContent"] == {
        "title": "Menu",
        "columns": ["name", "price"],
        "data": ROWS,
        "locale": "en",
    }
    assert datetime.fromisoformat(result["_meta"]["tableContext"]["generatedAt"]).tzinfo is not None


def test_open_the_demo_widget(server: WidgetServer) -> None:
    """Source: S3-62, S3-63 and S3-148."""
    result = server.call("display_demo", {})

    assert text(result) == "Demo widget displayed"
    assert result["structuredContent"] == {"demo": True}


def test_open_the_dashboard(server: WidgetServer) -> None:
    """Source: S3-74 to S3-78."""
    result = server.call("display_dashboard", {})

    assert text(result) == "Dashboard displayed"
    assert result["structuredContent"]["dashboard"] is True
    assert [stat["value"] for stat in result["structuredContent"]["stats"]] == ["5", "9"]


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("display_search_results", {"query": "q", "results": []}, '0 results for "q"'),
        ("display_search_results", {"query": "q", "results": TWO[:1]}, '1 result for "q"'),
        ("display_search_results", {"query": 'a "b" <i>', "results": []}, '0 results for "a "b" <i>"'),
        ("display_table", {"columns": [], "rows": []}, "Table with 0 rows"),
        ("display_table", {"columns": ["a"], "rows": [{"a": 1}]}, "Table with 1 row"),
        ("display_table", {"columns": ["ä"], "rows": [{"ä": [1, {"b": None}]}], "title": "Übersicht"},
         'Table "Übersicht" with 1 row'),
        ("display_chat", {"seedMessage": "مرحبا\nx"}, 'Chat interface opened with the message "مرحبا\nx"'),
    ],
)  # fmt: skip
def test_the_text_counts_and_quotes(
    server: WidgetServer, tools: dict[str, Any], tool: str, arguments: dict[str, Any], says: str
) -> None:
    """Source: S3-31, S3-50, S3-120 and S3-152."""
    result = server.call(tool, arguments)

    assert text(result) == says
    Draft202012Validator(tools[tool]["outputSchema"]).validate(result["structuredContent"])


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("display_search_results", {"query": "x"}),
        ("display_search_results", {"results": []}),
        ("display_search_results", {"query": 1, "results": []}),
        ("display_search_results", {"query": "x", "results": {}}),
        ("display_search_results", {"query": "x", "results": [{"id": True, "title": "A"}]}),
        ("display_search_results", {"query": "x", "results": [{"id": None, "title": "A"}]}),
        ("display_search_results", {"query": "x", "results": [{"id": 1}]}),
        ("display_search_results", {"query": "x", "results": [{"id": 1, "title": 2}]}),
        ("display_search_results", {"query": "x", "results": [{"id": 1, "title": "A", "tags": "hot"}]}),
        ("display_search_results", {"query": "x", "results": [{"id": 1, "title": "A", "tags": [1]}]}),
        ("display_search_results", {"query": "x", "results": [{"id": 1, "title": "A", "url": None}]}),
        ("display_search_results", {"query": "x", "results": [{"id": 1, "title": "A", "more": 1}]}),
        ("display_search_results", {"query": "x", "results": ["A"]}),
        ("display_table", {"columns": "name", "rows": []}),
        ("display_table", {"columns": {"name": "x"}, "rows": []}),
        ("display_table", {"columns": [1], "rows": []}),
        ("display_table", {"columns": ["a"]}),
        ("display_table", {"rows": []}),
        ("display_table", {"columns": ["a"], "rows": [["a", 1]]}),
        ("display_table", {"columns": ["a"], "rows": {}}),
        ("display_table", {"columns": ["a"], "rows": [], "title": None}),
        ("display_table", {"columns": ["a"], "rows": [], "title": 5}),
        ("display_table", {"columns": ["a"], "rows": [], "evil": 1}),
        ("display_chat", {"seedMessage": 5}),
        ("display_chat", {"seedMessage": None}),
        ("display_chat", {"seed_message": "x"}),
        ("display_chat", {"ctx": {}}),
        ("display_demo", {"demo": True}),
        ("display_dashboard", {"dashboard": True}),
    ],
)
def test_arguments_of_another_form_are_refused(
    server: WidgetServer, tool: str, arguments: dict[str, Any]
) -> None:
    """Source: S3-21 to S3-27, S3-44, S3-45, S3-61, S3-73 and S3-149 to S3-151."""
    result = server.call(tool, arguments)

    assert result["isError"] is True
    assert '"E_INVALID_ARGUMENT"' in result["content"][0]["text"]


def test_request_metadata_of_wrong_shape_is_dropped(server: WidgetServer) -> None:
    odd = {"openai/locale": 7, "openai/userAgent": ["x"], "openai/userLocation": "Paris"}

    result = server.call("display_chat", {}, **odd)

    assert result["structuredContent"]["locale"] == "en"
    assert result["_meta"]["clientInfo"] == {}


def test_unknown_method_and_invalid_json_are_json_rpc_errors(server: WidgetServer) -> None:
    """Source: S3-142."""
    status, _, body = server.post("not valid json")

    assert server.ask("invalid/method")["error"]["code"] == -32601
    assert status == 400
    assert isinstance(json.loads(body)["error"]["code"], int)


def test_stdio_and_http_answers_are_equal(server: WidgetServer, tmp_path: Path) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        ("tools/list", {}),
        ("resources/list", {}),
        ("resources/read", {"uri": "ui://widget/mcp-app/solar-system.html?v=2"}),
        ("tools/call", {"name": "display_demo", "arguments": {}}),
        ("tools/call", {"name": "display_chat", "arguments": {"seedMessage": "Hi"}}),
        ("tools/call", {"name": "display_dashboard", "arguments": {"more": 1}}),
    ]
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    messages: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        *({"jsonrpc": "2.0", "id": n, "method": m, "params": p} for n, (m, p) in enumerate(requests, 1)),
    ]
    tmp_path.chmod(0o700)
    command = [sys.executable, "-m", "runner.cli.app", "serve", str(CHATUI), "--transport", "stdio"]

    answers = _on_stdio([*command, "--user", "t-stdio-widgets"], messages, tmp_path)

    assert answers == {n: server.result(m, p) for n, (m, p) in enumerate(requests, 1)}


def _on_stdio(command: list[str], messages: list[dict[str, Any]], folder: Path) -> dict[int, Any]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment_in(folder),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    found: dict[int, Any] = {}
    try:
        for message in messages:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            if "id" in message:
                # The next is sent when this one is answered, as a client that waits does.
                answer = json.loads(process.stdout.readline())
                while answer.get("id") != message["id"]:
                    answer = json.loads(process.stdout.readline())
                found[answer["id"]] = answer["result"]
        process.stdin.close()
        process.wait(timeout=120)
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
    return {number: result for number, result in found.items() if number}
