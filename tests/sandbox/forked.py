"""Run a function in a forked process and learn how it ended."""

import contextlib
import gc
import json
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOBODY = 65534
BOUND_S = 120
PROJECT = Path(__file__).resolve().parents[2]
READ = tuple(
    Path(name)
    for name in (
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/etc",
        sys.prefix,
        sys.base_prefix,
        str(PROJECT / "sandbox"),
        str(PROJECT / "tests"),
    )
)


@dataclass(frozen=True)
class Report:
    """End of a function: with a value, an error, or the death of its process."""

    value: Any = None
    errno: int | None = None
    error: str | None = None
    signal: int | None = None


Function = Callable[[], Any]


def run_in_child(function: Function, before: Callable[[], None]) -> Report:
    """Run `before` and `function` in a forked process."""
    read, write = os.pipe()
    pid = fork()
    if pid == 0:
        os.close(read)
        answer(write, function, before)
    os.close(write)
    try:
        return received(read, pid)
    finally:
        os.close(read)


def fork() -> int:
    with warnings.catch_warnings():
        # pytest-xdist has threads; the child uses none of what they hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        # Garbage of earlier tests would close descriptors whose numbers the child uses again.
        gc.freeze()
    return pid


def answer(write: int, function: Function, before: Callable[[], None]) -> None:
    """Report on `function` and end this process."""
    try:
        before()
        report: dict[str, Any] = {"value": function()}
    except OSError as error:
        report = {"errno": error.errno, "error": f"{type(error).__name__}: {error}"}
    except BaseException as error:  # noqa: BLE001 - the test decides what it means
        report = {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()}"}
    with contextlib.suppress(BrokenPipeError):
        os.write(write, json.dumps(report).encode() + b"\n")
    os._exit(0)


def received(read: int, pid: int) -> Report:
    """Read one report, or learn which signal ended the process."""
    text = b""
    while not text.endswith(b"\n"):
        if not select.select([read], [], [], BOUND_S)[0]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise TimeoutError(f"no report within {BOUND_S} s")
        piece = os.read(read, 65536)
        if not piece:
            break
        text += piece
    status = os.waitpid(pid, 0)[1]
    if not text:
        return Report(signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None)
    return Report(**json.loads(text))
