"""The self-test on this machine: as the user of the tests, as nobody, and with layers left out."""

import json
import os
import platform
import socket
import sys
import xml.etree.ElementTree as Xml
from pathlib import Path
from typing import Any

import pytest
from unprivileged import run_as_nobody, run_for_others, run_here, run_unprivileged

from runner.selftest.program import EVERY
from runner.selftest.report import SelftestOptions
from sandbox.errors import SandboxError
from sandbox.inside.confine import LAYERS
from sandbox.probe.machine import Tier
from sandbox.selftest.attempt import Attempt, Residue
from sandbox.selftest.kernel_objects import KernelObject
from sandbox.selftest.trial import Mode, SelftestReport, Setup, TrialVerdict, run

pytestmark = [pytest.mark.needs_root, pytest.mark.anyio, pytest.mark.kernel, pytest.mark.timeout(320)]

PROGRAM = "runner.selftest.program"
AS_ROOT = "what is tried here takes privileges: run these tests as root"
LEFT_OPEN = {
    Tier.PROCESS: set(Residue),
    Tier.USER: {Residue.LOCKS},
    Tier.NAMESPACE: {Residue.LOCKS},
}
# Root can do these, if the container lets it.
PRIVILEGED = {
    "write-device",
    "write-by-handle",
    "write-mount",
    "write-new-mount",
    "write-cloned-mount",
    "other-through-handle",
    "other-fanotify",
    "resources-nice",
    "resources-fifo",
    "resources-deadline",
    "resources-ioprio",
    "tamper-packet",
    "tamper-raw",
    "tamper-tiocsti",
    "tamper-unshare-mounts",
    "tamper-setns",
    "tamper-chroot",
    "tamper-bpf",
    "artifact-node",
    "artifact-mount",
}
# A process of root stays readable to root; who may ping, and how much may be locked, is a setting.
ANYWAY = {"tamper-dumpable", "tamper-ping"}


def absent_families() -> set[str]:
    """Return the attempts with families of sockets that the kernel here is built without."""
    families = {"tamper-alg": (38, 5, 0), "tamper-rxrpc": (33, 2, 2), "tamper-vsock": (40, 1, 0)}
    families |= {"tamper-xfrm": (16, 3, 6)}
    return {name for name, family in families.items() if not can_be_made(family)}


def can_be_made(family: tuple[int, int, int]) -> bool:
    try:
        socket.socket(*family).close()
    except OSError:
        return False
    return True


ANYWAY |= absent_families()
UNPRIVILEGED_TOO = {"resources-mlockall"}
# Left out one at a time. The session and death with the parent have no row: the forkserver, which ends the
# session of a dead zygote, and the filter each do the same again.
STOPPED_BY = {
    "descriptors": ("other-inherited",),
    "environment": ("other-environment",),
    "rlimits": (
        "resources-mmap",
        "resources-stack",
        "resources-ftruncate",
        "resources-open",
    ),
    "landlock": (
        "write-openat2",
        "other-openat",
        "other-through-folder",
        "other-through-hard-link",
        "write-steal",
    ),
    "seccomp": (
        "write-chmod",
        "write-setxattr",
        "other-getxattr",
        "survive-setsid",
        "survive-segment",
        "resources-memfd",
        "resources-growsdown",
        "resources-aio",
        "resources-timers",
        "other-lease",
        "tamper-linger",
        *({"tamper-alg", "tamper-rxrpc", "tamper-vsock", "tamper-xfrm"} - absent_families()),
        "tamper-unix",
        "tamper-prlimit",
    ),
}


def named(*names: str) -> tuple[Attempt, ...]:
    return tuple(attempt for attempt in EVERY if attempt.id in names)


def ids(report: SelftestReport, verdict: TrialVerdict) -> set[str]:
    return {trial.attempt.id for trial in report.of(verdict)}


