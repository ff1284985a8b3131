"""Errors sent to a client for an exception in a method of the author's server."""

from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from mcp_types import INTERNAL_ERROR

from runner.worker.internals.sdk_server import low_level_of
from runner.worker.internals.server import serve_raw
from runner.worker.wire import RequestFacts, WireError

pytestmark = pytest.mark.anyio
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
UNKNOWN = {"name": "none-such", "arguments": {}, "_meta": ENVELOPE}


async def _untold(*_: Any) -> None:
    raise AssertionError("nothing is told")


async def _unused(*_: Any) -> dict[str, Any]:
    raise AssertionError("nothing is sent")


@pytest.mark.parametrize(
    ("protocol", "code", "message"),
    [
        ("2025-06-18", 0, "Unknown prompt: none-such"),
        ("2025-11-25", 0, "Unknown prompt: none-such"),
        ("2026-07-28", INTERNAL_ERROR, "Internal server error"),
    ],
)
async def test_exception_reported_as_by_plain_sdk_server(protocol: str, code: int, message: str) -> None:
    low = low_level_of(MCPServer("high"))
    facts = RequestFacts(request_id=1, protocol=protocol, session_id="s", transport="stdio")

    with pytest.raises(WireError) as raised:
        await serve_raw(low, "prompts/get", UNKNOWN, facts, {}, on_notify=_untold, on_request=_unused)

    assert (raised.value.error["code"], raised.value.error["message"]) == (code, message)
