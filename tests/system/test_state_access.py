"""Files of the state folder and the store that a runner who is not root may not use, each in turn."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unprivileged import NOBODY, run_as_nobody

from runner.system.state_access import Denied, check_access, denied_in
from runner.system.state_files import APART

pytestmark = [pytest.mark.needs_root, pytest.mark.release, pytest.mark.kernel]

PROGRAM = Path(__file__).parents[1] / "programs" / "state_access.py"


@pytest.fixture(scope="module")
def report() -> Iterator[dict[str, Any]]:
    """Outcome for each file, in one world of the user nobody: see the program."""
    folder = Path(tempfile.mkdtemp(prefix="state-access-"))
    try:
        os.chown(folder, NOBODY, NOBODY)
        done = run_as_nobody([sys.executable, str(PROGRAM), str(folder)], seconds=500)
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", str(folder)], check=False)
        shutil.rmtree(folder)


# What a call, an upload, a browser session and a store in S3 that is away leave behind.
EXPECTED = {
    "state",
    "state/browser-sessions",
    "state/claims",
    "state/homes/nobody.json",
    "state/nobody-0.lock",
    "state/sessions",
    "state/spool",
    "state/spool/users/*/objects/*",
    "state/spool/users/*/records/all/files/a.txt",
    "state/tokens-copy.json",
    "state/tokens.json",
    "state/uids-copy.json",
    "state/uids.json",
    "state/uids.lock",
    "state/used-tokens",
    "store",
    "store/users",
    "store/users/*",
    "store/users/*/objects",
    "store/users/*/records",
}


def test_every_file_of_state_and_store_is_tried_here(report: dict[str, Any]) -> None:
    assert {entry["kind"] for entry in report["entries"]} >= EXPECTED


def test_all_commands_work_before_and_after(report: dict[str, Any]) -> None:
    assert report["before"] == report["after"] == {"doctor": 0, "call": 0}


def test_start_error_names_file_fault_and_remedy(report: dict[str, Any]) -> None:
    wrong = {
        entry["path"]: entry["call"]
        for entry in report["entries"]
        if not (
            entry["call"]["status"] == 5
            and f"{entry['path']} may not be read" in entry["call"]["said"]
            and f"chmod {entry['rights']} {entry['path']}" in entry["call"]["said"]
            and "Traceback" not in entry["call"]["said"]
        )
    }

    assert wrong == {}


def test_doctor_names_the_file_and_repairs_nothing(report: dict[str, Any]) -> None:
    wrong = {
        entry["path"]: entry["doctor"]
        for entry in report["entries"]
        if not (
            entry["doctor"]["status"] == 1
            and "missing  access" in entry["doctor"]["said"]
            and f"{entry['path']} may not be read" in entry["doctor"]["said"]
            and f"chmod {entry['rights']} {entry['path']}" in entry["doctor"]["said"]
            and "Traceback" not in entry["doctor"]["said"]
        )
    }

    assert wrong == {}


def test_denied_state_is_neither_overwritten_nor_set_apart(report: dict[str, Any]) -> None:
    assert [entry["path"] for entry in report["entries"] if entry["changed"]] == []


def test_damaged_keys_stay_until_their_copy_is_readable(report: dict[str, Any]) -> None:
    refused, stayed, holds = report["running"]["keys"]

    assert "tokens.json in the folder of the setting state_dir) cannot be used: Permission denied" in refused
    assert (stayed, holds) == (True, True)


def test_spooled_file_with_unreadable_note_is_named_and_stays(report: dict[str, Any]) -> None:
    assert report["running"]["spool"] == [0, 1, 0, 1]


def test_home_with_unreadable_note_is_not_treated_as_foreign(report: dict[str, Any]) -> None:
    output, is_read_afterwards = report["running"]["home"]

    assert "home note unreadable" in output
    assert "state_dir" in output
    assert is_read_afterwards


def test_set_apart_files_and_links_are_ignored(tmp_path: Path) -> None:
    (tmp_path / f"tokens.json{APART}1").touch(0o000)
    (tmp_path / "link").symlink_to("/nowhere")

    assert list(denied_in(tmp_path, None)) == []
    check_access(tmp_path, tmp_path / "no store yet")


def test_a_denial_is_one_sentence(tmp_path: Path) -> None:
    denied = Denied(path=tmp_path, problem="may not be read by ann", cure=f"chmod u+rwx {tmp_path}")

    assert str(denied) == f"{tmp_path} may not be read by ann; chmod u+rwx {tmp_path}"


def test_state_folder_that_is_none_is_named_with_cause(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to("/nowhere")

    problems = [
        denied.problem
        for path in (tmp_path / "absent", tmp_path, file, link)
        for denied in denied_in(path, None)
    ]

    assert problems == ["is not a folder", "is a link to nothing"]
