"""A server that is a command runs confined: what it can touch, and how it ends."""

import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import pytest
from fastmcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import Request, RequestParams, Result
from proxying import BARE, REMOTE, over_stdio, proxied, result, unreachable, upstreams_for
from support import alive, becomes, settings_in

from runner.errors import UsageError
from runner.homes.emptying import Emptied, remove
from runner.proxy.confined_command import check_command
from runner.proxy.server import make_proxy
from runner.proxy.targets import Target
from runner.proxy.upstreams import ways_to
from runner.settings.execution import ToolSettings
from sandbox.errors import IsolationUnavailable
from sandbox.probe.machine import Tier

CLOSED = {"PermissionError", "FileNotFoundError", "OSError"}
SHORT = {"silent": ToolSettings(idle_timeout_s=1)}

pytestmark = [pytest.mark.needs_npm, pytest.mark.anyio, pytest.mark.kernel]


@pytest.fixture(params=["process", "user", "namespace"])
async def confined(request: pytest.FixtureRequest, folder: Path, user: str) -> AsyncIterator[Any]:
    """A server in each tier, which writes and reads the same in all of them."""
    with for_anybody() as target:
        async with proxied(folder, user, target, tools=SHORT, isolation=request.param) as client:
            yield client


@contextmanager
def for_anybody() -> Iterator[Target]:
    """A server that every user id can read, with an interpreter that every one can run."""
    interpreter = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    assert interpreter, "the tier user needs an interpreter of the system; install python3"
    folder = Path(tempfile.mkdtemp(prefix="toolcell-proxy-", dir="/var/tmp"))
    folder.chmod(0o755)
    server = folder / BARE.name
    server.write_bytes(BARE.read_bytes())
    server.chmod(0o644)
    yield Target(name="bare", command=(interpreter, server.name), folder=folder, env={"NAMED": "yes"})
    shutil.rmtree(folder)


async def test_json_rpc_denial_names_helpful_option(confined: Any) -> None:
    with pytest.raises(MCPError) as denied:
        await confined.call_tool("refuse", {"words": "EROFS: read-only file system, open '/opt/a/b'"})
    with pytest.raises(MCPError) as other:
        await confined.call_tool("refuse", {"words": "day, it is late"})

    error, option = str(denied.value).splitlines()
    assert error == "no EROFS: read-only file system, open '/opt/a/b'"
    assert "--allow-write=/opt/a " in option
    assert "--allow-read" not in option
    assert str(other.value) == "no day, it is late"


async def test_scratch_file_error_keeps_file_name(confined: Any) -> None:
    home = await home_of(confined)

    with pytest.raises(MCPError) as missing:
        await confined.call_tool(
            "refuse", {"words": f"ENOENT: no such file, access '{home}/deep/tasks.json'"}
        )

    assert str(missing.value).startswith("no ENOENT: no such file, access '{scratch}/deep/tasks.json'")
    assert home not in str(missing.value)


async def home_of(client: Any) -> str:
    home: str = (await result(client, "surroundings"))["HOME"]
    return home


