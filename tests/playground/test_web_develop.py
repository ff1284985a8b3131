"""A page that is open while `runner dev` reloads its tools."""

from collections.abc import Callable

import pytest
from playground_support import Shown
from web_support import browsing, expect

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

FIRST = """from fastmcp import FastMCP

mcp = FastMCP("growing")


@mcp.tool
def before() -> int:
    return 1
"""


def test_page_shows_reloaded_files_and_load_failures(
    start: Callable[..., Shown], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("developed")
    # Tools run as a user of their own where the runner is root.
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)
    file = folder / "growing.py"
    file.write_text(FIRST)
    with browsing(start("dev", tools=file)) as opening:
        seen = opening()
        expect(seen.page.get_by_role("link", name="before")).to_be_visible()

        file.write_text(FIRST.replace("before", "after"))
        expect(seen.page.get_by_role("link", name="after")).to_be_visible()
        expect(seen.page.get_by_text("Reloaded")).to_be_visible()

        file.write_text("import nothing_of_this_name\n")

        failed = seen.page.get_by_role("alert")
        expect(failed).to_contain_text("Could not reload growing.py; the previous tools are still served.")
        expect(failed).to_contain_text("nothing_of_this_name")
        expect(seen.page.get_by_role("link", name="after")).to_be_visible()
