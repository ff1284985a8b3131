"""Names and counts of the functions of ours that a call enters."""

import subprocess
import sys

import pytest
from support import ROOT

pytestmark = pytest.mark.release


@pytest.mark.kernel
def test_the_functions_that_a_call_enters_are_named_and_counted() -> None:
    command = [sys.executable, "-m", "benchmarks.call_path", "--list", "--transports", "stdio"]
    ran = subprocess.run(
        [*command, "--eras", "2026-07-28"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )

    assert ran.returncode == 0, ran.stderr
    *named, _heading, _line, row = ran.stdout.splitlines()
    entered = dict(line.split(": ", 1) for line in named if "): " in line)
    names = {place.partition(" ")[0]: set(functions.split(", ")) for place, functions in entered.items()}
    assert "execute" in names["runner/call.py"]
    assert "Lease.run" in names["sandbox/host/lease.py"]
    assert {place.partition("/")[0] for place in names} == {"runner", "sandbox"}
    counted = [cell.strip() for cell in row.strip("|").split("|")]
    assert counted[2:4] == [str(len(names)), str(sum(map(len, names.values())))]
