"""A tool drives a real browser, which brings processes, shared memory and a JavaScript engine of its own."""

from pathlib import Path

import pytest
from support import TOOLS, call, details, open_toolset

# The tool imports Playwright, this module does not.
pytestmark = [
    pytest.mark.needs_browser,
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.kernel,
    pytest.mark.needs_browser,
]

PATIENCE_S = 120


@pytest.mark.parametrize(
    ("tier", "flags"),
    [
        pytest.param("namespace", [], id="namespace, as Playwright starts it"),
        pytest.param("process", ["--no-zygote", "--in-process-gpu"], id="process, with two flags"),
    ],
)
async def test_tool_takes_screenshot_of_page(tier: str, flags: list[str], tmp_path: Path, user: str) -> None:
    async with open_toolset(
        TOOLS / "browses.py", tmp_path, isolation=tier, idle_timeout_s=PATIENCE_S
    ) as toolset:
        completed = await call(toolset, user, "look", flags=flags)

    assert completed.processed.value["results"] == {"title": "42", "text": "Garden", "png": "89504e47"}


@pytest.mark.parametrize("allowed", [True, False], ids=["with sockets", "without sockets"])
async def test_full_chromium_takes_screenshot_when_sockets_allowed(
    allowed: bool, tmp_path: Path, user: str
) -> None:
    async with open_toolset(
        TOOLS / "browses.py",
        tmp_path,
        isolation="namespace",
        allow_sockets=allowed,
        idle_timeout_s=PATIENCE_S,
    ) as toolset:
        completed = await call(toolset, user, "look", flags=[], program="chromium")

    if allowed:
        assert completed.processed.value["results"] == {"title": "42", "text": "Garden", "png": "89504e47"}
    else:
        assert "process_singleton" in str(completed.processed.value["results"])
        assert details(completed)["flag"] == "--allow-sockets"
