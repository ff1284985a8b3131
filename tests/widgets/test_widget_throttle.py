"""Rate limit of one tool for one user: calls in any minute, by the identity that the host found."""

from pathlib import Path

import pytest
from support import call, details, error_code, open_toolset


@pytest.mark.kernel
@pytest.mark.anyio
async def test_call_above_tool_rate_limit_is_busy_for_that_user_only(tmp_path: Path) -> None:
    """Source: S3-141."""
    tmp_path.chmod(0o700)
    file = tmp_path / "two.py"
    file.write_text(
        "from fastmcp import FastMCP\nmcp = FastMCP('t')\n"
        "@mcp.tool\ndef few() -> int:\n    return 1\n@mcp.tool\ndef many() -> int:\n    return 2\n"
    )

    async with open_toolset(
        file, tmp_path, call_limits={"few": {"tools": ["few"], "per": "user", "calls_per_minute": 2}}
    ) as toolset:
        codes = [error_code(await call(toolset, "t-alice-rate", "few")) for _ in range(3)]
        refused = await call(toolset, "t-alice-rate", "few")
        other_tool = error_code(await call(toolset, "t-alice-rate", "many"))
        other_user = error_code(await call(toolset, "t-bob-rate", "few"))

    assert codes == [None, None, "E_BUSY"]
    assert 0 < details(refused)["retry_after_seconds"] <= 60
    assert (other_tool, other_user) == (None, None)
