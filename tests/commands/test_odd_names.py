"""A name that no JSON can hold is lost; the rest of the result arrives.

Source: PEP 383 (names of files that are not UTF-8).
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from support import Ran

pytestmark = [pytest.mark.kernel, pytest.mark.release]

TOOLS = r'''
from pathlib import Path

from fastmcp import FastMCP
from fastmcp.tools import ToolResult

mcp = FastMCP("odd")


@mcp.tool
def files(username: str, name: str) -> dict:
    """Return a file of an odd name and one of a plain name."""
    home = Path(f"/tmp/{username}")
    odd = name.replace("HALF", "\udc80")
    made = {odd: "odd", "plain.txt": "plain"}
    for each, text in made.items():
        (home / each).write_text(text)
    artifacts = [{"name": each, "path": str(home / each), "mime": "text/plain"} for each in made]
    return {"results": {odd: [odd, Path(odd)]}, "artifacts": artifacts}


@mcp.tool
def texts() -> list[str]:
    """Return texts."""
    return ["a\ud800", "b"]


@mcp.tool
def both() -> ToolResult:
    """Return text and data."""
    return ToolResult(content="a\ud800", structured_content={"results": {"a": "b\ud800", "c": 1}})
'''


@pytest.mark.parametrize(
    ("name", "artifacts", "missing"),
    [("fine.txt", ["fine.txt", "plain.txt"], []), ("HALF.txt", ["plain.txt"], ["?.txt"])],
    ids=["a name that is text", "half of a surrogate pair"],
)
def test_undecodable_name_lost_rest_arrives(
    run: Callable[..., Ran], folder: Path, name: str, artifacts: list[str], missing: list[str]
) -> None:
    file = folder / "odd.py"
    file.write_text(TOOLS)

    ran = run("call", "--json", file, "files", f"name={name}")

    shown = (missing or ["fine.txt"])[0]
    # A file that is missing from a result makes a script stop, whatever else arrived.
    assert ran.status == len(missing), ran.err
    assert ran.json["results"] == {shown: [shown, shown]}
    assert [each["name"] for each in ran.json["artifacts"]] == artifacts
    refused = ran.json.get("meta_data", {}).get("artifact_errors", [])
    assert [(each["name"], each["reason"]) for each in refused] == [
        (each, "missing_path") for each in missing
    ]


@pytest.mark.parametrize(("tool", "results"), [("texts", ["a?", "b"]), ("both", {"a": "b?", "c": 1})])
def test_undecodable_text_damaged_rest_arrives(
    run: Callable[..., Ran], folder: Path, tool: str, results: object
) -> None:
    file = folder / "odd.py"
    file.write_text(TOOLS)

    ran = run("call", "--json", file, tool)

    assert (ran.status, ran.json["results"]) == (0, results), ran.err
