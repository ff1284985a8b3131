"""Exceptions of tools, masked for clients as by plain FastMCP, and complete in the log."""

import sys
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import McpError
from support import TOOLS

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

FILE = TOOLS / "masked.py"
SECRET = "hunter2"
FAILING = ("fails", "says", "divides", "quotes", "inner_deep")
PLAIN = (str(Path(sys.executable).with_name("fastmcp")), "run")
OURS = (sys.executable, "-m", "runner", "serve")


async def call_all(
    command: tuple[str, ...], file: Path, environment: dict[str, str], log: Path
) -> dict[str, Any]:
    """Call each failing tool; return the complete answers of the client."""
    words = [*command[1:], str(file), "--transport", "stdio"]
    more = ["--no-banner"] if command is PLAIN else []
    transport = StdioTransport(
        command[0], [*words, *more], env=environment, log_file=log, keep_alive=False, cwd=str(log.parent)
    )
    replies: dict[str, Any] = {}
    async with Client(transport) as client:
        for tool in (*FAILING, "denied"):
            # Plain FastMCP has nobody who fills it in.
            arguments = {"username": "somebody"} if command is PLAIN and tool != "divides" else {}
            replies[tool] = await client.call_tool_mcp(tool, arguments)
        for name, options in (
            ("resource", client.read_resource("notes://secret")),
            ("prompt", client.get_prompt("ask")),
        ):
            with pytest.raises(McpError) as failed:
                await options
            replies[name] = failed.value.error
    return replies


def texts(replies: dict[str, Any]) -> dict[str, str]:
    """Return the first words of each answer."""
    answers = {tool: replies[tool].content[0].text for tool in FAILING}
    return {**answers, **{name: replies[name].message for name in ("resource", "prompt")}}


async def test_masked_errors_equal_plain_fastmcp(environment: dict[str, str], folder: Path) -> None:
    plain = await call_all(PLAIN, FILE, environment, folder / "plain.log")
    ours = await call_all(OURS, FILE, environment, folder / "ours.log")

    assert texts(ours) == texts(plain)
    assert texts(ours)["fails"] == "Error calling tool 'fails'"
    assert texts(ours)["says"] == "please give a smaller number"
    # A tool's, whole: in no further block, structure or note. FastMCP itself does not mask prompts.
    whole = {tool: ours[tool].model_dump_json() for tool in (*FAILING, "denied")}
    assert [tool for tool, answer in whole.items() if SECRET in answer or "masked.py" in answer] == []
    assert all(ours[tool].is_error for tool in whole)


async def test_log_has_errors_masked_for_clients(environment: dict[str, str], folder: Path) -> None:
    await call_all(OURS, FILE, environment, folder / "log")

    lines = (folder / "log").read_text().splitlines()
    withheld = [line for line in lines if "tool error withheld from client" in line]
    assert any("tool=fails" in line and SECRET in line and "masked.py, line" in line for line in withheld)
    assert any("tool=denied" in line and f"/nowhere/{SECRET}" in line for line in withheld)
    assert all("call_id=" in line for line in withheld)


async def test_unmasked_file_shows_errors_as_plain_fastmcp(environment: dict[str, str], folder: Path) -> None:
    open_file = folder / "open.py"
    open_file.write_text(FILE.read_text().replace(", mask_error_details=True", ""))

    plain = await call_all(PLAIN, open_file, environment, folder / "plain.log")
    ours = await call_all(OURS, open_file, environment, folder / "ours.log")

    assert texts(ours) == texts(plain)
    assert SECRET in texts(ours)["fails"]
    for tool in ("fails", "quotes"):
        details = ours[tool].meta["toolcell/result"]["meta_data"]["details"]
        assert (details["exception_type"], len(details["frames"])) == ("ValueError", 1)
    assert f"/nowhere/{SECRET}" in ours["denied"].content[0].text


async def test_mounted_masking_server_masks_below_unmasked_parent(
    environment: dict[str, str], folder: Path
) -> None:
    mixed = folder / "mixed.py"
    mixed.write_text(FILE.read_text().replace(", mask_error_details=True", "", 1))

    plain = await call_all(PLAIN, mixed, environment, folder / "plain.log")
    ours = await call_all(OURS, mixed, environment, folder / "ours.log")

    assert texts(ours) == texts(plain)
    assert SECRET in ours["fails"].model_dump_json()
    assert SECRET not in ours["inner_deep"].model_dump_json()
    assert mixed.name not in ours["inner_deep"].model_dump_json()
