"""Memory of failed requests, without a run of the garbage collector."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from mcp.shared.exceptions import MCPError

from runner.contract.own_paths import OwnPaths
from runner.protocol.failed_requests import answer_failures


class Body:
    """Content of a request."""


@pytest.mark.anyio
async def test_failed_request_leaves_no_reference_cycle() -> None:
    bodies: list[weakref.ref[Body]] = []

    async def call_next(_ctx: object) -> NoReturn:
        body = Body()
        bodies.append(weakref.ref(body))
        # Like FastMCP: a frame of the traceback refers to the error.
        error = MCPError(code=-32602, message="no")
        raise error

    ctx: Any = SimpleNamespace(params={}, method="prompts/list", protocol_version="2025-06-18")
    answer = answer_failures(OwnPaths(words=(), homes="/tmp"))
    gc.disable()
    try:
        with pytest.raises(MCPError):
            await answer(ctx, cast("Any", call_next))
        assert bodies[0]() is None
    finally:
        gc.enable()
