"""Several runners on one machine: state folders that are lost, servers that are killed, two at a time.

Each test has a `/tmp` of its own, so that the user and the folders are those of the README's first command.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT, until

pytestmark = [pytest.mark.needs_root, pytest.mark.release, pytest.mark.kernel]

FIRST_COMMAND = (
    "call", "sample_tools/sales_report.py", "sales_report", "filename=@sample_tools/data/sales.csv",
)  # fmt: skip
KEEPER = "tests/tools/keeper.py"
TIERS = ("process", "namespace")


class Machine:
    """A mount namespace with a `/tmp` of its own, in which runners of user root are started."""

    def __init__(self, folder: Path) -> None:
        assert os.geteuid() == 0, "a /tmp of one's own needs a mount namespace; run these tests as root"
        self.folder = folder
        self._holder = subprocess.Popen(
            [
                "unshare",
                "--mount",
                "sh",
                "-c",
                # A checkout below /tmp is bound again where it was.
                'exec 3<"$0"; mount -t tmpfs tmpfs /tmp && chmod 1777 /tmp && case "$0" in /tmp/*) '
                'mkdir -p "$0" && mount --bind /proc/self/fd/3 "$0";; esac && echo up && cat',
                ROOT,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "up\n"
        self.tmp = Path(f"/proc/{self._holder.pid}/root/tmp")
        self.running: list[subprocess.Popen[str]] = []

    def command(self, state: str, *arguments: str) -> list[str]:
        inside = ["nsenter", "--mount", f"--target={self._holder.pid}", f"--wdns={ROOT}"]
        known = ["env", f"RUNNER_STATE_DIR={self.folder / state}", f"RUNNER_STORE={self.store(state)}"]
        return [*inside, *known, "RUNNER_USER=root", sys.executable, "-m", "runner", *arguments]

    def store(self, state: str) -> str:
        return (self.folder / f"{state}-store").as_uri()

    def run(self, state: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(state, *arguments), capture_output=True, text=True, timeout=100, check=False
        )

    def start(self, state: str, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            self.command(state, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    def left(self) -> list[str]:
        return sorted(entry.name for entry in self.tmp.iterdir())

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()
        self._holder.communicate()


@pytest.fixture
def machine() -> Iterator[Machine]:
    # What lies in the usual /tmp is not there.
    with tempfile.TemporaryDirectory(prefix="toolcell-machine-", dir="/var/tmp") as folder:
        machine = Machine(Path(folder))
        yield machine
        machine.close()


def removed(state: Path) -> None:
    subprocess.run(["rm", "-rf", state], check=True)


@pytest.mark.parametrize("tier", TIERS)
def test_first_command_works_after_state_folder_removed(machine: Machine, tier: str) -> None:
    first = machine.run("state", *FIRST_COMMAND, "--isolation", tier)
    inode = (machine.tmp / "root").stat().st_ino
    removed(machine.folder / "state")
    again = machine.run("state", *FIRST_COMMAND, "--isolation", tier)

    assert (first.returncode, again.returncode) == (0, 0), again.stderr
    assert again.stdout == first.stdout
    # The session goes on: it is the same home, and nothing else is left.
    assert (machine.tmp / "root").stat().st_ino == inode
    assert machine.left() == ["root"]


def test_homes_root_of_unknown_origin_refused_with_remedy(machine: Machine) -> None:
    (machine.tmp / "root").mkdir(mode=0o755)
    (machine.tmp / "root" / "precious").write_text("x")

    refused = machine.run("state", *FIRST_COMMAND)

    assert refused.returncode == 5
    assert "/tmp/root was not made by a runner (it has mode 0755 and is not empty)" in refused.stdout
    assert "move it away or remove it, or choose another folder for homes (setting `homes`)" in refused.stdout
    assert (machine.tmp / "root" / "precious").read_text() == "x"


@pytest.mark.parametrize("tier", TIERS)
def test_killed_server_homes_swept_from_other_state_folder(machine: Machine, tier: str) -> None:
    killed = machine.start("first", "call", KEEPER, "stays", "--isolation", tier)
    precious = machine.tmp / "root" / "precious"
    assert until(precious.exists)
    held = machine.run("second", "call", KEEPER, "listing", "--user", "bob", "--isolation", tier)
    assert precious.exists()

    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert until(lambda: any(name.startswith(".toolcell-import-") for name in machine.left()))
    swept = machine.run("second", "call", KEEPER, "listing", "--user", "bob", "--isolation", tier)

    assert (held.returncode, swept.returncode) == (0, 0), swept.stderr
    # Of the one that was killed, nothing; of bob, the home that his session keeps.
    assert machine.left() == ["bob"]


@pytest.mark.parametrize("tiers", [("process", "process"), ("namespace", "namespace")])
def test_two_installations_serve_one_user_at_a_time(machine: Machine, tiers: tuple[str, str]) -> None:
    for state in ("first", "second"):
        (machine.folder / f"{state}.txt").write_text(f"of the {state}\n")
    calls = {
        state: machine.start(
            state, "call", KEEPER, "reads", f"filename=@{machine.folder / state}.txt", "wait_s=3",
            "--isolation", tier, "--json",
        )
        for state, tier in zip(("first", "second"), tiers, strict=True)
    }  # fmt: skip

    for state, call in calls.items():
        output, errors = call.communicate(timeout=100)

        assert call.returncode == 0, (output, errors)
        assert output.count(f"of the {state}") == 2, output


@pytest.mark.parametrize("tier", TIERS)
def test_two_installations_stage_same_file_name_independently(machine: Machine, tier: str) -> None:
    calls = {}
    for state in ("first", "second"):
        (machine.folder / state).mkdir()
        same = machine.folder / state / "data.txt"
        same.write_text(f"of the {state}\n")
        calls[state] = machine.start(
            state, "call", KEEPER, "reads", f"filename=@{same}", "wait_s=4", "--isolation", tier, "--json"
        )

    for state, call in calls.items():
        output, errors = call.communicate(timeout=100)

        assert call.returncode == 0, (output, errors)
        assert output.count(f"of the {state}") == 2, output
