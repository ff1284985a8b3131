"""Fields of /proc/PID/stat: parsed from text, and read of real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.host.process_stat import ProcessStat, state_of

# A process may call itself so: 15 bytes, with blanks and brackets that look like the fields behind it.
NAME = "a) Z 9 (b c) d("
# What stands behind the name: the state, then each field's number in the manual page, which counts from one.
FIELDS = ["T", *(str(number) for number in range(4, 53))]


def test_the_fields_begin_behind_the_last_bracket_of_the_name() -> None:
    stat = ProcessStat.parse(f"77 ({NAME}) {' '.join(FIELDS)}\n".encode())

    ticks = os.sysconf("SC_CLK_TCK")
    assert (stat.state, stat.parent, stat.session) == (b"T", 4, 6)
    assert (stat.threads, stat.started, stat.environment_address) == (20, 22, 50)
    assert (stat.cpu_s, stat.waited_cpu_s) == ((14 + 15) / ticks, (16 + 17) / ticks)


def test_a_process_of_such_a_name_and_its_thread_are_read() -> None:
    code = f"""
open("/proc/self/comm", "w").write({NAME!r})
print(flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        of_process = ProcessStat.of(process.pid)
        of_thread = ProcessStat.of(f"{process.pid}/task/{process.pid}")
        state = state_of(f"{process.pid}/task/{process.pid}")
        called = Path(f"/proc/{process.pid}/comm").read_text()
        process.communicate(b"\n")

    assert called == f"{NAME}\n"
    assert (of_process.parent, of_process.session) == (os.getpid(), process.pid)
    assert (of_process.threads, of_thread.started) == (1, of_process.started)
    assert {of_process.state, state} <= {b"R", b"S"}


def test_ended_process_is_an_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()

    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        ProcessStat.of(process.pid)
