"""`homes_for`, and homes that are elsewhere than tools believe."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from support import call, details, error_code, open_toolset

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

FILE = """
import tempfile
from pathlib import Path
from fastmcp import FastMCP

mcp = FastMCP("plain")
seen = []

@mcp.tool
def note(text: str) -> int:
    Path("notes.txt").open("a").write(text)
    seen.append(text)
    return len(seen)

@mcp.tool
def notes(username: str) -> list:
    return [Path("notes.txt").read_text(), seen, str(Path.cwd())]

@mcp.tool
def jot() -> str:
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write("jotted")
        file.seek(0)
        return file.read()

@mcp.tool
def put(username: str) -> dict:
    Path(f"/tmp/{username}/made.txt").write_text("made")
    return {"results": {}, "artifacts": [
        {"name": "made.txt", "path": f"/tmp/{username}/made.txt", "mime": "text/plain"}]}
"""


@pytest.fixture
def tool_file(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    file = tmp_path / "plain.py"
    file.write_text(FILE)
    file.chmod(0o644)
    return file


@pytest.fixture
def user() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def value(completed: Any) -> Any:
    return completed.processed.value["results"]


@pytest.mark.parametrize("tier", ["process", "namespace"])
async def test_homes_for_all_tools_share_home_and_process(
    tool_file: Path, tmp_path: Path, user: str, tier: str
) -> None:
    async with open_toolset(
        tool_file, tmp_path, isolation=tier, homes_for="all", max_calls_per_user=1
    ) as toolset:
        counts = [value(await call(toolset, user, "note", text=text)) for text in ("a", "b")]
        assert counts == [1, 2]
        assert value(await call(toolset, user, "notes")) == ["ab", ["a", "b"], f"/tmp/{user}"]


async def test_homes_default_write_without_username_names_setting(
    tool_file: Path, tmp_path: Path, user: str
) -> None:
    async with open_toolset(tool_file, tmp_path) as toolset:
        refused = await call(toolset, user, "note", text="a")

    assert error_code(refused) == "E_INVALID_PATH"
    assert 'homes_for is "all"' in details(refused)["suggestion"]


@pytest.mark.parametrize("tier", ["process", "namespace"])
async def test_homeless_tool_tempfile_error_names_setting(
    tool_file: Path, tmp_path: Path, user: str, tier: str
) -> None:
    async with open_toolset(tool_file, tmp_path, isolation=tier, homes_for="all") as toolset:
        jotted = await call(toolset, user, "jot")
    async with open_toolset(tool_file, tmp_path, isolation=tier) as toolset:
        refused = await call(toolset, user, "jot")

    assert value(jotted) == "jotted"
    assert error_code(refused) == "E_INVALID_PATH"
    assert value(refused)["error"] == "This tool has no folder for temporary files"
    assert "RUNNER_HOMES_FOR=all" in details(refused)["suggestion"]


async def test_moved_homes_namespace_tool_writes_to_tmp_succeed(
    tool_file: Path, tmp_path: Path, user: str
) -> None:
    homes = tmp_path / "homes"
    homes.mkdir(mode=0o755)
    async with open_toolset(tool_file, tmp_path, isolation="namespace", homes=homes) as toolset:
        made = await call(toolset, user, "put")

    (artifact,) = made.processed.value["artifacts"]
    assert (artifact["name"], artifact["size"]) == ("made.txt", 4)


async def test_moved_homes_other_tiers_suggest_real_prefix(
    tool_file: Path, tmp_path: Path, user: str
) -> None:
    homes = tmp_path / "homes"
    homes.mkdir(mode=0o755)
    async with open_toolset(tool_file, tmp_path, isolation="process", homes=homes) as toolset:
        refused = await call(toolset, user, "put")

    assert error_code(refused) in ("E_INVALID_PATH", "E_TOOL")
    assert details(refused)["allowed_prefix"] == f"{homes}/{user}/"
    assert details(refused)["suggestion"].startswith(f"Use {homes}/{user}/ prefix")
    assert "flag" not in details(refused)
