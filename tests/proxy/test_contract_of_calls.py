"""Calls of other servers' tools behind `runner proxy`: limits, sessions, events, the log."""

import asyncio
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mcp_types
import pytest
from contracting import MARKS, VERSIONS, Front, client_of, front_of, value_of
from eras import NEWEST, SESSION
from proxying import messages_of_call
from support import ROOT, until

pytestmark = [*MARKS, pytest.mark.release]

HOMED = Path(__file__).parent / "homed.py"

LIMITS = """
persist_files_across_sessions = false
max_user_bytes = 50000
"""
THROTTLES = "".join(
    f'[call_limits.{tool}]\ntools = ["{tool}"]\nper = "user"\ncalls_per_minute = 2\n'
    for tool in ("first_version", "plain", "fails")
)
BY_NAME = '[call_limits.texts]\ntools = ["envelope_as_*"]\nper = "user"\ncalls_per_minute = 2\n'


@pytest.fixture(scope="module")
def bounded(address: str) -> Iterator[Front]:
    with front_of(address, settings=LIMITS + THROTTLES + BY_NAME) as front:
        yield front


@pytest.fixture(scope="module")
def homed() -> Iterator[Front]:
    """A command that speaks the handshake era only."""
    with front_of("--", sys.executable, str(HOMED)) as front:
        yield front


@pytest.mark.parametrize(
    ("version", "tool", "arguments"),
    [
        (SESSION, "first_version", {}),
        # Left alone by the contract, and limited all the same.
        (NEWEST, "plain", {"text": "x"}),
        (SESSION, "fails", {"username": "mallory"}),
    ],
)
async def test_tool_called_as_often_as_its_limit_allows(
    bounded: Front, version: str, tool: str, arguments: dict[str, Any]
) -> None:
    async with client_of(bounded, version) as client:
        called = [await client.call_tool_mcp(tool, arguments) for _ in range(3)]
        unlimited = [await client.call_tool_mcp("lone_envelope", {}) for _ in range(3)]

    refused = called[2].structured_content or called[2].meta["toolcell/result"]
    assert not any("E_BUSY" in answer.model_dump_json() for answer in called[:2])
    assert refused["meta_data"]["error_code"] == "E_BUSY"
    assert refused["meta_data"]["details"]["setting"] == f"call_limits.{tool}.calls_per_minute"
    assert not any(answer.is_error for answer in unlimited)


async def test_named_limit_applies_to_tools_of_other_servers(bounded: Front) -> None:
    async with client_of(bounded, NEWEST) as client:
        called = [await value_of(client, "envelope_as_text") for _ in range(3)]

    assert [value.get("meta_data", {}).get("error_code") for value in called] == [None, None, "E_BUSY"]
    assert called[2]["meta_data"]["details"]["setting"] == "call_limits.texts.calls_per_minute"


@VERSIONS
async def test_result_files_count_against_quota_of_user(bounded: Front, version: str) -> None:
    async with client_of(bounded, version) as client:
        control = await value_of(client, "large", size=1000)
        value = await value_of(client, "large", size=60_000)

    assert control["artifacts"][0]["size"] == 1000
    assert "artifacts" not in value
    assert value["meta_data"]["artifact_errors"][0]["reason"] == "quota_exceeded"


async def test_session_files_end_with_session_without_persistence(bounded: Front) -> None:
    async with client_of(bounded, SESSION) as client:
        value = await value_of(client, "newest_version")
        uri = value["artifacts"][0]["uri"]
        listed = (await client.read_resource("runner://files"))[0].text
        fetched = await client.read_resource(uri)
    async with client_of(bounded, SESSION) as client:
        afterwards = (await client.read_resource("runner://files"))[0].text

    assert "c.pdf" in listed
    assert fetched[0].blob
    assert "c.pdf" not in afterwards


async def test_interface_notified_of_call_and_its_files(homed: Front) -> None:
    await homed.put("rows.csv", b"a,b")
    where = urlsplit(homed.url)
    connection = HTTPConnection(str(where.hostname), where.port, timeout=180)
    connection.request("GET", "/events")
    stream = connection.getresponse()

    def events_until_files() -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        while not any(event["type"] == "canvas_files" for event in events):
            line = stream.readline()
            assert line, events
            if line.startswith(b"data: "):
                events.append(json.loads(line[6:]))
        return events

    async with client_of(homed, SESSION) as client:
        listening = asyncio.create_task(asyncio.to_thread(events_until_files))
        await value_of(client, "copy", filename="rows.csv")
        events = await asyncio.wait_for(listening, 60)
    connection.close()

    kinds = [event["type"] for event in events]
    start = next(event for event in events if event["type"] == "tool_start")
    files = next(event for event in events if event["type"] == "files_update")
    assert kinds.index("tool_start") < kinds.index("artifact_stored") < kinds.index("files_update")
    assert start["arguments"] == {"filename": "rows.csv", "username": homed.user}
    assert start["tool"] == files["tool"] == "copy"
    assert start["call"] == files["call"]
    assert files["files"][0]["name"] == "copy.txt"
    assert "path" not in files["files"][0]


