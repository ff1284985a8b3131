"""`runner up`, `ps` and `down`: a server for each user, through the command line, with real servers."""

import asyncio
import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from fastmcp import Client
from ports import free_port, holders_of
from support import becomes, until
from unprivileged import NOBODY, opened, private_folder

AS_NOBODY = f"set -- setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --"

pytestmark = [
    pytest.mark.needs_root,
    pytest.mark.release,
    pytest.mark.anyio,
    pytest.mark.kernel,
    pytest.mark.needs_root,
]

TOOLS = """
import asyncio, os
from pathlib import Path
from fastmcp import Context, FastMCP

mcp = FastMCP("who")


@mcp.tool
def who(username: str) -> dict:
    Path("mine.txt").write_text(username)
    return {"uid": os.getuid(), "home": str(Path.cwd()), "user": username}


@mcp.tool
async def slow(username: str, ctx: Context) -> str:
    Path("begun.txt").touch()
    await ctx.report_progress(1)
    await asyncio.sleep(3)
    return "done"


@mcp.tool
def needs(mib: int) -> int:
    return len(bytearray(mib << 20))
"""


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


@dataclass
class Installation:
    """A file of users, the folder of its servers, and the commands."""

    place: Path
    prefix: str

    @property
    def file(self) -> Path:
        return self.place / "users.toml"

    @property
    def folder(self) -> Path:
        return self.place / "up"

    def name(self, short: str) -> str:
        return f"{self.prefix}-{short}"

    def write(self, users: dict[str, dict[str, Any]], **defaults: Any) -> None:
        lines = ["[defaults]", f"tools = {json.dumps([str(self.place / 'who_up.py')])}"]
        lines += [f"{key} = {toml(value)}" for key, value in defaults.items()]
        for short, said in users.items():
            lines += [f"[users.{json.dumps(self.name(short))}]"]
            lines += [f"{key} = {toml(value)}" for key, value in said.items()]
        self.file.write_text("\n".join(lines))
        tomllib.loads(self.file.read_text())

    def run(self, *words: str, before: str = ":", check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a command of the runner where every user id can read the interpreter."""
        assert os.getuid() == 0, "servers get user ids of their own; run these tests as root"
        command = [sys.executable, "-P", "-m", "runner", *words, "--folder", str(self.folder)]
        private = private_folder(Path(sys.base_prefix))
        script = "exec " + " ".join(map(json.dumps, command))
        if private is not None:
            script = opened(private, Path(sys.base_prefix), command)
        first, exec_, rest = script.rpartition("exec ")
        command = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-ec",
            f'{first}set --; {before}\n{exec_}"$@" {rest}',
        ]
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": "/nonexistent"}
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=200, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def up(self, **how: Any) -> dict[str, dict[str, Any]]:
        done = self.run("up", "--users", str(self.file), "--detach", "--json", **how)
        return self.by_name(done.stdout)

    def ps(self) -> dict[str, dict[str, Any]]:
        return self.by_name(self.run("ps", "--json").stdout)

    def by_name(self, said: str) -> dict[str, dict[str, Any]]:
        return {one["user"].removeprefix(f"{self.prefix}-"): one for one in json.loads(said)["servers"]}

    def supervisor(self) -> int | None:
        """Return its process id; None while there is none."""
        pid: int | None = json.loads(self.run("ps", "--json").stdout)["supervisor"]
        return pid

    def kill_supervisor(self) -> None:
        pid = self.supervisor()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    place = Path(
        subprocess.run(
            ["mktemp", "-d", "/var/tmp/toolcell-test-up-XXXXXX"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    place.chmod(0o755)
    installation = Installation(place, f"up{os.getpid()}x{place.name[-6:]}")
    (place / "who_up.py").write_text(TOOLS)
    yield installation
    installation.run("down", check=False)
    subprocess.run(["rm", "-r", str(place)], check=True)


async def call(server: dict[str, Any], tool: str, **arguments: Any) -> Any:
    async with Client(server["url"]) as client:
        # This client lists tools it does not know after a call, when the server may be on its way out.
        await client.list_tools()
        return (await client.call_tool(tool, arguments)).data


def users(*shorts: str) -> dict[str, dict[str, Any]]:
    return {short: {"port": free_port()} for short in shorts}


def pids(servers: dict[str, dict[str, Any]]) -> dict[str, int]:
    return {name: one["pid"] for name, one in servers.items()}


def uid_of(pid: int) -> int:
    effective: int = psutil.Process(pid).uids().effective
    return effective


async def test_each_user_has_a_server_with_a_user_id_a_port_a_home_and_a_folder_of_its_own(
    installed: Installation,
) -> None:
    said = users("ann", "bob")
    installed.write(said)

    servers = installed.up()
    answers = {short: await call(servers[short], "who") for short in said}

    assert {short: one["state"] for short, one in servers.items()} == {"ann": "ready", "bob": "ready"}
    assert {short: one["port"] for short, one in servers.items()} == {s: v["port"] for s, v in said.items()}
    assert len({uid_of(one["pid"]) for one in servers.values()} | {0}) == 3
    for short, answer in answers.items():
        folder = installed.folder / "users" / installed.name(short)
        assert answer["home"] == f"/tmp/{installed.name(short)}"
        assert answer["user"] == installed.name(short)
        assert folder.stat().st_uid == servers[short]["uid"] == uid_of(servers[short]["pid"])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_run_again_it_restarts_what_has_changed_ends_what_has_gone_and_loses_no_call(
    installed: Installation,
) -> None:
    said = users("ann", "bob", "cid")
    installed.write(said)
    first = installed.up()

    assert pids(installed.up()) == pids(first)

    slow = asyncio.create_task(call(first["bob"], "slow"))
    begun = Path("/tmp", installed.name("bob"), "begun.txt")
    assert await becomes(begun.exists)
    installed.write({"ann": said["ann"], "bob": {**said["bob"], "environment": {"RUNNER_MAX_CALLS": "3"}}})
    second = await asyncio.to_thread(installed.up)

    assert await slow == "done"
    assert set(second) == {"ann", "bob"}
    assert second["ann"]["pid"] == first["ann"]["pid"]
    assert second["bob"]["pid"] != first["bob"]["pid"]
    assert not psutil.pid_exists(first["cid"]["pid"])
    assert (installed.folder / "users" / installed.name("cid") / "state").is_dir()


def test_a_server_that_dies_is_started_again_and_told_of(installed: Installation) -> None:
    installed.write(users("ann"))
    first = installed.up()["ann"]

    os.kill(first["pid"], signal.SIGKILL)

    assert until(lambda: installed.ps()["ann"]["state"] == "ready" and installed.ps()["ann"]["restarts"] == 1)
    again = installed.ps()["ann"]
    assert (again["restarts"], again["pid"] != first["pid"], again["port"]) == (1, True, first["port"])
    log = (installed.folder / "supervisor" / "supervisor.log").read_text()
    assert "server ended" in log
    assert "killed by SIGKILL" in log


async def test_who_connects_between_two_lives_of_a_server_waits_and_is_answered(
    installed: Installation,
) -> None:
    installed.write(users("ann"))
    first = installed.up()["ann"]
    health = f"http://127.0.0.1:{first['port']}/healthz"

    os.kill(first["pid"], signal.SIGKILL)
    async with httpx2.AsyncClient(timeout=120) as http:
        answers = [await http.get(health) for _ in range(20)]
    again = installed.ps()["ann"]

    assert {answer.status_code for answer in answers} == {200}
    assert again["pid"] != first["pid"]
    # Whoever has the socket answers for the server: no process of a tool may.
    assert holders_of(first["port"]) == {again["pid"], installed.supervisor()}


def test_a_server_that_fails_again_and_again_keeps_nobody_waiting(installed: Installation) -> None:
    said = users("ann")
    installed.write(said)
    (installed.place / "who_up.py").write_text("raise SystemExit('never')")
    installed.run("up", "--users", str(installed.file), "--detach", "--json", check=False)

    def refused() -> bool:
        with socket.socket() as late:
            late.settimeout(0.2)
            return late.connect_ex(("127.0.0.1", said["ann"]["port"])) == errno.ECONNREFUSED

    assert until(lambda: installed.ps()["ann"]["restarts"] > 1 and refused())
    (installed.place / "who_up.py").write_text(TOOLS)
    assert installed.up()["ann"]["state"] == "ready"


def test_a_server_that_ends_for_good_frees_its_port_at_once(installed: Installation) -> None:
    said = users("ann", "bob")
    installed.write(said)
    installed.up()

    installed.run("down", installed.name("ann"))
    freed = holders_of(said["ann"]["port"])
    said["ann"], said["bob"] = said["bob"], said["ann"]
    installed.write(said)
    swapped = installed.up()

    assert freed == set()
    assert {name: one["state"] for name, one in swapped.items()} == {"ann": "ready", "bob": "ready"}
    assert swapped["ann"]["port"] == said["ann"]["port"]


def test_servers_outlive_a_supervisor_that_is_killed_and_the_next_takes_them_over(
    installed: Installation,
) -> None:
    installed.write(users("ann", "bob"))
    first = installed.up()
    installed.kill_supervisor()
    assert until(lambda: installed.supervisor() is None)

    left = installed.ps()
    again = installed.up()

    assert pids(left) == pids(first) == pids(again)
    os.kill(first["ann"]["pid"], signal.SIGKILL)
    assert until(lambda: installed.ps()["ann"]["pid"] not in (None, first["ann"]["pid"]))


def test_down_ends_what_a_killed_supervisor_has_left_with_all_its_processes(installed: Installation) -> None:
    installed.write(users("ann"))
    server = installed.up()["ann"]
    family = [server["pid"], *(one.pid for one in psutil.Process(server["pid"]).children(recursive=True))]
    installed.kill_supervisor()
    assert len(family) > 1
    assert until(lambda: installed.supervisor() is None)

    ended = json.loads(installed.run("down", "--json").stdout)["ended"]

    assert ended == [installed.name("ann")]
    assert until(lambda: not any(map(psutil.pid_exists, family)))
    assert installed.ps() == {}


def test_down_of_one_user_leaves_the_others_and_the_next_up_starts_it_again(installed: Installation) -> None:
    installed.write(users("ann", "bob"))
    first = installed.up()

    installed.run("down", installed.name("ann"))
    left = installed.ps()
    again = installed.up()

    assert pids(left) == {"bob": first["bob"]["pid"]}
    assert again["bob"]["pid"] == first["bob"]["pid"]
    assert again["ann"]["state"] == "ready"
    assert installed.run("down", "nobody-of-that-name", check=False).returncode == 2


def test_a_damaged_file_changes_nothing_and_says_where(installed: Installation) -> None:
    installed.write(users("ann"))
    first = installed.up()
    installed.file.write_text("[users.ann\n")

    done = installed.run("up", "--users", str(installed.file), "--detach", check=False)

    assert done.returncode == 2
    assert str(installed.file) in done.stderr
    assert "line 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert pids(installed.ps()) == pids(first)


def test_a_damaged_record_is_set_apart_and_what_it_named_is_not_touched(installed: Installation) -> None:
    installed.write(users("ann"))
    installed.up()
    installed.run("down")
    record = installed.folder / "supervisor" / "record.json"
    record.write_text('{"ann": {"pid": 1')

    servers = installed.up()

    assert servers["ann"]["state"] == "ready"
    assert [path.read_text() for path in record.parent.glob("record.json.damaged-*")] == ['{"ann": {"pid": 1']


def test_a_recorded_number_that_is_another_process_now_is_left_alone(installed: Installation) -> None:
    installed.write(users("ann"))
    installed.up()
    installed.kill_supervisor()
    assert until(lambda: installed.supervisor() is None)
    record = installed.folder / "supervisor" / "record.json"
    said = json.loads(record.read_text())
    (name,) = said
    os.kill(said[name]["pid"], signal.SIGKILL)
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        try:
            # Root's, and younger: whoever goes by the number alone ends it.
            said[name]["pid"] = stranger.pid
            record.write_text(json.dumps(said))

            ended = json.loads(installed.run("down", "--json").stdout)["ended"]

            assert ended == []
            assert stranger.poll() is None
            assert not any(map(os.path.exists, said[name]["groups"]))
        finally:
            stranger.kill()


def test_a_port_that_is_taken_is_named_with_who_has_it_and_used_once_it_is_free(
    installed: Installation,
) -> None:
    said = users("ann")
    installed.write(said)
    with socket.create_server(("127.0.0.1", said["ann"]["port"])):
        done = installed.run("up", "--users", str(installed.file), "--detach", "--json", check=False)
        taken = installed.by_name(done.stdout)["ann"]

    assert done.returncode == 1
    assert taken["state"] == "waiting"
    assert f"port {said['ann']['port']} is taken by process {os.getpid()}" in taken["problem"]
    assert installed.up()["ann"]["state"] == "ready"


def test_whoever_sits_on_the_port_of_a_server_is_not_taken_for_it(installed: Installation) -> None:
    """An answer from the port is not enough: the process that answers has to be the server."""
    said = users("ann")
    installed.write(said)
    server = [
        sys.executable,
        "-c",
        "import http.server as h, sys\n"
        "class A(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "    def log_message(self, *_): pass\n"
        "s = h.HTTPServer(('127.0.0.1', int(sys.argv[1])), A); print('on', flush=True); s.serve_forever()",
    ]
    command = [*server, str(said["ann"]["port"])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as impostor:
        try:
            assert impostor.stdout is not None
            assert impostor.stdout.readline() == "on\n"

            done = installed.run("up", "--users", str(installed.file), "--detach", "--json", check=False)

            assert done.returncode == 1
            assert installed.by_name(done.stdout)["ann"]["state"] == "waiting"
        finally:
            impostor.kill()


def as_uid(uid: int, *command: str) -> "subprocess.CompletedProcess[str]":
    drop = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
    return subprocess.run([*drop, *command], capture_output=True, text=True, check=False)


async def test_nothing_of_one_user_can_be_read_as_another_and_no_secret_is_on_a_command_line(
    installed: Installation,
) -> None:
    said = users("ann", "bob")
    secret = installed.place / "ann.env"
    secret.write_text("RUNNER_S3_ACCESS_KEY=key\nRUNNER_S3_SECRET_KEY=thesecretofann\n")
    secret.chmod(0o600)
    said["ann"]["environment_file"] = str(secret)
    installed.write(said)
    servers = installed.up()
    await call(servers["ann"], "who")
    ann, bob = servers["ann"]["uid"], servers["bob"]["uid"]
    folder = installed.folder / "users" / installed.name("ann")
    environ = f"/proc/{servers['ann']['pid']}/environ"
    acts: dict[str, Callable[[int], bool]] = {
        "state": lambda uid: as_uid(uid, "ls", str(folder / "state")).returncode == 0,
        "environ": lambda uid: "thesecretofann" in as_uid(uid, "cat", environ).stdout,
        "log": lambda uid: as_uid(uid, "cat", servers["ann"]["log"]).returncode == 0,
        "users": lambda uid: as_uid(uid, "ls", str(folder.parent)).returncode == 0,
        "signal": lambda uid: as_uid(uid, "kill", "-0", str(servers["ann"]["pid"])).returncode == 0,
    }

    assert {name: act(bob) for name, act in acts.items()} == dict.fromkeys(acts, False)
    # Of her own, she reads what is hers; what is the operator's she does not.
    own = {"state": True, "environ": True, "log": False, "users": False, "signal": True}
    assert {name: act(ann) for name, act in acts.items()} == own
    shown = [one.info["cmdline"] for one in psutil.process_iter(["cmdline"])]
    assert any(installed.name("ann") in (words or ()) for words in shown)
    assert not any("thesecretofann" in word for words in shown for word in words or ())

    # With the guard off, the same attempts get through.
    folder.chmod(0o755)
    (folder / "state").chmod(0o755)
    assert acts["state"](bob)


def test_a_file_of_secrets_that_others_can_read_is_refused(installed: Installation) -> None:
    secret = installed.place / "ann.env"
    secret.write_text("TOKEN=x\n")
    secret.chmod(0o644)
    installed.write({"ann": {**users("ann")["ann"], "environment_file": str(secret)}})

    done = installed.run("up", "--users", str(installed.file), "--detach", check=False)

    assert done.returncode == 2
    assert f"chmod 600 {secret}" in done.stderr


def test_a_folder_that_somebody_else_has_put_in_place_is_not_given_away(installed: Installation) -> None:
    installed.write(users("ann"))
    installed.run("ps")
    target = installed.place / "of_root"
    target.mkdir(mode=0o700)
    for folder in ("", "users"):
        (installed.folder / folder).mkdir(mode=0o711)
    (installed.folder / "users" / installed.name("ann")).symlink_to(target)

    done = installed.run("up", "--users", str(installed.file), "--detach", "--json", check=False)

    assert done.returncode == 1
    assert "cannot be started" in installed.by_name(done.stdout)["ann"]["problem"]
    assert target.stat().st_uid == 0


async def test_memory_of_a_server_is_bounded_in_sum_and_the_server_outlives_it(
    installed: Installation,
) -> None:
    said = users("ann", "bob")
    said["ann"]["memory_mb"] = 512
    installed.write(said, environment={"RUNNER_MEMORY_MB": "2048"})
    servers = installed.up()

    assert servers["ann"]["bounded_by"]["memory"] == "cgroup", (
        "no control group can be made here: run as root"
    )
    # Without the bound it has room.
    assert await call(servers["bob"], "needs", mib=700) == 700 << 20
    with pytest.raises(Exception, match="memory"):
        await call(servers["ann"], "needs", mib=700)
    assert await call(servers["ann"], "needs", mib=10) == 10 << 20
    assert pids(installed.ps()) == pids(servers)


def test_without_control_groups_the_limits_of_processes_stand_in_and_ps_says_so(
    installed: Installation,
) -> None:
    said = {"memory_mb": 600, "processes": 200, "cpus": 1.0}
    installed.write({"ann": {**users("ann")["ann"], **said}})

    server = installed.up(before="umount -l /sys/fs/cgroup")["ann"]

    assert server["bounded_by"] == {
        "memory": "rlimit of each process",
        "processes": "rlimit of its user id",
        "cpus": "nothing",
    }
    limits = Path(f"/proc/{server['pid']}/limits").read_text()
    assert [line.split()[3:5] for line in limits.splitlines() if line.startswith("Max data size")] == [
        [str(600 << 20)] * 2
    ]
    assert [line.split()[2:4] for line in limits.splitlines() if line.startswith("Max processes")] == [
        ["200"] * 2
    ]


async def test_whoever_is_not_root_has_servers_of_their_own_user_id(installed: Installation) -> None:
    installed.write(users("ann"))
    installed.folder.mkdir()
    os.chown(installed.folder, NOBODY, NOBODY)

    server = installed.up(before=AS_NOBODY)["ann"]

    assert server["state"] == "ready"
    assert uid_of(server["pid"]) == NOBODY
    assert (await call(server, "who"))["uid"] == NOBODY
    # Another's installation is refused rather than used.
    assert "belongs to user id" in installed.run("up", "--users", str(installed.file), check=False).stderr
    assert installed.run("down", before=AS_NOBODY).stdout.split() == ["ended", installed.name("ann")]


def test_on_a_full_disk_no_server_runs_that_is_not_on_record(installed: Installation) -> None:
    installed.write(users("ann"))
    full = f"mount -t tmpfs -o size=64k none {installed.folder}"
    installed.folder.mkdir(mode=0o711)
    script = (
        f"{full}; mkdir -m 700 {installed.folder}/supervisor; cat /dev/zero > {installed.folder}/fill || true"
    )

    done = installed.run(
        "up", "--users", str(installed.file), "--detach", "--json", before=script, check=False
    )

    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr + done.stdout
    assert not [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if installed.name("ann") in (one.info["cmdline"] or ())
    ]