def may_do_all() -> bool:
    """Return whether this process has every important capability here, as root outside a container has."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line)
    return int(line.split()[1], 16) & (1 << 21) != 0


def named_by(report: dict[str, Any], verdict: str) -> set[str]:
    return {each["id"] for each in report["attempts"] if each["verdict"] == verdict}


@pytest.mark.parametrize(
    ("tier", "modes", "step"),
    [
        # One attempt in six, of each kind; every attempt before a release.
        (Tier.PROCESS, (Mode.USER,), 6),
        pytest.param(Tier.PROCESS, tuple(Mode), 1, marks=pytest.mark.release),
        pytest.param(Tier.NAMESPACE, tuple(Mode), 1, marks=pytest.mark.release),
    ],
)
async def test_nothing_gets_out_with_the_guard_removed(
    tier: Tier, modes: tuple[Mode, ...], step: int
) -> None:
    assert os.geteuid() == 0, AS_ROOT
    report = await run(EVERY[::step], Setup(program=PROGRAM, guard=False, tier=tier, modes=modes))

    unproved = ids(report, TrialVerdict.NOT_PROVABLE)
    assert ids(report, TrialVerdict.GOT_OUT) == set()
    assert {trial.attempt.id for trial in report.trials if trial.seen.guarded} == set()
    assert unproved <= ANYWAY | (set() if may_do_all() else PRIVILEGED | UNPRIVILEGED_TOO), platform.release()
    assert {trial.attempt.residue for trial in report.of(TrialVerdict.LEFT_OPEN)} <= LEFT_OPEN[tier]
    for mode in modes:
        assert len(report.in_mode(mode).counted) >= 120 // step
        assert len(report.in_mode(mode).kinds) == 6


@pytest.mark.release
def test_nothing_gets_out_where_each_user_has_a_user_id() -> None:
    done = run_for_others(["selftest", "--json", "--without-guard", "--isolation", "user"], seconds=300)

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    open_by = {each["left_open_by"] for each in report["attempts"] if each["verdict"] == "left_open"}
    assert (report["isolation"], report["verdicts"]["got_out"], len(report["kinds"])) == ("user", 0, 6)
    assert report["worker_reuse"] == ["user", "call"]
    assert named_by(report, "not_provable") <= ANYWAY | (set() if may_do_all() else PRIVILEGED)
    assert open_by <= {residue.value for residue in LEFT_OPEN[Tier.USER]}


@pytest.mark.release
@pytest.mark.parametrize("tier", ["process", "namespace"])
def test_unprivileged_selftest_has_no_escapes(tier: str) -> None:
    done = run_unprivileged(["selftest", "--json", "--isolation", tier], seconds=300)

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["isolation"], report["verdicts"]["got_out"], len(report["kinds"])) == (tier, 0, 6)
    assert report["worker_reuse"] == ["user", "call"]
    assert report["counted"] >= 240
    assert named_by(report, "not_provable") <= PRIVILEGED | UNPRIVILEGED_TOO | ANYWAY
    assert {each["stopped_by"] for each in report["attempts"]} >= {"guard", "EACCES", "EPERM", "SIGSYS"}


STRANGERS = """
import ctypes, pathlib
from sandbox.selftest.planted import victim

PR_SET_DUMPABLE = 4
assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
for _ in range(20):
    with victim("1" * 20, pathlib.Path("/tmp")) as stranger:
        assert stranger.word == "1" * 20
