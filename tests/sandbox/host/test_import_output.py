"""Output of a tool file during its import: what the log gets, and what the event loop spends on it."""

import contextlib
import itertools
import logging
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import becomes, call, open_toolset

from sandbox.host import import_output, paced_pipe
from sandbox.host.import_output import MOST_BYTES, MOST_LINES, ImportOutput
from sandbox.loop_share import LoopShare

pytestmark = pytest.mark.anyio

PRINTED = "tool file printed during import"
DROPPED = "import output dropped"
TOOL = """
import os
from fastmcp import FastMCP

mcp = FastMCP("loud")
print("first words", flush=True)
os.write(1, b"\\n" * 60_000)

@mcp.tool
def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """An end to read, which never blocks, and an end to write, which does neither."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    yield read, write
    os.close(read)
    os.close(write)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, import_output.log.name)
    return caplog


async def written(pipe: tuple[int, int], data: bytes) -> None:
    """Write all of it, and wait until it is read."""
    left = memoryview(data)

    def is_read() -> bool:
        nonlocal left
        with contextlib.suppress(BlockingIOError):
            left = left[os.write(pipe[1], left) :]
        return not left and not select.select([pipe[0]], [], [], 0)[0]

    assert await becomes(is_read)


async def test_a_few_lines_are_in_the_log_as_they_were_printed(
    pipe: tuple[int, int], logged: pytest.LogCaptureFixture
) -> None:
    output = ImportOutput(pipe[0], LoopShare())
    try:
        os.write(pipe[1], b"one\ntwo\xff\n")
        assert await becomes(lambda: len(logged.records) == 2)
    finally:
        output.close()

    assert [vars(record)["line"] for record in logged.records] == ["one", "two\ufffd"]


async def test_the_last_words_before_the_end_are_in_the_log(
    pipe: tuple[int, int], logged: pytest.LogCaptureFixture
) -> None:
    output = ImportOutput(pipe[0], LoopShare())
    os.write(pipe[1], b"one\n")
    assert await becomes(lambda: len(logged.records) == 1)
    os.write(pipe[1], b"why it failed\n")
    output.close()

    assert [vars(record)["line"] for record in logged.records] == ["one", "why it failed"]


@pytest.mark.parametrize("data", [b"\n" * 65_536, b"a line of some length\n" * 2900, b"x" * 65_536])
async def test_import_output_above_limit_is_cut_with_a_note(
    pipe: tuple[int, int], logged: pytest.LogCaptureFixture, data: bytes
) -> None:
    output = ImportOutput(pipe[0], LoopShare())
    try:
        await written(pipe, data * 4)
    finally:
        output.close()

    lines = [vars(record)["line"] for record in logged.records if record.message == PRINTED]
    assert 0 < len(lines) <= MOST_LINES
    assert sum(map(len, lines)) <= MOST_BYTES
    assert [record.message for record in logged.records if record.message != PRINTED] == [DROPPED]


async def test_endless_import_output_is_read_at_intervals(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[float] = []

    def read(_fd: int, _share: LoopShare) -> bytes:
        reads.append(time.monotonic())
        return b"\n" * 65_536

    monkeypatch.setattr(paced_pipe, "read_some", read)
    os.write(pipe[1], b"there is always more")
    output = ImportOutput(pipe[0], LoopShare())
    try:
        assert await becomes(lambda: len(reads) > 4)
    finally:
        output.close()

    gaps = [later - earlier for earlier, later in itertools.pairwise(reads[:4])]
    # A hundred turns a second at most.
    assert min(gaps) > 0.005


@pytest.mark.kernel
async def test_tool_file_filling_its_output_pipe_is_served(
    tmp_path: Path, user: str, logged: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "loud.py"
    file.write_text(TOOL)

    async with open_toolset(file, tmp_path) as toolset:
        answer = await call(toolset, user, "add", a=1, b=2)

    printed = [vars(record)["line"] for record in logged.records if record.message == PRINTED]
    zygotes = sum(line == "first words" for line in printed)
    assert answer.processed.value == {"results": 3}
    assert zygotes >= 1
    assert len(printed) <= zygotes * MOST_LINES
