"""Catalogue of attempts, those that SECURITY.md leaves open, and oracles and controls for a harmless act."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runner.selftest.artifacts import ARTIFACTS
from runner.selftest.program import EVERY
from sandbox.probe.machine import Tier
from sandbox.selftest.attempt import ActEvidence, AttemptKind, Blind, Residue, Surroundings
from sandbox.selftest.kernel_objects import KernelObject, left_at, left_here
from sandbox.selftest.trial import SelftestReport, Setup, Trial, TrialVerdict
from sandbox.selftest.world import ground, world

ROOT = Path(__file__).parents[2]
_MAKES_ALL = """
import subprocess, sys
from sandbox.selftest.kernel_objects import KernelObject, remove

subprocess.run(["mount", "-t", "tmpfs", "own", "/dev/shm"], check=True)
for kind in KernelObject:
    kind.make(int(sys.argv[1]), "0" * 20)
print("made", flush=True)
sys.stdin.read()
remove(int(sys.argv[1]))
"""
# Left open as well, but no act of one call can show it without doing harm to other calls of this machine.
NOT_TRIED = {
    "Earlier calls of the same user",
    "The home is shared by a user's calls",
    "Descriptors in flight",
    "Counters of the user id",
    # The watch sees to what one call has; many calls together are more than one act.
    "Sums over calls",
    "The host's time",
    "Same uid as the host",
    "Time and load",
    "Forged results",
    # Off unless an operator allows it.
    "Jobs between calls",
}


def headings() -> set[str]:
    text = (ROOT / "SECURITY.md").read_text()
    section = text.split("`process` needs no privileges")[1].split("\nTier `user`")[0]
    return set(re.findall(r"(?m)^- \*\*(.+?)\.\*\*", section))


def trial(
    *, provable: bool, escaped: bool, left_open: bool = False, seen: ActEvidence | None = None
) -> Trial:
    return Trial(
        attempt=EVERY[0],
        provable=provable,
        escaped=escaped,
        seen=seen or ActEvidence(),
        control=ActEvidence(),
        left_open=left_open,
    )


def test_catalogue_has_120_attempts_of_six_kinds_not_left_open() -> None:
    counted = [attempt for attempt in EVERY if attempt.residue is None]

    assert len(counted) >= 120
    assert {attempt.kind for attempt in counted} == set(AttemptKind)
    assert all(sum(attempt.kind is kind for attempt in counted) >= 15 for kind in AttemptKind)


def test_attempt_ids_and_techniques_are_unique() -> None:
    assert len({attempt.id for attempt in EVERY}) == len(EVERY)
    assert len({attempt.technique for attempt in EVERY}) == len(EVERY)


def test_residues_match_security_md() -> None:
    tried = {attempt.residue.value for attempt in EVERY if attempt.residue is not None}

    assert tried == {residue.value for residue in Residue}
    assert headings() >= tried
    assert headings() - tried <= NOT_TRIED


def test_documentation_names_every_kind_and_every_verdict() -> None:
    text = (ROOT / "docs" / "isolation.md").read_text()

    assert [kind.value for kind in AttemptKind if f"`{kind.value}`" not in text] == []
    assert [verdict.value for verdict in TrialVerdict if f"`{verdict.value}`" not in text] == []


@pytest.mark.parametrize(
    ("escaped", "provable", "left_open", "verdict"),
    [
        (True, True, False, TrialVerdict.GOT_OUT),
        (True, False, False, TrialVerdict.GOT_OUT),
        (True, True, True, TrialVerdict.LEFT_OPEN),
        (False, True, False, TrialVerdict.HELD),
        (False, True, True, TrialVerdict.HELD),
        (False, False, False, TrialVerdict.NOT_PROVABLE),
    ],
)
def test_only_attempts_escaping_unconfined_count_as_held(
    escaped: bool, provable: bool, left_open: bool, verdict: TrialVerdict
) -> None:
    assert trial(escaped=escaped, provable=provable, left_open=left_open).verdict is verdict


def test_nothing_is_held_where_the_host_was_not_allowed_to_look() -> None:
    blind = ActEvidence(during=Blind("the host may not look"))

    assert trial(escaped=False, provable=True).verdict is TrialVerdict.HELD
    assert trial(escaped=False, provable=True, seen=blind).verdict is TrialVerdict.NOT_PROVABLE


def test_tiers_above_the_first_leave_less_open() -> None:
    process, user, namespace = (
        Setup(tier=tier).leaves_open() for tier in (Tier.PROCESS, Tier.USER, Tier.NAMESPACE)
    )

    assert process == set(Residue)
    assert process > user
    assert user == namespace == {Residue.LOCKS}


def test_report_holds_unless_an_attempt_not_left_open_escapes() -> None:
    fine = trial(escaped=False, provable=True)
    known = trial(escaped=True, provable=True, left_open=True)
    unproved = trial(escaped=False, provable=False)
    out = trial(escaped=True, provable=True)

    held = SelftestReport(trials=(fine, known, unproved), elapsed_s=1)
    broken = SelftestReport(trials=(fine, out), elapsed_s=1)

    assert (held.held, held.counted, held.kinds) == (True, (fine,), (fine.attempt.kind,))
    assert (broken.held, broken.counted) == (False, (fine, out))


def test_stopping_layer_is_named_as_far_as_known() -> None:
    by_guard = trial(escaped=False, provable=True, seen=ActEvidence(error="EACCES", guarded=True))
    by_kernel = trial(escaped=False, provable=True, seen=ActEvidence(error="EPERM"))

    barriers = [each.stopped_by for each in (by_guard, by_kernel, trial(escaped=False, provable=True))]

    assert barriers == ["guard", "EPERM", "no effect"]


def test_a_place_survives_the_way_to_a_worker() -> None:
    with ground() as made, world(made) as there:
        copy = Surroundings.from_json(there.place.to_json(), report=there.place.report)

        assert copy == there.place
        assert copy.victim > 0
        assert there.canary not in str(there.place.to_json())


def test_a_world_in_which_nothing_was_done_shows_no_escape() -> None:
    with ground() as made, world(made) as there:
        seen = [attempt.id for attempt in EVERY if attempt.escaped(there, ActEvidence())]

    assert seen == []


@pytest.mark.kernel
def test_objects_in_namespaces_of_a_process_are_found() -> None:
    number, other = 0x6FFF_FFF1, 0x6FFF_FFF2
    command = ["unshare", "--user", "--map-root-user", "--ipc", "--mount", sys.executable, "-c", _MAKES_ALL]
    arguments = [*command, str(number)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as inside:
        assert inside.stdout is not None
        assert inside.stdout.readline() == b"made\n"

        assert left_at(inside.pid, os.geteuid(), number) == set(KernelObject)
        assert left_at(inside.pid, os.geteuid(), other) == set()
        # Keys are those of the user, wherever its processes are.
        assert left_here(number) <= {KernelObject.KEY}


def test_world_removes_everything_it_planted(tmp_path: Path) -> None:
    with ground() as made:
        with world(made) as there:
            planted = [Path(there.place.home), there.other, Path(there.place.shared)]
            process = there.stranger.process
            assert all(path.exists() for path in planted)
        left = [path for path in planted if path.exists()]

    assert left == []
    assert process.poll() is not None
    assert not made.homes.exists()


def test_collector_hands_out_plain_file_as_positive_control() -> None:
    absolute = next(attempt for attempt in ARTIFACTS if attempt.id == "artifact-absolute")
    with ground() as made, world(made) as there:
        good = there.path / "good.txt"
        good.write_text(f"own copy of {there.canary}")

        assert absolute.escaped(there, ActEvidence(claim=str(good)))
        assert not absolute.escaped(there, ActEvidence(claim=str(there.other / "file.txt")))
        assert absolute.escaped(there, ActEvidence(claim=str(there.other / "file.txt"), naive=True))
