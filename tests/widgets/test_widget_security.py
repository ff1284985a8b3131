"""Tools that need a user who has logged in: who is let through, and what the others are told."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from widget_server import WidgetServer, serving

from runner.contract.login_challenge import challenge
from runner.errors import CallError, Code
from runner.steps.authorization import authorize, challenged, with_schemes
from runner.toolset.catalog import ToolSpec
from runner.widgets import NO_AUTH, auth_required, oauth2
from runner.worker.wire import RequestFacts

pytestmark = pytest.mark.release

TOOL_FILE = '''
from fastmcp import FastMCP
from fastmcp.tools import ToolResult
from runner.widgets import NO_AUTH, Widget, add_widgets, auth_required, oauth2

mcp = FastMCP("prices")
chart = Widget(name="chart", html="<p>A chart</p>", description="A chart")
add_widgets(mcp, [chart])
TEXTS = {"invoking": "Drawing...", "invoked": "Chart ready"}


@mcp.tool(meta=chart.tool_meta(**TEXTS, security=(oauth2("prices.read"),)))
def scoped() -> str:
    """Show prices."""
    return "prices"


@mcp.tool(meta=chart.tool_meta(**TEXTS, security=(NO_AUTH, oauth2("prices.read"))))
def anybody() -> str:
    """Show some prices."""
    return "some prices"


@mcp.tool(meta=chart.tool_meta(**TEXTS), output_schema=None)
def asks() -> ToolResult:
    """Ask for a login."""
    return auth_required("Log in to the shop", scopes=["shop"], resource_metadata="https://shop.example.com/meta")
'''


def facts(token: Mapping[str, Any] | None = None, transport: str = "streamable-http") -> RequestFacts:
    return RequestFacts(request_id=1, protocol="x", session_id="s", transport=transport, token=token)


def spec(*schemes: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(name="show", parameters={}, output_schema=None, security=schemes)


def refused_for(tool: ToolSpec, request: RequestFacts) -> str | None:
    """Return why a request may not call a tool; None if it may."""
    try:
        authorize(tool, request)
    except CallError as error:
        return str(error.details["problem"]) if error.code is Code.E_UNAUTHORIZED else "another error"
    return None


@pytest.mark.parametrize(
    ("schemes", "token", "problem"),
    [
        ((), None, None),
        ((NO_AUTH,), None, None),
        ((NO_AUTH, oauth2("a")), None, None),
        ((oauth2(),), None, "invalid_token"),
        ((oauth2("a"),), None, "invalid_token"),
        (({"type": "apiKey"},), None, "invalid_token"),
        (({},), None, "invalid_token"),
        ((oauth2(),), {"scopes": []}, None),
        ((oauth2("a"),), {"scopes": ["a", "b"]}, None),
        ((oauth2("a", "b"),), {"scopes": ["a"]}, "insufficient_scope"),
        ((oauth2("a"), oauth2("b")), {"scopes": ["b"]}, None),
        ((oauth2("a"),), {"scopes": None}, "insufficient_scope"),
    ],
)
def test_a_token_has_to_satisfy_one_of_the_schemes(
    schemes: tuple[Mapping[str, Any], ...], token: Mapping[str, Any] | None, problem: str | None
) -> None:
    assert refused_for(spec(*schemes), facts(token)) == problem


def test_stdio_user_of_operating_system_may_call_everything() -> None:
    """Source: S3-140."""
    with pytest.raises(CallError):
        authorize(spec(oauth2("a")), facts())

    authorize(spec(oauth2("a")), facts(transport="stdio"))


def test_a_challenge_cannot_be_broken_out_of() -> None:
    message = challenge('say "hi"\r\nSet-Cookie: x\\', scopes=("a", "b"), resource_metadata="https://e.org/m")

    assert message == (
        'Bearer resource_metadata="https://e.org/m", error="invalid_token", '
        r'error_description="say \"hi\"  Set-Cookie: x\\", scope="a b"'
    )


def test_only_unauthorised_calls_are_challenged() -> None:
    with pytest.raises(CallError) as raised:
        authorize(spec(oauth2("a")), facts())
    message = {"content": [], "_meta": {"kept": 1}}

    answer = challenged(message, raised.value, resource_metadata="https://e.org/m")

    assert answer["_meta"]["kept"] == 1
    assert answer["_meta"]["mcp/www_authenticate"] == [
        'Bearer resource_metadata="https://e.org/m", error="invalid_token", '
        'error_description="show needs a user who has logged in with the scopes a", scope="a"'
    ]
    assert challenged(message, None, resource_metadata=None) is message
    assert challenged(message, CallError(Code.E_TOOL, "no"), resource_metadata=None) is message


def test_schemes_move_to_top_level_and_nothing_else_changes() -> None:
    schemes = [{"type": "noauth"}]
    tools: list[dict[str, object]] = [
        {"name": "a", "_meta": {"securitySchemes": schemes}},
        {"name": "b", "_meta": {}},
        {"name": "c"},
    ]
    odd = [{"name": "d", "_meta": {"securitySchemes": "all"}}, {"name": "e", "_meta": 5}, "f"]

    answered = with_schemes({"tools": [*tools, *odd], "nextCursor": "x"})

    assert answered["nextCursor"] == "x"
    assert answered["tools"] == [{**tools[0], "securitySchemes": schemes}, *tools[1:], *odd]
    assert with_schemes({"tools": None}) == {"tools": None}


def test_a_tool_of_its_own_accord_asks_for_a_login() -> None:
    result = auth_required("Log in first")

    assert result.is_error
    assert result.meta == {
        "mcp/www_authenticate": ['Bearer error="invalid_token", error_description="Log in first"']
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WidgetServer]:
    file = tmp_path_factory.mktemp("prices") / "prices.py"
    file.write_text(TOOL_FILE)
    with serving(file) as served:
        yield served


@pytest.mark.kernel
def test_a_call_without_a_token_is_answered_with_a_challenge(server: WidgetServer) -> None:
    """Source: S3-143."""
    refused, allowed = server.call("scoped", {}), server.call("anybody", {})

    assert refused["isError"] is True
    assert '"E_UNAUTHORIZED"' in refused["content"][0]["text"]
    [challenge_text] = refused["_meta"]["mcp/www_authenticate"]
    assert challenge_text.startswith('Bearer error="invalid_token"')
    assert challenge_text.endswith('scope="prices.read"')
    assert not allowed.get("isError")
    assert "mcp/www_authenticate" not in allowed["_meta"]


@pytest.mark.kernel
def test_the_challenge_of_a_tool_reaches_the_client(server: WidgetServer) -> None:
    answer = server.call("asks", {})

    assert answer["isError"] is True
    assert "Log in to the shop" in json.dumps(answer["content"])
    assert answer["_meta"]["mcp/www_authenticate"] == [
        'Bearer resource_metadata="https://shop.example.com/meta", error="invalid_token", '
        'error_description="Log in to the shop", scope="shop"'
    ]


@pytest.mark.kernel
def test_token_without_scope_is_told_the_required_one(tmp_path: Path) -> None:
    file, tokens = tmp_path / "prices.py", tmp_path / "tokens.json"
    file.write_text(TOOL_FILE)
    tokens.write_text(json.dumps({"t" * 32: "alice"}))
    tokens.chmod(0o600)
    settings = {
        "RUNNER_AUTH__KIND": "static",
        "RUNNER_AUTH__TOKENS_FILE": str(tokens),
        "RUNNER_USER": "alice",
    }

    with serving(file, **settings) as server:
        bearer = {"Authorization": f"Bearer {'t' * 32}"}
        body = json.dumps(_modern("scoped"))
        headers = {
            **bearer,
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": "scoped",
        }
        status, _, answer = server.post(body, headers)

    assert status == 200, answer
    assert 'error=\\"insufficient_scope\\"' in answer


def _modern(tool: str) -> dict[str, Any]:
    prefix = "io.modelcontextprotocol/"
    meta = {
        prefix + "protocolVersion": "2026-07-28",
        prefix + "clientInfo": {"name": "t", "version": "1"},
        prefix + "clientCapabilities": {},
    }
    params = {"name": tool, "arguments": {}, "_meta": meta}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
