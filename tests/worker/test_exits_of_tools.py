"""A tool that exits by a non-error exception is answered like one that raises, with its author's lines."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support import call, details, error_code, open_toolset

from runner.call import own_request, relay
from runner.errors import CallError, Code
from runner.toolset.toolset import Toolset
from runner.users.identity import User

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

FILE = '''
import asyncio
import sys
from fastmcp import FastMCP

mcp = FastMCP("leaves", mask_error_details=False)


class Stop(BaseException):
    """Passes all that catches errors."""


def deeper(code):
    sys.exit(code)


@mcp.tool
def exits() -> str:
    deeper(3)


@mcp.tool
async def exits_with_words() -> str:
    deeper("no more")


@mcp.tool
def stops() -> str:
    raise Stop("here")


@mcp.tool
def interrupts() -> str:
    raise KeyboardInterrupt


@mcp.tool
async def awaits_what_it_cancelled() -> str:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task
    return "never"


@mcp.tool
async def cancels_itself() -> str:
    asyncio.current_task().cancel()
    await asyncio.sleep(60)


@mcp.tool
async def cancels_itself_at_its_end() -> str:
    asyncio.current_task().cancel()
    return "never"


@mcp.resource("exits://now")
def resource() -> str:
    deeper(3)


@mcp.prompt
def prompt() -> str:
    raise GeneratorExit


@mcp.tool
def answers() -> str:
    return "yes"
'''


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    folder = tmp_path_factory.mktemp("leaves")
    (folder / "leaves.py").write_text(FILE)
    async with open_toolset(folder / "leaves.py", folder) as it:
        yield it


@pytest.mark.parametrize(
    ("tool", "message", "frames"),
    [
        ("exits", "the tool called exit(3), which ends a program", ["in exits", "in deeper: sys.exit(code)"]),
        ("exits_with_words", "the tool called exit('no more')", ["in exits_with_words", "in deeper"]),
        ("stops", "the tool raised Stop, which is not an Exception: here", ["in stops: raise Stop"]),
        (
            "interrupts",
            "the tool raised KeyboardInterrupt, which is not an Exception",
            ["in interrupts: raise KeyboardInterrupt"],
        ),
        (
            "awaits_what_it_cancelled",
            "the tool raised CancelledError, which is not an Exception",
            ["in awaits_what_it_cancelled: await task"],
        ),
        (
            "cancels_itself",
            "the tool cancelled the task of its own call",
            ["in cancels_itself: await asyncio.sleep(60)"],
        ),
        ("cancels_itself_at_its_end", "the tool cancelled the task of its own call", []),
    ],
)
async def test_exit_reported_in_a_sentence_with_author_lines(
    tool: str, message: str, frames: list[str], toolset: Toolset, user: str
) -> None:
    completed = await call(toolset, user, tool)
    facts = details(completed)

    assert error_code(completed) == "E_TOOL"
    assert message in facts["message"]
    found = facts.get("frames", [])
    assert len(found) == len(frames)
    assert all(part in frame for part, frame in zip(frames, found, strict=True))
    assert "fastmcp" not in str(completed.processed.value)


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("resources/read", {"uri": "exits://now"}, r"called exit\(3\)"),
        ("prompts/get", {"name": "prompt"}, "raised GeneratorExit"),
    ],
)
async def test_exit_of_resource_and_prompt_is_an_error(
    method: str, params: dict[str, str], message: str, toolset: Toolset, user: str
) -> None:
    with pytest.raises(CallError, match=message) as raised:
        await relay(toolset, own_request(toolset, User(user), method, params))

    assert raised.value.code is Code.E_TOOL


async def test_process_continues_after_exit_and_answers_next_call(toolset: Toolset, user: str) -> None:
    await call(toolset, user, "exits")
    completed = await call(toolset, user, "answers")

    assert completed.processed.value["results"] == "yes"


async def test_masking_server_masks_exits(tmp_path: Path, user: str) -> None:
    file = tmp_path / "masks.py"
    file.write_text(FILE.replace("mask_error_details=False", "mask_error_details=True"))
    async with open_toolset(file, tmp_path) as toolset:
        completed = await call(toolset, user, "exits_with_words")

    assert "no more" not in str(completed.processed.value)
    assert completed.processed.value["results"]["error"] == "Error calling tool 'exits_with_words'"
