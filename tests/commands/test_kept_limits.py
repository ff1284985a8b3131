"""Limits of workers that stay, in hosts that may raise them from outside and in hosts that may not."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unprivileged import NOBODY, run_as_nobody, run_without

from sandbox.layers.rlimits import may_raise_limits

pytestmark = [pytest.mark.needs_root, pytest.mark.release, pytest.mark.kernel, pytest.mark.timeout(320)]

PROGRAM = Path(__file__).parents[1] / "programs" / "kept_workers.py"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that nobody can use, too."""
    with tempfile.TemporaryDirectory(prefix="kept-") as path:
        folder = Path(path)
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder


def run_as_nobody_user(tier: str, folder: Path) -> dict[str, Any]:
    return _report(run_as_nobody([sys.executable, str(PROGRAM), tier, str(folder)], seconds=300))


def run_as_root(tier: str, folder: Path, *, without: str) -> dict[str, Any]:
    os.chown(folder, 0, 0)
    folder.chmod(0o755)
    return _report(run_without(without, [sys.executable, str(PROGRAM), tier, str(folder)], seconds=300))


def _report(done: Any) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def check(report: dict[str, Any]) -> None:
    burnt, held = report["burnt"], report["held"]
    # One process has used four times what a call may have, and each call had a limit of its own.
    assert {each["pid"] for each in burnt} == {burnt[0]["pid"]}
    assert [each["calls"] for each in burnt] == list(range(1, len(burnt) + 1))
    assert burnt[-1]["limit"] >= burnt[0]["limit"] + 3
    assert len({each["pid"] for each in held}) == 1
    # Who raises its limits, or lies about having set them, meets the watch; and the next call a fresh worker.
    assert report["raise_and_burn"] == "cpu_s"
    assert report["after"]["calls"] == 1
    assert report["raise_and_take"] in ("memory_bytes", "call_memory_bytes")
    assert report["lie"] == "lied"
    assert report["burn_on"] == "cpu_s"
    assert report["at_last"]["calls"] == 1


@pytest.mark.parametrize("tier", ["process", "namespace"])
def test_unprivileged_host_renews_limits_call_by_call(tier: str, open_folder: Path) -> None:
    report = run_as_nobody_user(tier, open_folder)

    assert not report["raises_limits"]
    check(report)


@pytest.mark.parametrize("tier", ["user", "namespace"])
def test_default_container_user_namespace_cannot_raise_limits(tier: str, open_folder: Path) -> None:
    report = run_as_root(tier, open_folder, without="sys_resource")

    assert not report["raises_limits"]
    check(report)


def test_fully_privileged_host_renews_limits_call_by_call(open_folder: Path) -> None:
    """Limits set from outside with CAP_SYS_RESOURCE, which containers do not have."""
    report = run_as_root("user", open_folder, without="sys_time")

    assert report["raises_limits"] == may_raise_limits()
    check(report)
