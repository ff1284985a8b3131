"""Ctrl-C ends a command also where Python drops the exception that it makes of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, SAMPLES

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(200)]

# Ctrl-C comes while an object is cleaned up, in the middle of an import: what is raised there goes nowhere.
COMES_IN_BETWEEN = """
import os, signal, sys

class Sends:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10):
            pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"] and os.getpid() == int(os.environ["INTERRUPTED_PID"]):
            sys.meta_path.remove(self)
            Sends()

# The processes that the command starts are not meant.
os.environ.setdefault("INTERRUPTED_PID", str(os.getpid()))
sys.meta_path.insert(0, Finder())
"""

FILE = SAMPLES / "hello.py"
SERVER = ROOT / "tests" / "proxy" / "bare.py"


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["serve", FILE, "--transport", "http", "--port", "0"], "runner.server.ahead"),
        (["serve", FILE, "--transport", "http", "--port", "0"], "fastmcp"),
        (["dev", FILE, "--port", "0"], "watchfiles"),
        (["dev", FILE, "--port", "0"], "fastmcp"),
        (["proxy", "--transport", "http", "--port", "0", "--", sys.executable, SERVER], "runner.proxy.calls"),
        (["call", FILE, "shout", "text=hi"], "runner.cli.commands.call"),
    ],
    ids=lambda value: " ".join([value[0]]) if isinstance(value, list) else value,
)
def test_ctrl_c_is_heard_in_the_middle_of_an_import(
    words: list[str | Path], module: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(COMES_IN_BETWEEN)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "INTERRUPTED_AT": module,
        "RUNNER_STATE_DIR": str(tmp_path / "state"),
        "RUNNER_STORE": (tmp_path / "store").as_uri(),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", *map(str, words), "--user", "t-interrupted"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _out, stderr = process.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"it runs on after SIGINT: {process.communicate()[1]}")

    assert (process.returncode, stderr) == (128 + signal.SIGINT, "")
