"""A server that is forked from the template does what the one does that `subprocess` starts."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from somebody import somebody
from support import ROOT, environment_in, server_url, until

TOOLS = ROOT / "sample_tools" / "hello.py"
SERVE = [sys.executable, "-m", "runner", "serve"]


def started(process: "subprocess.Popen[str]") -> list[str]:
    words: list[str] = psutil.Process(process.pid).cmdline()
    return words


def ended(*words: str, cwd: Path | None = None) -> tuple[int, str, str]:
    """Return how a server ended, and what it said."""
    done = subprocess.run([*SERVE, *words], cwd=cwd, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words", [["--no-such-option"], [str(ROOT / "missing.py")], [str(TOOLS), "--port", "-1"], ["--help"]]
)
def test_what_is_refused_is_refused_with_the_same_words_and_status(tmp_path: Path, words: list[str]) -> None:
    """In a folder of its own it is the real one."""
    assert ended(*words) == ended(*words, cwd=tmp_path)


def test_it_is_a_child_of_ours_and_ends_with_all_that_it_started(tmp_path: Path) -> None:
    with somebody() as user:
        command = [*SERVE, str(TOOLS), "--transport", "http", "--port", "0", "--user", user]
        process = subprocess.Popen(command, env=environment_in(tmp_path), stderr=subprocess.PIPE, text=True)
        try:
            server_url(process)
            family = psutil.Process(process.pid).children(recursive=True)
            assert psutil.Process(process.pid).parent() == psutil.Process()
            assert family
        finally:
            process.kill()

        assert process.wait() == -9
        assert process.stderr is not None
        # Nobody has the other end open any more.
        process.stderr.read()
        process.stderr.close()
        assert until(lambda: not any(one.is_running() for one in family))


@pytest.mark.parametrize(
    ("options", "is_forked"),
    [
        (lambda _: {}, True),
        (lambda _: {"start_new_session": True}, True),
        (lambda folder: {"cwd": folder}, False),
        (lambda _: {"env": {"PYTHONOPTIMIZE": "1"}}, False),
        (lambda _: {"user": os.geteuid()}, False),
        (lambda _: {"umask": 0o077}, False),
    ],
    ids=["plain", "session", "folder", "interpreter", "user", "umask"],
)
def test_only_what_a_fork_can_be_is_forked(
    tmp_path: Path,
    pytestconfig: pytest.Config,
    options: Callable[[Path], dict[str, Any]],
    is_forked: bool,
) -> None:
    # It waits for its input, and ends with that.
    process = subprocess.Popen(
        [*SERVE, "--help"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options(tmp_path)
    )
    words = started(process)
    process.communicate()
    is_forked = is_forked and not pytestconfig.getoption("--real-starts")

    assert any("command_template" in word for word in words) == is_forked