def processes_of(home: str) -> list[int]:
    """The processes of a server, as this machine numbers them, by the home that their environment names."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"HOME={home}".encode() in environment and alive(int(folder.name)):
            found.append(int(folder.name))
    return found


async def gone(*homes: str) -> bool:
    with anyio.move_on_after(180):
        while any(processes_of(home) for home in homes):
            await anyio.sleep(0.02)
    return not any(processes_of(home) for home in homes)


async def test_server_writes_in_its_own_home_only(
    confined: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "left"
    home = await home_of(confined)

    written = [
        await result(confined, "leave", path=path) for path in (f"{home}/left", str(elsewhere), "/tmp/t-left")
    ]

    assert written[0] == "done"
    assert {*written[1:]} <= CLOSED
    assert Path(home, "left").read_text() == "left"
    assert not elsewhere.exists()
    assert not Path("/tmp/t-left").exists()


async def test_server_reads_neither_our_state_nor_homes(confined: Any, folder: Path) -> None:
    secret = folder / "state" / "secret"
    secret.parent.mkdir(mode=0o700, exist_ok=True)
    secret.write_text("secret")

    seen = [await result(confined, "see", path=str(path)) for path in ("/etc/hostname", secret)]

    assert seen[0] == "done"
    assert seen[1] in CLOSED


async def test_server_has_no_network(confined: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        socket.create_connection((host, port), 2).close()

        assert await result(confined, "reach", host=host, port=port) == "PermissionError"


async def test_server_reaches_allowed_destinations_only(folder: Path, user: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as named, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [listener.getsockname()[1] for listener in (named, other)]
        allowed = (f"127.0.0.1:{ports[0]}",)
        async with proxied(folder, user, over_stdio(), allow_net=allowed) as client:
            reached = [await result(client, "reach", host="127.0.0.1", port=port) for port in ports]
        # The port of the metrics is closed, though its address is allowed.
        metrics = f"127.0.0.1:{ports[1]}"
        async with proxied(
            folder, user, over_stdio(), allow_net=("localhost",), metrics_address=metrics
        ) as client:
            beside = [await result(client, "reach", host="127.0.0.1", port=port) for port in ports]

    for each in (reached, beside):
        assert each[0] == "done"
        assert each[1] != "done"


@pytest.mark.release
async def test_results_state_tier_of_their_server(folder: Path, user: str) -> None:
    for tier in ("process", "namespace"):
        async with proxied(folder, user, over_stdio(), isolation=tier) as client:
            called = await client.call_tool_mcp("pid", {})

        assert called.meta["toolcell/isolation"] == {"tier": tier}


async def test_server_sees_named_variables_and_none_of_ours(
    folder: Path, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_SECRET", "s")
    monkeypatch.setenv("LET_IN", "in")
    async with proxied(folder, user, over_stdio(env={"NAMED": "yes"}), allow_env=("LET_IN",)) as client:
        seen = await result(client, "surroundings")

    assert (seen.get("NAMED"), seen.get("LET_IN"), seen.get("OUR_SECRET")) == ("yes", "in", None)
    assert seen["USER"] == user


async def test_policy_with_keys_not_left_on_disk(confined: Any, folder: Path) -> None:
    await result(confined, "pid")

    assert list((folder / "state").rglob("policy-*")) == []


async def test_crash_fails_its_call_and_next_gets_new_process(
    confined: Any,
) -> None:
    first = await home_of(confined)

    crashed = await confined.call_tool("crash", raise_on_error=False)

    second = await home_of(confined)
    assert crashed.structured_content["meta_data"]["error_code"] == "E_CRASHED"
    assert crashed.structured_content["meta_data"]["retryable"] is True
    assert first != second
    assert await gone(first)


async def test_server_killed_from_outside_is_restarted(confined: Any) -> None:
    first = await home_of(confined)

    for pid in processes_of(first):
        os.kill(pid, signal.SIGKILL)
    assert await gone(first)

    called = [await confined.call_tool("remember", {"value": n}, raise_on_error=False) for n in (1, 2)]
    assert called[-1].is_error is False
    assert await home_of(confined) != first


async def test_silent_call_ends_with_its_process(confined: Any) -> None:
    first = await home_of(confined)
    assert processes_of(first)

    ended = await confined.call_tool("silent", {"seconds": 60}, raise_on_error=False)

    assert ended.structured_content["meta_data"]["error_code"] == "E_TIMEOUT"
    assert await gone(first)
    assert await home_of(confined) != first


@pytest.mark.parametrize("tier", ["process", "user", "namespace"])
async def test_processes_of_server_end_with_connection(folder: Path, user: str, tier: str) -> None:
    with for_anybody() as target:
        async with proxied(folder, user, target, isolation=tier) as client:
            home = await home_of(client)
            for tool in ("child", "detached"):
                await result(client, tool)
            # One that is about to run its program has no environment yet by which it is known.
            assert await becomes(lambda: len(processes_of(home)) == 3)

    assert await gone(home)
    assert not Path(home).exists()


async def test_other_servers_continue_during_file_removal(
    folder: Path, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, others_went_on = threading.Event(), threading.Event()
    removed: list[tuple[str, bool]] = []

    def remove_slowly(folder_fd: int, name: str) -> Emptied:
        """Remove as a disk does on which a million files lie: it takes until others have gone on."""
        began.set()
        waited = others_went_on.wait(60)
        removed.append((name, waited))
        return remove(folder_fd, name)

    async def go_on() -> None:
        while not began.is_set():
            await anyio.sleep(0.01)
        others_went_on.set()

    with for_anybody() as target:
        async with anyio.create_task_group() as tasks:
            async with proxied(folder, user, target, isolation="process") as client:
                home = await home_of(client)
                monkeypatch.setattr("runner.homes.scratch.remove", remove_slowly)
                tasks.start_soon(go_on)
            monkeypatch.undo()
            tasks.cancel_scope.cancel()

    assert removed == [(Path(home).name, True)]


@pytest.mark.release
async def test_server_crashing_at_each_start_leaves_others_running(folder: Path, user: str) -> None:
    broken = Target(name="broken", command=(sys.executable, "-c", "raise SystemExit(3)"), folder=folder)
    async with proxied(folder, user, over_stdio("fine"), broken, over_stdio("other")) as client:
        names = [tool.name for tool in await client.list_tools()]
        pids = [await result(client, f"{name}_pid") for name in ("fine", "other")]
        refused = await client.call_tool("broken_x", raise_on_error=False)

    assert {"fine_pid", "other_pid"} <= set(names)
    assert not [name for name in names if name.startswith("broken_")]
    assert all(pids)
    assert refused.structured_content["meta_data"]["error_code"] == "E_BUSY"


NO_NAMES = "import socket; socket.getaddrinfo('api.host.example', 443)"
NO_SOCKETS = "import socket; socket.create_connection(('192.0.2.1', 443), 1)"


@pytest.mark.parametrize("script", [NO_NAMES, NO_SOCKETS])
async def test_start_needing_network_refused_with_flag(script: str, folder: Path, user: str) -> None:
    """The hint depends on the last output of a command, not on its name."""
    target = Target(name="online", command=(sys.executable, "-c", script), folder=folder)

    error = await unreachable(folder, user, target)

    assert re.search(
        r"has no network.*--allow-net=HOST allows.*; it said: .*(?:gaierror|PermissionError)", error
    )


@pytest.mark.parametrize(
    ("script", "allowed", "cure"),
    [
        # As a package registry at a private address, which the option for registries does not open.
        (NO_SOCKETS, {"allow_fetch": True}, "192.0.2.1:443"),
        (NO_NAMES, {"allow_net": ("other.host.example",)}, "api.host.example"),
    ],
)
async def test_start_denied_a_connection_names_address(
    script: str, allowed: dict[str, Any], cure: str, folder: Path, user: str
) -> None:
    target = Target(name="online", command=(sys.executable, "-c", script), folder=folder)

    error = await unreachable(folder, user, target, isolation="namespace", **allowed)

    assert f"were denied. For the operator: --allow-net={cure} allows them; it" in error


async def test_server_failing_to_start_refused_with_its_output(folder: Path, user: str) -> None:
    script = "import sys; print('no index given', file=sys.stderr); sys.exit(2)"
    target = Target(name="wrong", command=(sys.executable, "-c", script), folder=folder)

    error = await unreachable(folder, user, target)

    assert "it said: no index given" in error
    assert "--allow-net" not in error


async def test_third_party_server_works_confined(folder: Path, user: str) -> None:
    async with proxied(folder, user, over_stdio("remote", REMOTE), mode="legacy") as client:
        assert await result(client, "add", a=1, b=2) == 3
        assert (await client.read_resource("note://short"))[0].text == "a note"


@pytest.mark.release
async def test_session_clients_each_have_own_process_and_memory(folder: Path, user: str) -> None:
    async with upstreams_for(folder, user, over_stdio()) as upstreams:
        app = make_proxy(upstreams, transport="stdio")
        async with Client(app, mode="legacy") as one, Client(app, mode="legacy") as two:
            remembered = [
                await result(client, "remember", value=value)
                for client, value in ((one, 1), (one, 2), (two, 3))
            ]

    assert remembered == [[1], [1, 2], [3]]


def test_missing_program_is_named(folder: Path) -> None:
    with pytest.raises(UsageError, match="there is no program not-there-at-all"):
        ways_to(settings_in(folder), [Target(name="x", command=("not-there-at-all",))])


def test_script_argument_not_taken_for_file(folder: Path) -> None:
    target = Target(name="x", command=(sys.executable, "-c", "pass\n" * 1000), folder=folder)

    assert ways_to(settings_in(folder), [target])[0].name == "x"


def test_command_refused_where_exec_is_denied(folder: Path) -> None:
    with pytest.raises(UsageError, match="allow_run"):
        check_command(over_stdio(), settings_in(folder, allow_run=()))


def test_command_unreadable_in_its_tier_refused_with_remedy(folder: Path) -> None:
    script = folder / "server.py"
    script.write_text("")
    script.chmod(0o600)
    target = over_stdio("closed", script)

    with pytest.raises(IsolationUnavailable, match=r"server.py is closed to other users.*chmod"):
        ways_to(settings_in(folder, isolation="namespace"), [target])
    assert ways_to(settings_in(folder, isolation="auto"), [target])[0].tier is Tier.PROCESS


def test_program_found_beside_file_that_names_it(folder: Path) -> None:
    program = folder / "serve.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    target = Target(name="x", command=("./serve.sh",), folder=folder)

    assert check_command(target, settings_in(folder)) == program


@pytest.mark.release
async def test_server_start_timeout_reports_its_output(folder: Path, user: str) -> None:
    script = (
        "import sys; print('waiting for the index', file=sys.stderr, flush=True); sys.stdin.buffer.read()"
    )
    target = Target(name="slow", command=(sys.executable, "-c", script), folder=folder)

    expected = r"no answer within 3 s \(raise load_timeout_s\): .*it said: waiting for the index"
    assert re.search(expected, await unreachable(folder, user, target, load_timeout_s=3.0))


UNVERSIONED = """
import asyncio
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import RequestParams
from pydantic import BaseModel

