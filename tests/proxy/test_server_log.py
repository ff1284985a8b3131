"""Standard error of a server: named, harmless and bounded in our log."""

import asyncio
import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from held_objects import open_descriptors
from hypothesis import given
from hypothesis import strategies as st
from proxying import over_stdio, proxied, upstreams_for
from support import ROOT, environment_in

from runner.formats.terminal_text import has_hidden
from runner.proxy.server import make_proxy
from runner.proxy.stdio_process import LastWords, ServerLog
from sandbox.token_bucket import TokenBucket

pytestmark = [
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

SHOUTING = Path(__file__).parent / "shouting.py"
LEAD = "stderr of shouting: "
FORGED = (
    b'{"time": "2026-01-01T00:00:00", "level": "info", "logger": "runner", "event": "forged"}\n'
    b"12:00:00.000 error   runner.up: forged\r12:00:00.000 error   runner.up: forged too\r\n"
    b"\x1b[2J\x1b]0;title\x07\x9b31m\xc2\x9b31m\x00\x08\x7f"
    b"12:00:00.000 error\xe2\x80\xa8forged\xe2\x80\xaeforged\xc2\x85forged\n"
    b"\n  \n\x1b[0m\nstderr of other: forged\nand without an end"
)


def arguments_of(piece: bytes, times: int = 1) -> dict[str, Any]:
    return {"piece": base64.b64encode(piece).decode(), "times": times}


async def shouted(folder: Path, user: str, piece: bytes, times: int = 1) -> None:
    server = over_stdio("shouting", SHOUTING)
    async with proxied(folder, user, server, mode="legacy") as behind:
        assert (await behind.call_tool("shout", arguments_of(piece, times))).content[0].text == "done"


async def test_server_stderr_copied_to_log_verbatim(
    folder: Path, user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"line {number}: Grüße, 世界 🙂" for number in range(1000)]

    await shouted(folder, user, "\n".join(lines).encode() + b"\n")

    assert capsys.readouterr().err.splitlines() == [LEAD + line for line in lines]


async def test_log_lines_name_server_and_hide_control_characters(
    folder: Path, user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await shouted(folder, user, FORGED)

    lines = capsys.readouterr().err.removesuffix("\n").split("\n")
    assert [line.removeprefix(LEAD)[:22] for line in lines] == [
        '{"time": "2026-01-01T0',
        "12:00:00.000 error   r",
        "12:00:00.000 error   r",
        r"\x1b]0;title\x07�31m\x",
        "stderr of other: forge",
        "and without an end",
    ]
    assert all(line.startswith(LEAD) and not has_hidden(line) for line in lines)


async def test_long_line_truncated_with_its_length(
    folder: Path, user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await shouted(folder, user, b"x" * 300_000 + b"\nand another\n")

    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{LEAD}{'x' * 4096}… (300000 bytes)", f"{LEAD}and another"]


@pytest.mark.parametrize("line", [b"x" * 99 + b"\n", b"a\n", b"\x01\n"], ids=["long", "short", "unseen"])
async def test_excess_log_output_dropped_and_counted(
    folder: Path,
    user: str,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    line: bytes,
) -> None:
    size = 4_000_000

    await shouted(folder, user, line, size // len(line))

    passed = capsys.readouterr().err
    limited = [each for each in caplog.records if each.message.startswith("server stderr rate limited")]
    assert len(passed) < size // 2
    # Short lines are shorter than the server names before them.
    words = passed.replace(LEAD, "").replace("\\x01", "\x01")
    assert len(words) + sum(vars(each)["bytes"] for each in limited) <= size
    assert sum(vars(each)["bytes"] for each in limited) > size // 2
    assert {vars(each)["server"] for each in limited} == {"shouting"}


async def test_processes_of_one_server_share_a_budget(
    folder: Path, user: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "runner.proxy.confined_command.log_budget", lambda: TokenBucket(at_once=10_000, per_s=0)
    )
    line, lines = b"x" * 99 + b"\n", 50
    async with upstreams_for(folder, user, over_stdio("shouting", SHOUTING)) as upstreams:
        for _client in range(3):
            async with Client(make_proxy(upstreams, transport="stdio"), mode="legacy") as client:
                await client.call_tool("shout", arguments_of(line, lines))

    # The control: one process alone is within it.
    assert lines * (len(LEAD) + len(line)) <= 10_000
    assert 9_000 < len(capsys.readouterr().err) <= 10_000


@pytest.mark.parametrize("form", ["json", "text"])
def test_server_line_cannot_pass_for_commands_own_log(folder: Path, form: str) -> None:
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    requests: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": begin},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "shout", "arguments": arguments_of(FORGED)}},
    ]
    command = [sys.executable, "-m", "runner", "proxy", "--log-level", "info", "--log-format", form]
    process = subprocess.Popen(
        [*command, "--user", "ann", "--", sys.executable, str(SHOUTING)],
        cwd=folder,
        env=environment_in(folder, PYTHONPATH=str(ROOT)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for request in requests:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **request}) + "\n")
        process.stdin.flush()
    assert any('"id":2' in line.replace(" ", "") for line in process.stdout)
    _rest, stderr = process.communicate(timeout=180)

    lines = stderr.removesuffix("\n").split("\n")
    theirs = [line for line in lines if line.startswith("stderr of ")]
    ours = [line for line in lines if line not in theirs]
    assert len([line for line in theirs if "forged" in line or "without an end" in line]) == 6
    assert not any("forged" in line for line in ours)
    # The control: our own lines are there, in their form.
    assert any("connected" in line for line in ours)
    assert form == "text" or all(json.loads(line)["event"] for line in ours)


async def test_endless_stderr_takes_bounded_loop_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, written = 0, 0
    read = os.read

    def counted(*output: Any) -> bytes:
        nonlocal turns
        turns += 1
        return read(*output)

    monkeypatch.setattr(os, "read", counted)
    with LastWords("x") as output:
        while written < 1000:
            written += os.write(output.file.fileno(), b"y")
            await asyncio.sleep(0)
        during = turns

        assert await output.wait() == "y" * 1000

    assert during < 500


async def test_last_output_kept_despite_drops(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LastWords("x", TokenBucket(at_once=0, per_s=0)) as output:
        os.write(output.file.fileno(), b"z" * 30_000 + b"\n\x1b[31mno such file\n")
        words = await output.wait()

    assert words.endswith("zzz / no such file")
    assert len(words) <= 2000
    assert capsys.readouterr().err == ""


async def test_unread_output_relayed_when_server_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LastWords("x") as output:
        os.write(output.file.fileno(), b"its last words")

    assert capsys.readouterr().err == "stderr of x: its last words\n"


async def test_missing_host_stderr_relays_nothing_leaks_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = open_descriptors()
    with monkeypatch.context() as patched, LastWords("x") as output:
        patched.setattr(sys, "stderr", None)
        os.write(output.file.fileno(), b"its last words\n")
        assert await output.wait() == "its last words"

    assert open_descriptors() <= before


@given(st.lists(st.binary(max_size=60), max_size=60), st.integers(0, 600))
def test_stderr_bytes_relayed_or_counted_for_any_chunking(pieces: list[bytes], at_once: int) -> None:
    log = ServerLog(server="x", budget=TokenBucket(at_once=at_once, per_s=0))
    written = "".join(log.passed(piece, now=0) for piece in pieces) + log.passed(b"\n", now=0)

    assert len(written.encode()) <= at_once
    assert all(line.startswith("stderr of x: ") and not has_hidden(line) for line in written.split("\n")[:-1])
    # Of bytes that are neither ends of lines nor odd, none is lost.
    lines = b"".join(pieces).replace(b"\r", b"\n").split(b"\n")
    if not log.dropped:
        plain = [
            line.decode() for line in lines if line.strip() and line.isascii() and line.decode().isprintable()
        ]
        assert [line for line in plain if f"stderr of x: {line}\n" not in written] == []
    assert log.dropped <= sum(map(len, pieces))


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 50)), max_size=200))
def test_budget_passes_no_more_than_its_limit(writes: list[tuple[float, int]]) -> None:
    budget, now, passed = TokenBucket(at_once=100, per_s=10), 0.0, 0
    for delay, size in writes:
        now += delay
        passed += size if budget.takes(size, now=now) else 0

    assert passed <= 100 + 10 * now + 1e-6