_ELAPSED = re.compile(r" elapsed_ms=[0-9.]+ ")


@pytest.mark.parametrize(
    ("tool", "arguments", "outcome", "files"),
    [
        ("point", {"url": "http://secret.example/x"}, "ok", 0),
        ("content_blocks", {}, "ok", 2),
        # Left alone by the contract, and noted all the same.
        ("plain_size", {"size": 3}, "ok", 0),
        ("plain_size", {"size": -3}, "error", 0),
        ("no_such_server.tool", {}, "error", 0),
    ],
)
async def test_call_logged_in_one_line_without_arguments(
    bounded: Front, tool: str, arguments: dict[str, Any], outcome: str, files: int
) -> None:
    before = len(bounded.log())
    async with client_of(bounded, NEWEST) as client:
        await client.call_tool_mcp(tool, arguments)
    facts = (
        "call ended",
        f" tool={tool} ",
        f" outcome={outcome} ",
        f" files={files} ",
        f" user={bounded.user} ",
    )

    def is_logged() -> bool:
        # A line of an earlier test's call may be written late.
        lines = [f"{line} " for line in bounded.log()[before:].splitlines()]
        return any(all(fact in line for fact in facts) and _ELAPSED.search(line) for line in lines)

    assert until(is_logged)
    assert "secret.example" not in bounded.log()


@pytest.mark.parametrize(("tool", "arguments"), [("whoami", {}), ("plain_size", {"size": 3})])
def test_call_report_on_request_has_step_times(bounded: Front, tool: str, arguments: dict[str, Any]) -> None:
    silent, reported = (
        messages_of_call(bounded.url, tool, arguments, **{"toolcell/report": wants})[-1]["result"]
        for wants in (False, True)
    )

    report = reported["_meta"]["toolcell/report"]
    assert "toolcell/report" not in silent.get("_meta", {})
    assert {"admit", "run"} <= report["steps_ms"].keys()
    assert report["deadlines"]["total_s"] > 0


def test_stdio_session_files_end_with_proxy(address: str, tmp_path: Path) -> None:
    (tmp_path / "runner.toml").write_text(
        "persist_files_across_sessions = false\n"
        f'state_dir = "{tmp_path / "state"}"\nstore = "{(tmp_path / "store").as_uri()}"\n'
    )
    command = [sys.executable, "-m", "runner", "proxy", "--user", f"t-{uuid.uuid4().hex[:12]}", address]
    config = str(tmp_path / "runner.toml")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "RUNNER_CONFIG": config}
    initialize = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    # The handshake era, in which a connection is a session; a library's client would kill the process early.
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": initialize},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "newest_version", "arguments": {}}},
    ]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for message in messages:
            print(json.dumps({"jsonrpc": "2.0", **message}), file=process.stdin, flush=True)
        answer = next(line for line in process.stdout if '"id":2' in line.replace(" ", ""))
        during = stored(tmp_path)
        process.stdin.close()
        process.stdout.read()
        process.wait(timeout=300)

    assert "c.pdf" in answer
    assert during
    assert stored(tmp_path) == []


def stored(folder: Path) -> list[str]:
    """Return the names of all users' contents in a local store."""
    return [path.name for path in (folder / "store").rglob("objects/*")]


@VERSIONS
async def test_call_with_elicitation_keeps_identity_and_files(homed: Front, version: str) -> None:
    """The server elicits during a call; a client without sessions sends the call again with the answer."""
    await homed.put("rows.csv", b"a,b")
    questions: list[str] = []

    async def answer(message: str, _kind: Any, _params: Any, _context: Any) -> Any:
        questions.append(message)
        return mcp_types.ElicitResult(action="accept", content={"colour": "green"})

    async with client_of(homed, version, elicitation_handler=answer) as client:
        called = await client.call_tool("ask", {"filename": "rows.csv", "username": "mallory"})

    value = called.structured_content
    assert questions == ["Your colour?"]
    assert value["results"]["username"] == homed.user
    assert value["artifacts"][0]["size"] == len(b"a,b")
