"""A confined command other than a tool file, with a network: its waiting caller answers for the host."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT, Ran, saying_hello

from runner.settings.rights import Rights
from runner.toolset.programs import with_rights
from sandbox.policy import Policy
from sandbox.readable import default_read

pytestmark = pytest.mark.kernel


def test_variable_of_a_command_does_not_choose_its_programs(tmp_path: Path) -> None:
    (tmp_path / "true").write_text("#!/bin/sh\n")
    (tmp_path / "true").chmod(0o755)
    rights = Rights(programs=("true",))
    policy = Policy(home=None, read=(), environment={"PATH": str(tmp_path)}, guard=False)
    assert tmp_path / "true" in with_rights(policy, rights, {"PATH": str(tmp_path)}).run

    run = with_rights(policy, rights, {"PATH": "/usr/bin:/bin"}).run

    assert run
    assert tmp_path / "true" not in run


@pytest.fixture
def port() -> Iterator[int]:
    with saying_hello() as number:
        yield number


def run(folder: Path, rights: Rights, *command: str) -> Ran:
    home = folder / "home"
    home.mkdir(mode=0o700)
    read, listed, names = default_read(deny=(), beside=[Path("/bin/sh")], extra=())
    policy = Policy(
        home=home,
        read=read,
        list_only=listed,
        names=names,
        environment={"PATH": "/usr/bin:/bin"},
        guard=False,
    )
    file = folder / "policy.json"
    file.write_text(json.dumps(with_rights(policy, rights, os.environ).to_json()))
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "sandbox.inside.exec_main", str(file), str(os.getpid()), *command],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    return Ran(ended.returncode, ended.stdout, ended.stderr)


def test_a_command_reaches_what_is_named(tmp_path: Path, port: int) -> None:
    rights = Rights(network=(f"localhost:{port}",))

    ended = run(tmp_path, rights, "/usr/bin/curl", "-sS", f"http://localhost:{port}/")

    assert (ended.status, ended.out) == (0, "hello"), ended.err


def test_a_command_reaches_nothing_else(tmp_path: Path, port: int) -> None:
    rights = Rights(network=("*", f"localhost:{port + 1 if port < 65535 else port - 1}"))

    ended = run(tmp_path, rights, "/usr/bin/curl", "-sS", f"http://127.0.0.1:{port}/")

    assert ended.status == 7
    assert ended.out == ""


def test_a_command_without_network_cannot_make_a_socket(tmp_path: Path, port: int) -> None:
    ended = run(tmp_path, Rights(), "/usr/bin/curl", "-sS", f"http://127.0.0.1:{port}/")

    assert ended.status == 7
    assert ended.out == ""


def test_a_command_runs_only_the_programs_that_are_named(tmp_path: Path) -> None:
    rights = Rights(programs=("sh",))

    ended = run(tmp_path, rights, "/bin/sh", "-c", "echo started; uname; echo went on")

    assert ended.out == "started\nwent on\n"
    assert "Permission denied" in ended.err
