"""UNIX sockets of a confined command: it reaches its own processes, and nobody else.

Each attempt is shown to reach somebody where the filter is left out, and so nothing is asked.
"""

import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import READ

from sandbox.layers import landlock
from sandbox.policy import Policy
from sandbox.probe.machine import TRIAL_UID

pytestmark = [pytest.mark.kernel, pytest.mark.needs_root]

ROOT = Path(__file__).parents[3]
ACTS = ROOT / "tests" / "programs" / "socket_acts.py"
OFF = ("seccomp",)
CONTROL = pytest.mark.parametrize("without", [(), OFF], ids=["confined", "without seccomp"])


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder with a home and a folder of somebody else, that every user id can enter."""
    assert os.geteuid() == 0, "namespaces with user ids need a privilege: run the tests as root"
    # Not below a folder that is empty in namespaces: what lies there could not be seen at all.
    made = Path(tempfile.mkdtemp(prefix="sockets-", dir="/opt"))
    made.chmod(0o755)
    (made / "home").mkdir(mode=0o700)
    os.chown(made / "home", TRIAL_UID, TRIAL_UID)
    (made / "others").mkdir(mode=0o755)
    yield made
    shutil.rmtree(made)


def policy_of(top: Path, **more: Any) -> Policy:
    home = top / "home"
    read = (*READ, top / "others", ACTS)
    usual: dict[str, Any] = {"home": home, "read": read, "environment": {"HOME": str(home)}, "uid": TRIAL_UID}
    return Policy(**(usual | {"namespaces": True, "sockets": True} | more))


def command(policy: Policy, folder: Path, *words: object) -> list[str]:
    file = folder / f"policy-{len(list(folder.iterdir()))}.json"
    file.write_text(json.dumps(policy.to_json()))
    launcher = [sys.executable, "-P", "-m", "sandbox.inside.exec_main", str(file), str(os.getpid())]
    return [*launcher, sys.executable, "-P", str(ACTS), *map(str, words)]


def act(policy: Policy, folder: Path, *words: object) -> Any:
    ended = subprocess.run(
        command(policy, folder, *words), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout, ended.stderr
    return json.loads(ended.stdout)


@contextlib.contextmanager
def stranger(address: str) -> Iterator[socket.socket]:
    """Somebody of the machine who listens, and lets everybody in."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        if not address.startswith("\0"):
            os.chmod(address, 0o777)
        server.listen(1000)
        server.setblocking(False)
        yield server


def visitors(server: socket.socket) -> int:
    found = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            found += 1
    return found


def test_processes_of_one_command_talk_by_streams_and_by_packets(top: Path, tmp_path: Path) -> None:
    assert act(policy_of(top), tmp_path, "talk") == [["ping", "PONG"], ["ping", "PONG"]]


def test_without_the_right_no_socket_can_be_made(top: Path, tmp_path: Path) -> None:
    assert act(policy_of(top, sockets=False), tmp_path, "talk") == ["EACCES", "EACCES"]


@CONTROL
def test_listener_in_readable_folder_is_not_reached(
    top: Path, tmp_path: Path, without: tuple[str, ...]
) -> None:
    there = top / "others" / "service"
    with stranger(str(there)) as server:
        reply = act(policy_of(top, without=without), tmp_path, "reach", there)
        came = visitors(server)

    assert (reply, came) == (([None], 1) if without else (["EACCES"], 0))


@CONTROL
def test_a_link_in_the_home_leads_to_nobody_else(top: Path, tmp_path: Path, without: tuple[str, ...]) -> None:
    there, link = top / "others" / "service", top / "home" / "link"
    link.symlink_to(there)
    with stranger(str(there)) as server:
        reply = act(policy_of(top, without=without), tmp_path, "reach", link, "link")
        came = visitors(server)

    # The working folder of a command without seccomp is the same, so the second finds it as well.
    assert (reply, came) == (([None, None], 2) if without else (["EACCES", "EACCES"], 0))


