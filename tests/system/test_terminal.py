"""Standard streams of a command: what reaches a terminal, and what reaches a file or a pipe."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

PRINTED = "a\x1b]52;c;eA==\x07b\x9b2Jc\rd\u202ee\U000e0041f\ud800g"
SHOWN = rb"a\x1b]52;c;eA==\x07b\x9b2Jc\rd\u202ee\U000e0041f\ud800g"
GUARDED = "from runner.system.terminal import draw, guard_standard_streams, write_exactly\nimport sys\n"
ACTS = {
    "print": "print(text)",
    "error": "print(text, file=sys.stderr)",
    "original": "sys.__stdout__.write(text)",
    "lines": "sys.stdout.writelines([text])",
    "traceback": "raise RuntimeError(text)",
    "exit": "sys.exit(text)",
    "click": "import click; click.echo(text, err=True)",
    "logging": "import logging; logging.getLogger().error(text)",
    "warning": "import warnings; warnings.warn(text)",
    "value": "write_exactly(text)",
}


def on_terminal(code: str, **environment: str) -> bytes:
    """Run a program on a terminal of its own; return all that it wrote there."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONUTF8": "1", **environment}
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        got = b""
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:
                # The terminal has no writer left.
                break
            got += data
        process.wait(timeout=120)
    os.close(ours)
    return got


@pytest.mark.parametrize("act", ACTS)
def test_terminal_receives_escapes_whoever_prints(act: str) -> None:
    got = on_terminal(f"{GUARDED}guard_standard_streams()\ntext = {PRINTED!r}\n{ACTS[act]}\n")

    assert SHOWN in got
    assert b"\x1b" not in got


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_terminal_of_another_encoding_receives_escapes(encoding: str) -> None:
    code = f"{GUARDED}guard_standard_streams()\nimport click\ntext = {PRINTED!r}\nclick.echo(text)\n"

    got = on_terminal(code, PYTHONUTF8="0", PYTHONIOENCODING=encoding)

    assert SHOWN in got
    assert not {0x1B, 0x9B} & set(got)


def test_terminal_without_the_guard_receives_the_sequence() -> None:
    assert b"\x1b]52" in on_terminal(r"print('\x1b]52;c;eA==\x07')")


def test_terminal_receives_drawn_output() -> None:
    code = f"{GUARDED}guard_standard_streams()\ndraw('\\r\\x1b[K50%', sys.stderr)\n"

    assert on_terminal(code) == b"\r\x1b[K50%"


def test_file_receives_a_value_unchanged_and_a_report_escaped(tmp_path: Path) -> None:
    text = "a\x1b\x9b\r\u202e"
    code = f"{GUARDED}guard_standard_streams()\ntext = {text!a}\nwrite_exactly(text)\nprint(text)\n"
    target = tmp_path / "out"

    with target.open("wb") as file:
        subprocess.run([sys.executable, "-X", "utf8", "-c", code], stdout=file, check=True, timeout=120)

    assert target.read_bytes() == "a\x1b\x9b\r\u202e".encode() + b"a\\x1b\\x9b\\r\\u202e\n"


def test_closed_standard_error_is_left_closed() -> None:
    code = f"{GUARDED}import os\nguard_standard_streams()\nprint(sys.stderr)\n"

    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code], stdout=-1, check=True, timeout=30
    )

    assert done.stdout == b"None\n"