"""


def test_stranger_of_an_unreadable_host_becomes_readable() -> None:
    done = run_as_nobody([sys.executable, "-c", STRANGERS], seconds=60)

    assert (done.returncode, done.stderr) == (0, "")


def test_unavailable_tier_is_not_attacked() -> None:
    done = run_unprivileged(["selftest", "--isolation", "user", "--only", "tamper-kill"], seconds=60)

    assert done.returncode == 5
    assert "only root can" in done.stderr


async def test_escapes_hidden_by_namespaces_are_found_inside() -> None:
    assert os.geteuid() == 0, AS_ROOT
    # Shared memory has its test without attempts: there are no files to write it to.
    kinds = set(KernelObject) - {KernelObject.SHARED}
    attempts = named(*(f"survive-{kind.value}" for kind in kinds), "tamper-netlink")

    # A message queue is denied by each of the three.
    without = ("seccomp", "rlimits", "landlock")
    report = await run(attempts, Setup(program=PROGRAM, guard=False, tier=Tier.NAMESPACE, without=without))

    assert ids(report, TrialVerdict.GOT_OUT) == {attempt.id for attempt in attempts}


async def test_attempts_held_by_namespaces_are_left_open_without() -> None:
    attempts = named("other-stat", "other-access", "other-readlink", "other-statx")

    without = await run(attempts, Setup(program=PROGRAM, guard=False))
    within = await run(attempts, Setup(program=PROGRAM, guard=False, tier=Tier.NAMESPACE))

    assert {trial.verdict for trial in without.trials} == {TrialVerdict.LEFT_OPEN}
    assert {trial.verdict for trial in within.trials} == {TrialVerdict.HELD}


@pytest.mark.parametrize("layer", STOPPED_BY)
async def test_attempt_stopped_by_one_layer_escapes_without_it(layer: str) -> None:
    attempts = named(*STOPPED_BY[layer])

    report = await run(attempts, Setup(program=PROGRAM, guard=False, without=(layer,)))

    assert ids(report, TrialVerdict.GOT_OUT) == set(STOPPED_BY[layer])


async def test_capability_layer_alone_drops_root_rights() -> None:
    attempts = named("resources-mlock", "resources-mmap-locked")

    report = await run(attempts, Setup(program=PROGRAM, guard=False, without=("privileges",)))

    wanted = {attempt.id for attempt in attempts} if may_do_all() else set()
    assert ids(report, TrialVerdict.GOT_OUT) == wanted


async def test_patches_alone_let_most_through() -> None:
    attempts = [each for each in EVERY if each.kind.value in ("write", "tamper", "artifact")][::3]
    attempts += named("write-open", "write-mkdir", "write-create", "tamper-kill", "artifact-link")

    report = await run(attempts, SelftestOptions(against="monkeypatch").setup())

    out = ids(report, TrialVerdict.GOT_OUT)
    assert not {"write-open", "write-mkdir"} & out
    assert {"write-create", "tamper-kill", "artifact-link"} <= out
    assert len(out) > 0.8 * len(report.counted)


async def test_selftest_without_workers_raises_an_error() -> None:
    with pytest.raises(SandboxError, match="worker"):
        await run(named("tamper-kill", "tamper-tkill"), Setup(program=PROGRAM, without=("session",)))


def test_patches_alone_omits_every_layer_except_session() -> None:
    setup = SelftestOptions(against="monkeypatch").setup()

    assert set(LAYERS) - set(setup.without) == {"session"}
    assert setup.guard


def test_json_report_names_escapes(tmp_path: Path) -> None:
    junit = tmp_path / "report.xml"
    arguments = ["selftest", "--against", "monkeypatch", "--json", "--junit", str(junit)]
    only = ["--only", "write-openat2", "--only", "write-open", "--only", "other-stat"]

    done = run_here([*arguments, *only])

    report = json.loads(done.stdout)
    suites = Xml.parse(junit).getroot()
    assert done.returncode == 1
    assert {each["id"]: each["verdict"] for each in report["attempts"]} == {
        "write-openat2": "got_out",
        "write-open": "held",
        "other-stat": "left_open",
    }
    assert [case.get("name") for case in suites.iter("testcase") if case.find("failure") is not None] == [
        "write-openat2"
    ]
    assert [suite.get("skipped") for suite in suites] == ["0", "1"]


def test_table_ends_with_a_summary_line() -> None:
    done = run_here(["selftest", "--isolation", "process", "--only", "tamper-kill", "--only", "other-flock"])

    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert [line.split()[:2] for line in lines if "tamper-kill" in line] == [["held", "tamper-kill"]] * 2
    assert "SECURITY.md: Locks" in done.stdout
    assert lines[0] == "isolation: process"
    assert lines[-3:-1] == [
        f"worker_reuse = {reuse}: 1 attempts, 1 kinds: nothing got out" for reuse in ("user", "call")
    ]


def test_worker_reuse_option_is_used_and_reported() -> None:
    done = run_here(
        ["selftest", "--isolation", "process", "--only", "tamper-kill", "--reuse", "user", "--json"]
    )

    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["worker_reuse"] == ["user"]
    assert [each["worker_reuse"] for each in report["attempts"]] == ["user"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--kind", "nonsense"], "other user"),
        (["--only", "nonsense"], "nonsense"),
        (["--against", "nonsense"], "monkeypatch"),
        (["--against", "monkeypatch", "--without-guard"], "--without-guard"),
        (["--against", "monkeypatch", "--isolation", "user"], "leave out --isolation"),
        (["--reuse", "nonsense"], "--reuse"),
        (["--against", "monkeypatch", "--reuse", "user"], "leave out --reuse"),
        (["--isolation", "guard"], "--against monkeypatch"),
        (["--isolation", "nonsense"], "isolation"),
        (["--kind", "write", "--only", "tamper-kill"], "no attempt"),
        (["--junit", "/nowhere/report.xml", "--only", "tamper-kill"], "/nowhere"),
    ],
)
def test_a_wrong_option_is_answered_with_a_sentence(arguments: list[str], named: str) -> None:
    done = run_here(["selftest", *arguments])

    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
