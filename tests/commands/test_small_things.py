"""Small things that end trust where they do not work."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import TOOLS, Ran, call, settings_in, until

from runner.toolset.toolset import Toolset
from runner.worker.long_answers import folded, unfolded

pytestmark = [pytest.mark.release, pytest.mark.kernel]

FILE = TOOLS / "small.py"


def test_printed_output_shown_beside_result(run: Callable[..., Ran], user: str) -> None:
    ran = run("call", FILE, "prints", "text=a line", "--user", user)

    assert (ran.status, ran.out) == (0, "done\n")
    assert "a line" in ran.err.splitlines()


@pytest.mark.parametrize("word", ["x=NaN", "x=-inf", "x:=NaN"])
def test_non_json_number_is_bad_input(run: Callable[..., Ran], user: str, word: str) -> None:
    assert run("call", FILE, "number", "x=1.5", "--user", user).out == "1.5\n"

    ran = run("call", FILE, "number", word, "--user", user)

    assert ran.status == 2
    assert "JSON" in ran.err


def test_one_warning_covers_all_files_without_type(run: Callable[..., Ran], user: str) -> None:
    ran = run("call", FILE, "files", "--user", user)

    assert ran.status == 0
    assert ran.err.count("no mime type is declared for") == 1
    assert "'c' (taken as text/plain)" in ran.err


@pytest.mark.anyio
async def test_long_text_counted_once_and_above_limit_refused(folder: Path, user: str) -> None:
    async with Toolset.open(settings_in(folder), [str(FILE)]) as toolset:
        passed = await call(toolset, user, "text", megabytes=40)
        refused = await call(toolset, user, "text", megabytes=200)
        odd = await call(toolset, user, "odd")

    assert passed.processed.failure is None
    assert len(passed.processed.value["results"]) == 40 * 1024 * 1024
    assert passed.wire["content"][0]["text"] == passed.processed.value["results"]
    failure = refused.processed.failure
    assert failure is not None
    assert (failure.details["used"], failure.details["setting"]) == (200 * 1024 * 1024, "max_payload_bytes")
    assert "Write long results to a file" in failure.details["suggestion"]
    assert odd.processed.failure is not None
    assert odd.processed.failure.code.name == "E_TOOL"


def test_only_text_equal_to_structure_left_out() -> None:
    long = "x" * 200_000
    same = {"content": [{"type": "text", "text": long}], "structuredContent": {"result": long}}
    other = {"content": [{"type": "text", "text": long + "y"}], "structuredContent": {"result": long}}

    assert folded(other) == (other, False)
    assert folded(same)[1]
    assert unfolded(folded(same)[0]) == same


@pytest.mark.parametrize(
    "words",
    [
        ["serve", FILE, "--transport", "http", "--port", "0"],
        ["dev", FILE, "--port", "0"],
        ["call", FILE, "text", "megabytes=1"],
    ],
    ids=["serve", "dev", "call"],
)
def test_ctrl_c_during_start_exits_130_without_traceback(
    words: list[str | Path], environment: dict[str, str], folder: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", *map(str, words)],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )

    # It has said by then what it does with Ctrl-C, and goes on importing for long.
    assert until(lambda: _has_forkserver(process.pid))
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=180)

    assert (process.returncode, err.replace("interrupted; nothing is left running\n", "")) == (130, "")


def _has_forkserver(pid: int) -> bool:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if "forkserver_main" in Path(f"/proc/{child}/cmdline").read_text():
                return True
    return False