class Question(RequestParams):
    what: str

class Answer(BaseModel):
    text: str

async def answer(ctx, params):
    return Answer(text=params.what.upper())

server = Server("own")
server.add_request_handler("x-own/ask", Question, answer)
server.add_request_handler("tasks/result-of-old", Question, answer)

async def main():
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())

asyncio.run(main())
"""


class _Params(RequestParams):
    what: str


class _Answer(Result):
    text: str


@pytest.mark.release
async def test_server_keeps_empty_version_and_own_methods(folder: Path, user: str) -> None:
    target = Target(name="own", command=(sys.executable, "-c", UNVERSIONED), folder=folder)

    async with proxied(folder, user, target, mode="legacy") as client:
        version = client.server_info.version
        own, other = (
            Request[_Params, str](method=method, params=_Params(what="a"))
            for method in ("x-own/ask", "x-own/no")
        )
        past_the_guard = Request[_Params, str](method="tasks/result-of-old", params=_Params(what="a"))
        answer = await client.session.send_request(own, _Answer)
        with pytest.raises(MCPError) as unknown:
            await client.session.send_request(other, _Answer)
        with pytest.raises(MCPError) as of_the_protocol:
            await client.session.send_request(past_the_guard, _Answer)

    assert version == ""
    assert answer.text == "A"
    assert unknown.value.error.code == mcp_types.METHOD_NOT_FOUND
    assert of_the_protocol.value.error.code == mcp_types.METHOD_NOT_FOUND


@pytest.mark.parametrize("word", ["state/tokens.json", "op/.ssh/id_rsa", "readme.txt"])
def test_argument_leading_to_keys_or_state_refused(
    word: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_in(folder)
    monkeypatch.setenv("HOME", str(folder / "op"))
    for name in ("op/.ssh/id_rsa", "data.txt", "server.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    settings.state_dir.mkdir(exist_ok=True)
    (settings.state_dir / "tokens.json").write_text("{}")
    (folder / "readme.txt").symlink_to("op/.ssh/id_rsa")
    named = str(settings.state_dir / "tokens.json") if word.startswith("state") else word
    plain, other = (
        Target(name="s", command=(sys.executable, "server.py", more), folder=folder)
        for more in ("data.txt", named)
    )

    assert ways_to(settings, [plain])
    with pytest.raises(
        UsageError, match=f"the word .*{Path(named).name}.* would open .*; leave the word out"
    ):
        ways_to(settings, [other])


@pytest.mark.parametrize("planted", ["pyvenv.cfg", "data.txt"])
async def test_neighbours_of_data_and_settings_stay_closed(planted: str, folder: Path, user: str) -> None:
    for name in ("project/.env", "project/bin/server.py", "project/lib/own.py", "other/tax.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(BARE.read_text() if name.endswith("server.py") else name)
    (folder / "other/data.txt").write_text("named")
    (folder / "project" / planted).touch()
    words = ("bin/server.py", str(folder / "other/data.txt"))
    target = Target(name="s", command=(sys.executable, *words), folder=folder / "project")

    async with proxied(folder, user, target, isolation="process") as client:
        seen = {
            name: await result(client, "see", path=str(folder / name))
            for name in ("project/bin/server.py", "other/data.txt", "other/tax.txt", "project/.env")
        }

    assert (seen["project/bin/server.py"], seen["other/data.txt"]) == ("done", "done")
    assert seen["other/tax.txt"] in CLOSED
    assert seen["project/.env"] in CLOSED


@pytest.mark.parametrize("way", ["link", "interpreter"])
async def test_program_named_by_a_project_opens_no_other_folder(way: str, folder: Path, user: str) -> None:
    for name in ("project", "other"):
        (folder / name).mkdir()
        (folder / name / "notes.txt").write_text(name)
        (folder / name / "run").write_text(f"#!/bin/sh\nexec {sys.executable} {folder}/project/server.py\n")
    (folder / "project/server.py").write_text(BARE.read_text())
    if way == "link":
        (folder / "project/run").unlink()
        (folder / "project/run").symlink_to("../other/run")
    else:
        (folder / "project/run").write_text(f"#!{folder}/other/run\n")
    for name in ("project", "other"):
        (folder / name / "run").chmod(0o755)
    target = Target(name="s", command=("./run", "server.py"), folder=folder / "project")

    async with proxied(folder, user, target, isolation="process") as client:
        own, other = [
            await result(client, "see", path=str(folder / name / "notes.txt"))
            for name in ("project", "other")
        ]

    assert own == "done"
    assert other in CLOSED


@pytest.mark.parametrize(
    ("reads", "starts"),
    [("", 1), ("sys.stdin.readline()", 2)],
    ids=["reads-nothing", "reads-the-first-message"],
)
async def test_server_exiting_after_first_read_started_again(
    reads: str, starts: int, folder: Path, user: str
) -> None:
    noted = folder / "noted"
    noted.mkdir()
    script = folder / "ends.py"
    script.write_text(f"import sys\nopen({str(noted / 'starts')!r}, 'a').write('.')\n{reads}\nsys.exit(3)\n")
    settings: dict[str, Any] = {"allow_write": (noted,), "isolation": "process"}

    error = await unreachable(folder, user, over_stdio("ends", script), **settings)

    assert "cannot be reached" in error

    assert (noted / "starts").read_text() == "." * starts
