"""Results that cannot be written as JSON."""

from pathlib import Path

import pytest
from somebody import somebody
from support import call, error_code, open_toolset

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

FILE = """
from fastmcp import FastMCP
from fastmcp.tools import ToolResult

mcp = FastMCP("numbers")


@mcp.tool
def long_number(digits: int) -> ToolResult:
    return ToolResult(content="a number", meta={"number": 10 ** (digits - 1)})
"""


@pytest.mark.parametrize("reuse", ["user", "shared"])
async def test_long_integer_is_result_error(tmp_path: Path, reuse: str) -> None:
    file = tmp_path / "numbers.py"
    file.write_text(FILE)
    with somebody() as user:
        async with open_toolset(file, tmp_path, worker_reuse=reuse) as toolset:
            short, long = [await call(toolset, user, "long_number", digits=digits) for digits in (4300, 4301)]

    assert short.processed.value["results"] == "a number"
    assert error_code(long) == "E_INVALID_RESULT"
    assert "more than 4,300 digits; return it as a string" in str(long.processed.value)
