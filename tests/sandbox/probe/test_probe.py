"""Features that the machine is reported to offer, with a real trial of every layer."""

import errno
import gc
import os
import tempfile
from dataclasses import replace
from typing import Any

import pytest
from confined_world import Confined, World

from sandbox.errors import in_words
from sandbox.inside.confine import LAYERS
from sandbox.probe.machine import Probe, Tier, layers, missing, probe


@pytest.fixture
def full() -> Probe:
    """A machine that lacks nothing."""
    return replace(
        probe(),
        kernel="6.1.0",
        architecture="x86_64",
        architecture_known=True,
        landlock_abi=7,
        seccomp=True,
        pidfd=True,
        openat2=True,
        close_range=True,
        other_user="",
        namespaces="",
    )


OF_OTHER_TIERS = {"cgroup", "namespaces", "identity"}


def test_every_layer_is_tried_and_holds_on_this_machine() -> None:
    reports = layers()

    assert [report.name for report in reports if not report.enforced] == []
    assert {report.name for report in reports} == {*LAYERS, "guard"} - OF_OTHER_TIERS
    assert all(report.detail for report in reports)


def test_unenforced_layer_is_detected(confined: Confined, world: World) -> None:
    def try_while_confined() -> dict[str, list[bool | str]]:
        tempfile.tempdir = None
        return {report.name: [report.enforced, report.detail] for report in layers()}

    # Behind a filter setsid only seems to succeed, and a socket is denied before the trial begins.
    report = confined(world.policy, try_while_confined)

    assert report.error is None
    assert report.value["session"] == [False, "the process stayed in the session of the host"]
    assert report.value["seccomp"] == [False, "Permission denied"]
    assert report.value["descriptors"][0] is True
    assert report.value["landlock"][0] is False
    assert not [message for _, message in report.value.values() if "Errno" in message]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EPERM, "Operation not permitted"), "Operation not permitted"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), "No such file or directory: /x"),
        (
            OSError(errno.ENOSYS, f"landlock_add_rule: {os.strerror(errno.ENOSYS)}"),
            "landlock_add_rule: this kernel has no such system call, or the profile of a container hides it",
        ),
        (ValueError("a word"), "a word"),
    ],
)
def test_error_text_omits_errno(error: Exception, message: str) -> None:
    assert in_words(error) == message


def test_the_process_tier_lacks_nothing_here() -> None:
    assert missing(Tier.PROCESS) == ()


def test_probe_leaves_this_process_unchanged() -> None:
    # Descriptors of earlier tests are not closed by a collection meanwhile.
    gc.collect()
    before = (os.environ.copy(), os.getsid(0), os.getcwd(), sorted(os.listdir("/proc/self/fd")))

    layers()

    assert (os.environ.copy(), os.getsid(0), os.getcwd(), sorted(os.listdir("/proc/self/fd"))) == before


def test_probe_reports_the_current_user() -> None:
    found = probe()

    assert (found.uid, found.kernel) == (os.geteuid(), os.uname().release)
    assert (found.capabilities != 0) or found.uid != 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"landlock_abi": 0}, "Landlock ABI 3 is needed, kernel 6.1.0 offers none"),
        ({"landlock_abi": 2}, "Landlock ABI 3 is needed, kernel 6.1.0 offers 2"),
        ({"seccomp": False}, "seccomp filters cannot be loaded"),
        ({"architecture": "riscv64", "architecture_known": False}, "no table of system calls for riscv64"),
        ({"pidfd": False}, "pidfd is refused"),
        ({"openat2": False}, "openat2 is refused"),
        ({"close_range": False}, "close_range is refused"),
    ],
)
def test_each_thing_missing_is_one_sentence_with_its_cure(
    full: Probe, changes: dict[str, Any], says: str
) -> None:
    sentences = replace(full, **changes).missing(Tier.PROCESS)

    assert len(sentences) == 1
    assert says in sentences[0]
    assert "; " in sentences[0]


def test_tier_needs_process_layers_and_its_own_trial(full: Probe) -> None:
    lacking = replace(full, landlock_abi=0, other_user="no ids", namespaces="no namespaces")

    assert full.missing(Tier.USER) == full.missing(Tier.NAMESPACE) == ()
    assert len(lacking.missing(Tier.USER)) == 2
    assert lacking.missing(Tier.USER)[1] == "no ids"
    assert lacking.missing(Tier.NAMESPACE)[1] == "no namespaces"


def test_untried_tier_is_not_promised() -> None:
    assert probe(tried=()).missing(Tier.NAMESPACE) == ("it was not tried",)


def test_the_guard_alone_needs_nothing(full: Probe) -> None:
    assert replace(full, landlock_abi=0, seccomp=False).missing(Tier.GUARD) == ()
