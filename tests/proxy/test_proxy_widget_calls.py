"""The command refuses what a widget asks for, unless the tool allows it, and a person where one has to."""

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from ports import free_port
from proxying import messages_of_call, proxy_command
from support import until

pytestmark = [pytest.mark.anyio, pytest.mark.release]

MARK = "toolcell/widget"
NEVER = ("says_nothing", "for_models", "for_nobody", "odd")
ONLY_ASKED = ("hints_nothing", "destroys")
FREELY = ("reads", "adds", "for_chatgpt")
OURS = ("artifact_info", "artifact_read", "artifact_search", "other.resources_list")


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(scope="module")
def proxy(marks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the command, in front of a server of somebody else."""
    port = free_port()
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "runner.toml").write_text("resource_tools = true\n")
    (folder / "mcp.json").write_text(
        json.dumps({"mcpServers": {"other": {"url": f"http://127.0.0.1:{port}/mcp"}}})
    )
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("with_widgets.py"), str(port), str(marks)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        assert until(lambda: _answers(port)), (folder / "log").read_text()
        with proxy_command(folder, "--config", "runner.toml", "mcp.json") as url:
            yield url
    finally:
        server.kill()
        server.wait()


def called(proxy: str, marks: Path, tool: str, **meta: Any) -> tuple[bool, str]:
    """Call a tool; return whether the server ran it, and the client's answer."""
    (marks / tool).unlink(missing_ok=True)
    answer = messages_of_call(proxy, tool, {}, **meta)[-1]
    return (marks / tool).exists(), json.dumps(answer)


@pytest.mark.parametrize("tool", [*NEVER, *ONLY_ASKED, *FREELY])
def test_unmarked_call_is_made(proxy: str, marks: Path, tool: str) -> None:
    made, answer = called(proxy, marks, tool)

    assert made
    assert f"{tool} was called" in answer


@pytest.mark.parametrize("mark", ["unasked", "asked", True, {}, "", 0])
@pytest.mark.parametrize("tool", NEVER)
def test_widget_calls_only_tools_marked_app(proxy: str, marks: Path, tool: str, mark: object) -> None:
    made, answer = called(proxy, marks, tool, **{MARK: mark})

    assert not made
    assert "E_INVALID_ARGUMENT" in answer
    assert "visibility" in answer


@pytest.mark.parametrize("mark", ["unasked", True, "", ["asked"], "ASKED"])
@pytest.mark.parametrize("tool", ONLY_ASKED)
def test_destructive_widget_call_needs_confirmation(proxy: str, marks: Path, tool: str, mark: object) -> None:
    made, answer = called(proxy, marks, tool, **{MARK: mark})
    after_a_yes, _ = called(proxy, marks, tool, **{MARK: "asked"})

    assert (made, after_a_yes) == (False, True)
    assert "E_INVALID_ARGUMENT" in answer


@pytest.mark.parametrize("tool", FREELY)
def test_harmless_app_tool_called_at_once(proxy: str, marks: Path, tool: str) -> None:
    made, _ = called(proxy, marks, tool, **{MARK: "unasked"})

    assert made


@pytest.mark.parametrize("tool", OURS)
def test_widget_cannot_call_our_own_tools(proxy: str, tool: str) -> None:
    marked = json.dumps(messages_of_call(proxy, tool, {"id": "art_0"}, **{MARK: "asked"})[-1])
    # The control: a client of its own is not refused for that.
    unmarked = json.dumps(messages_of_call(proxy, tool, {"id": "art_0"})[-1])

    assert "visibility" in marked
    assert "visibility" not in unmarked


@pytest.mark.parametrize("tool", ["for_models", "destroys"])
async def test_handshake_era_client_refused_alike(proxy: str, marks: Path, tool: str) -> None:
    (marks / tool).unlink(missing_ok=True)
    async with Client(proxy, mode="legacy") as client:
        refused = await client.call_tool(tool, {}, meta={MARK: "unasked"}, raise_on_error=False)
        was_made = (marks / tool).exists()
        # The control.
        await client.call_tool(tool, {})

    assert refused.is_error
    assert not was_made
    assert (marks / tool).exists()
