import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import installs
from benchmarks.installs import Unavailable
from benchmarks.peers import FUNCTIONS, Function, timed
from benchmarks.servers import TOOLS

ROOT = Path(__file__).parents[2]


def run(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("function", FUNCTIONS[:2], ids=lambda function: function.name)
def test_function_in_own_interpreter_returns_expected_answer(function: Function) -> None:
    seconds = timed(run, function)

    assert seconds > 0


def test_pandas_function_returns_expected_answer() -> None:
    from benchmarks import pandas_tools  # takes a second, which the collection of all tests would wait for

    answer = asyncio.run(pandas_tools.totals("hello"))

    assert json.dumps(answer) == FUNCTIONS[2].answer


@pytest.mark.release
def test_fork_gives_equal_answers_in_sequence() -> None:
    commands = [json.dumps([sys.executable, *function.arguments]) for function in FUNCTIONS[:2]]
    driver = [sys.executable, str(ROOT / "benchmarks/fork_driver.py"), str(TOOLS)]

    done = subprocess.run(
        driver, cwd=ROOT, input="\n".join(commands), capture_output=True, text=True, check=True
    )

    assert [json.loads(line) for line in done.stdout.splitlines()] == [[0, '"hello"\n', ""]] * 2


def test_way_with_wrong_answer_is_not_measured() -> None:
    wrong = Function("wrong", ("-c", "print(1)"), "2")

    with pytest.raises(Unavailable, match="gave '1' instead of 2"):
        timed(run, wrong)


def test_missing_program_error_names_install_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "here").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert installs.debian("here", "a-package") == str(tmp_path / "here")
    with pytest.raises(Unavailable, match=r"bwrap is not here.*apt install bubblewrap"):
        installs.debian("bwrap", "bubblewrap")


def test_npm_packages_are_pinned_with_their_hash() -> None:
    manifest = json.loads((ROOT / "benchmarks/npm/package.json").read_text())
    locked = json.loads((ROOT / "benchmarks/npm/package-lock.json").read_text())["packages"]

    assert locked[""]["dependencies"] == manifest["dependencies"]
    assert [name for name, package in locked.items() if name and "integrity" not in package] == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--check", "--figures", "none.json"], "none.json cannot be read as figures"),
        (["--keep", "--only", "http"], "need all parts"),
    ],
)
def test_invalid_command_line_ends_with_a_sentence(arguments: list[str], sentence: str) -> None:
    command = [sys.executable, "-m", "benchmarks", *arguments]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
