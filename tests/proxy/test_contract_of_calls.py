"""What holds for calls of other servers' tools behind `runner proxy`: limits, sessions, events, the log."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mcp_types
import pytest
from contracting import NEWEST, SESSION, Front, client_of, front_of, upstream_over_http, value_of
from support import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.kernel,
    # Each front is a process with a server of its own, and a busy machine takes minutes to start one.
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

VERSIONS = pytest.mark.parametrize("version", [SESSION, NEWEST])
HOMED = Path(__file__).parent / "homed.py"

LIMITS = """
persist_files_across_sessions = false
max_user_bytes = 50000
max_calls_per_user = 1
max_queue_per_user = 0
"""
THROTTLES = "".join(f"[tools.{tool}]\ncalls_per_minute = 2\n" for tool in ("first_version", "plain", "fails"))
BY_NAME = '[call_limits.texts]\ntools = ["envelope_as_*"]\nper = "user"\ncalls_per_minute = 2\n'


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with ExitStack() as stack:
        url = stack.enter_context(upstream_over_http(tmp_path_factory.mktemp("upstream")))
        yield stack.enter_context(front_of(url, settings=LIMITS + THROTTLES + BY_NAME))


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
async def test_a_tool_is_called_as_often_as_its_limit_says(
    bounded: Front, version: str, tool: str, arguments: dict[str, Any]
) -> None:
    async with client_of(bounded, version) as client:
        called = [await client.call_tool_mcp(tool, arguments) for _ in range(3)]
        unlimited = [await client.call_tool_mcp("lone_envelope", {}) for _ in range(3)]

    refused = called[2].structured_content or called[2].meta["toolcell/result"]
    assert not any("E_BUSY" in answer.model_dump_json() for answer in called[:2])
    assert refused["meta_data"]["error_code"] == "E_BUSY"
    assert refused["meta_data"]["details"]["calls_per_minute"] == 2
    assert not any(answer.is_error for answer in unlimited)


async def test_a_limit_by_name_holds_for_tools_of_other_servers(bounded: Front) -> None:
    async with client_of(bounded, NEWEST) as client:
        called = [await value_of(client, "envelope_as_text") for _ in range(3)]

    assert [value.get("meta_data", {}).get("error_code") for value in called] == [None, None, "E_BUSY"]
    assert called[2]["meta_data"]["details"]["setting"] == "call_limits.texts.calls_per_minute"


async def test_a_user_has_no_more_calls_under_way_than_the_setting_says(bounded: Front) -> None:
    """While a session's client is asked, its call is under way."""
    meanwhile: list[Any] = []

    async def answer(_message: str, _kind: Any, _params: Any, _context: Any) -> Any:
        async with client_of(bounded, NEWEST) as other:
            meanwhile.append(await value_of(other, "whoami"))
        return mcp_types.ElicitResult(action="accept", content={"value": "green"})

    async with client_of(bounded, SESSION, elicitation_handler=answer) as client:
        asked = await value_of(client, "ask", filename="none")
        afterwards = await value_of(client, "whoami")

    assert meanwhile[0]["meta_data"]["error_code"] == "E_BUSY"
    assert asked["results"]["colour"] == "green"
    assert asked["results"]["username"] == bounded.user
    assert afterwards["results"] == {"username": bounded.user}


@VERSIONS
async def test_files_of_results_count_against_the_quota_of_the_user(bounded: Front, version: str) -> None:
    async with client_of(bounded, version) as client:
        control = await value_of(client, "large", size=1000)
        value = await value_of(client, "large", size=60_000)

    assert control["artifacts"][0]["size"] == 1000
    assert "artifacts" not in value
    assert value["meta_data"]["artifact_errors"][0]["reason"] == "quota_exceeded"


async def test_files_of_a_session_end_with_it_where_files_do_not_persist(bounded: Front) -> None:
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


async def test_the_users_interface_hears_of_a_call_and_of_its_files(homed: Front) -> None:
    await homed.put("rows.csv", b"a,b")
    where = urlsplit(homed.url)
    connection = HTTPConnection(str(where.hostname), where.port, timeout=60)
    connection.request("GET", "/events")
    stream = connection.getresponse()

    def heard() -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        while not any(event["type"] == "canvas_files" for event in events):
            line = stream.readline()
            assert line, events
            if line.startswith(b"data: "):
                events.append(json.loads(line[6:]))
        return events

    async with client_of(homed, SESSION) as client:
        listening = asyncio.create_task(asyncio.to_thread(heard))
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


async def test_a_call_has_its_line_in_the_log_without_its_arguments(bounded: Front) -> None:
    async with client_of(bounded, NEWEST) as client:
        await value_of(client, "point", url="http://secret.example/x")

    def line() -> list[str]:
        lines = bounded.log().splitlines()
        return [each for each in lines if "call ended" in each and "tool=point" in each]

    assert until(lambda: bool(line()))
    assert "outcome=ok" in line()[0]
    assert f"user={bounded.user}" in line()[0]
    assert "secret.example" not in bounded.log()


@VERSIONS
async def test_a_call_that_asks_its_client_keeps_its_identity_and_its_files(
    homed: Front, version: str
) -> None:
    """The server asks in the middle of a call; a client without sessions comes back with the answer."""
    await homed.put("rows.csv", b"a,b")
    asked: list[str] = []

    async def answer(message: str, _kind: Any, _params: Any, _context: Any) -> Any:
        asked.append(message)
        return mcp_types.ElicitResult(action="accept", content={"colour": "green"})

    async with client_of(homed, version, elicitation_handler=answer) as client:
        called = await client.call_tool("ask", {"filename": "rows.csv", "username": "mallory"})

    value = called.structured_content
    assert asked == ["Your colour?"]
    assert value["results"]["username"] == homed.user
    assert value["artifacts"][0]["size"] == len(b"a,b")
