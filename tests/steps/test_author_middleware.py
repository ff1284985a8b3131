"""Exceptions of tools as changed by the author's middleware."""

from pathlib import Path

import pytest
from support import call, error_code, open_toolset

from runner.worker.wire import WireError

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

FILE = """
from fastmcp import FastMCP
from fastmcp.server.middleware.error_handling import ErrorHandlingMiddleware

mcp = FastMCP("handled")
mcp.add_middleware(ErrorHandlingMiddleware())

@mcp.tool
def misses() -> str:
    raise KeyError("no such plant")

@mcp.tool
def takes(path: str) -> str:
    return open(path).read()
"""


async def test_protocol_error_from_middleware_is_the_answer(tmp_path: Path, user: str) -> None:
    file = tmp_path / "handled.py"
    file.write_text(FILE)

    async with open_toolset(file, tmp_path) as toolset:
        with pytest.raises(WireError) as error:
            await call(toolset, user, "misses")
        denied = await call(toolset, user, "takes", path="/etc/shadow")

    assert error.value.error["code"] == -32001
    assert "no such plant" in error.value.error["message"]
    assert error_code(denied) == "E_INVALID_PATH"
