import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import conformance_pages
import conformance_widgets_ui
import pytest
from adapter import OPERATIONS, observe
from conformance_expect import SHAPES
from harness import load_cases, run_case

FOLDER = Path(__file__).parent

CASES = [
    case for name in ("cases.jsonl", "cases-ui.jsonl", "more.jsonl") for case in load_cases(FOLDER / name)
]
SHOWN = {*conformance_pages.OPERATIONS, *conformance_widgets_ui.OPERATIONS}
NEEDS = {
    **dict.fromkeys(SHOWN, pytest.mark.needs_browser),
    **dict.fromkeys(("inspector_cli", "inspector_web"), pytest.mark.needs_npm),
}
OURS = [pytest.param(case, id=case["id"], marks=NEEDS.get(case["input"]["op"], ())) for case in CASES]


@pytest.mark.parametrize("case", OURS)
def test_project_does_what_conformance_case_expects(case: dict[str, Any]) -> None:
    assert run_case(observe, case).reasons == []


def test_operations_all_observed_and_no_other() -> None:
    assert set(OPERATIONS) == set(SHAPES)
    with pytest.raises(NotImplementedError, match="levitate"):
        observe({"op": "levitate"})


def test_case_ids_are_unique() -> None:
    ids = [case["id"] for case in CASES]

    assert sorted(set(ids)) == sorted(ids)


def test_copied_documents_are_unmodified() -> None:
    listed = [line.split("  ") for line in (FOLDER / "SHA256SUMS").read_text().splitlines()]
    found = {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for _, name in listed}

    assert found == {name: digest for digest, name in listed}
    assert {"README.md", "cases.jsonl", "harness.py"} <= set(found)


def test_case_with_other_expectation_fails() -> None:
    case = json.loads((FOLDER / "more.jsonl").read_text().splitlines()[3])
    case["expect"] = {"equals": {"results": "something else"}}

    assert run_case(observe, case).reasons != []


def test_harness_command_of_the_readme_runs_by_itself() -> None:
    command = [sys.executable, "harness.py", "--adapter", "adapter.py", "--area", "transformer"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    ran = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True)

    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["3 passed, 0 failed"]), ran.stderr
