"""A tool drives a real browser, which brings processes, shared memory and a JavaScript engine of its own."""

from pathlib import Path

import pytest
from support import TOOLS, call, open_toolset

# The tool imports Playwright, this module does not.
pytestmark = [pytest.mark.anyio, pytest.mark.kernel, pytest.mark.needs_browser]

PATIENCE_S = 120


@pytest.mark.parametrize(
    ("tier", "flags"),
    [
        pytest.param("namespace", [], id="namespace, as Playwright starts it"),
        pytest.param("process", ["--no-zygote", "--in-process-gpu"], id="process, with two flags"),
    ],
)
async def test_a_tool_takes_a_picture_of_a_page(
    tier: str, flags: list[str], tmp_path: Path, user: str
) -> None:
    async with open_toolset(
        TOOLS / "browses.py", tmp_path, isolation=tier, idle_timeout_s=PATIENCE_S
    ) as toolset:
        completed = await call(toolset, user, "look", flags=flags)

    assert completed.processed.value["results"] == {"title": "42", "text": "Garden", "png": "89504e47"}
