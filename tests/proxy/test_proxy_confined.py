"""A server that is a command runs confined: what it can touch, and how it ends."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastmcp import Client
from proxying import BARE, REMOTE, desk_for, over_stdio, proxied, result
from support import alive, settings_in

from runner.errors import UsageError
from runner.proxy import make_proxy
from runner.proxy_confined import check_command
from runner.proxy_targets import Target
from runner.settings import ToolSettings
from runner.shell_proxy import ways_to

SHORT = {"silent": ToolSettings(idle_timeout_s=1)}

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]


@pytest.fixture
async def confined(folder: Path, user: str) -> AsyncIterator[Any]:
    async with proxied(folder, user, over_stdio(env={"NAMED": "yes"}), tools=SHORT) as client:
        yield client


async def gone(*pids: int) -> bool:
    with anyio.move_on_after(10):
        while any(alive(pid) for pid in pids):
            await anyio.sleep(0.02)
    return not any(alive(pid) for pid in pids)


async def test_it_writes_in_its_own_home_and_nowhere_else(
    confined: Any, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "left"
    home = (await result(confined, "surroundings"))["HOME"]

    written = [
        await result(confined, "leave", path=path) for path in (f"{home}/left", str(elsewhere), "/tmp/t-left")
    ]

    assert written == ["done", "PermissionError", "PermissionError"]
    assert Path(home, "left").read_text() == "left"
    assert Path(home).is_relative_to(folder / "state")


async def test_it_reads_neither_our_state_nor_what_lies_in_homes(confined: Any, folder: Path) -> None:
    secret = folder / "state" / "secret"
    secret.write_text("secret")

    seen = [await result(confined, "see", path=str(path)) for path in (BARE, secret)]

    assert seen == ["done", "PermissionError"]


async def test_it_has_no_network(confined: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        socket.create_connection((host, port), 2).close()

        assert await result(confined, "reach", host=host, port=port) == "PermissionError"


async def test_it_sees_the_variables_that_are_named_and_none_of_ours(
    folder: Path, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_SECRET", "s")
    monkeypatch.setenv("LET_IN", "in")
    async with proxied(folder, user, over_stdio(env={"NAMED": "yes"}), allow_env=("LET_IN",)) as client:
        seen = await result(client, "surroundings")

    assert (seen.get("NAMED"), seen.get("LET_IN"), seen.get("OUR_SECRET")) == ("yes", "in", None)
    assert seen["USER"] == user


async def test_its_policy_with_its_keys_is_not_left_on_disk(confined: Any, folder: Path) -> None:
    await result(confined, "pid")

    assert list((folder / "state").rglob("policy.json")) == []


async def test_a_crash_is_an_error_of_that_call_and_the_next_has_a_new_process(
    confined: Any,
) -> None:
    first = await result(confined, "pid")

    crashed = await confined.call_tool("crash", raise_on_error=False)

    second = await result(confined, "pid")
    assert crashed.structured_content["meta_data"]["error_code"] == "E_CRASHED"
    assert crashed.structured_content["meta_data"]["retryable"] is True
    assert first != second


async def test_a_call_that_is_silent_too_long_ends_and_its_process_with_it(confined: Any) -> None:
    first = await result(confined, "pid")

    ended = await confined.call_tool("silent", {"seconds": 60}, raise_on_error=False)

    assert ended.structured_content["meta_data"]["error_code"] == "E_TIMEOUT"
    assert await gone(first)
    assert await result(confined, "pid") != first


async def test_nothing_that_it_started_outlives_the_connection(folder: Path, user: str) -> None:
    async with proxied(folder, user, over_stdio()) as client:
        pids = [await result(client, tool) for tool in ("pid", "child", "detached")]
        assert all(alive(pid) for pid in pids)

    assert await gone(*pids)
    assert list((folder / "state" / "scratch").iterdir()) == []


async def test_a_server_that_somebody_else_wrote_works_confined(folder: Path, user: str) -> None:
    async with proxied(folder, user, over_stdio("remote", REMOTE), mode="legacy") as client:
        assert await result(client, "add", a=1, b=2) == 3
        assert (await client.read_resource("note://short"))[0].text == "a note"


async def test_each_client_with_sessions_has_a_process_and_a_memory_of_its_own(
    folder: Path, user: str
) -> None:
    async with desk_for(folder, user, over_stdio()) as desk:
        app = make_proxy(desk, transport="stdio")
        async with Client(app, mode="legacy") as one, Client(app, mode="legacy") as two:
            remembered = [
                await result(client, "remember", value=value)
                for client, value in ((one, 1), (one, 2), (two, 3))
            ]

    assert remembered == [[1], [1, 2], [3]]


@pytest.mark.parametrize(
    "command", [("npx", "some-server"), ("/usr/bin/npx", "-y", "x"), ("uvx", "x"), ("npm", "exec", "x")]
)
def test_what_must_be_fetched_first_is_refused_with_the_flag_that_would_allow_it(
    command: tuple[str, ...], folder: Path
) -> None:
    target = Target(name="fetched", command=command)

    with pytest.raises(UsageError, match=r"from the network.*--allow-net.*install the server before"):
        check_command(target, settings_in(folder))


def test_a_program_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(UsageError, match="there is no program not-there-at-all"):
        ways_to(settings_in(folder), [Target(name="x", command=("not-there-at-all",))])


@pytest.mark.parametrize(
    ("setting", "words"),
    [({"deny_run": True}, "deny_run"), ({"isolation": "namespace"}, "tier process")],
)
def test_a_command_is_refused_where_it_could_not_be_confined_as_asked(
    setting: dict[str, Any], words: str, folder: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        check_command(over_stdio(), settings_in(folder, **setting))


def test_a_program_is_found_beside_the_file_that_names_it(folder: Path) -> None:
    program = folder / "serve.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    target = Target(name="x", command=("./serve.sh",), folder=folder)

    assert check_command(target, settings_in(folder)) == program