@CONTROL
def test_socket_name_swapped_meanwhile_reaches_nobody_else(
    top: Path, tmp_path: Path, without: tuple[str, ...]
) -> None:
    there = top / "others" / "service"
    with stranger(str(there)) as server:
        reply = act(policy_of(top, without=without), tmp_path, "exchange", there, 150)
        came = visitors(server)

    assert reply.get("None", 0) > 0
    assert (came > 0) == bool(without)


@CONTROL
def test_listener_in_home_with_other_rights_is_not_reached(
    top: Path, tmp_path: Path, without: tuple[str, ...]
) -> None:
    there = top / "home" / "service"
    with stranger(str(there)) as server:
        reply = act(policy_of(top, without=without), tmp_path, "reach", there)
        theirs, _ = server.accept()
        with theirs:
            data = theirs.recv(1)

    # The host looks who listens by connecting, and says nothing.
    assert (reply, data) == ([None] if without else ["EACCES"], b"")


def test_a_name_without_a_file_is_not_reached(top: Path, tmp_path: Path) -> None:
    name = f"stranger-{os.getpid()}"
    with stranger(f"\0{name}") as server, socket.socket(socket.AF_UNIX) as control:
        control.connect(f"\0{name}")
        assert visitors(server) == 1

        assert act(policy_of(top), tmp_path, "reach", f"@{name}") == ["EACCES"]
        assert visitors(server) == 0


def test_a_socket_can_be_left_in_the_home_and_nowhere_else(top: Path, tmp_path: Path) -> None:
    lent = top / "lent"
    lent.mkdir()
    os.chown(lent, TRIAL_UID, TRIAL_UID)
    policy = policy_of(top, lent_write=(lent,))
    places = [top / "home" / "here", lent / "there", "/tmp/there", top / "others" / "there"]

    assert act(policy, tmp_path, "bind", *places) == [None, "EACCES", "EROFS", "EROFS"]
    assert not any(lent.iterdir())


def test_datagrams_and_the_network_stay_closed(top: Path, tmp_path: Path) -> None:
    assert act(policy_of(top), tmp_path, "kinds") == ["EACCES", "EACCES", "EACCES", "EACCES"]


def test_policy_with_network_opens_only_stream_sockets(top: Path, tmp_path: Path) -> None:
    policy = policy_of(top, net=("127.0.0.1:9",))

    assert act(policy, tmp_path, "kinds") == ["EACCES", "EACCES", None, "EACCES"]


def test_socket_of_ended_listener_refuses_connections(top: Path, tmp_path: Path) -> None:
    assert act(policy_of(top), tmp_path, "left") == "ECONNREFUSED"


def test_lost_host_connection_cannot_be_bound_or_listened_on(top: Path, tmp_path: Path) -> None:
    def reset() -> None:
        theirs, _ = server.accept()
        theirs.recv(2)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("2i", 1, 0))
        theirs.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        thread = threading.Thread(target=reset)
        thread.start()
        reply = act(policy_of(top, net=(f"{host}:{port}",)), tmp_path, "reset", host, port)
        thread.join()

    first, lost, _shut, listened, bound = reply
    assert (first, lost) == ("EINVAL", "ECONNRESET")
    assert (listened, bound) == ("EINVAL", "EACCES")


def test_no_sockets_where_landlock_cannot_deny_tcp_bind(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = os.open(top / "home", os.O_PATH | os.O_DIRECTORY)
    os.close(landlock.zygote_ruleset(policy_of(top), home=home))
    monkeypatch.setattr(landlock, "landlock_abi", lambda: 3)

    with pytest.raises(OSError, match="sockets need Landlock ABI 4"):
        landlock.zygote_ruleset(policy_of(top), home=home)
    os.close(home)


def test_sockets_are_for_namespaces_only(top: Path) -> None:
    with pytest.raises(ValueError, match="sockets need namespaces"):
        policy_of(top, namespaces=False)
