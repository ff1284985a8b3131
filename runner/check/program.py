"""The program that a zygote loads for `runner check`: the usual one, with the author's lines watched.

It runs in one process with the author's code, so its reports may be forged.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

from runner.worker.program import ToolProgram
from runner.worker.targets import entry_of
from sandbox.inside.program import Channel

__all__ = ["PROGRAM", "WatchedProgram"]

_SAMPLE_S = 0.005
_MOST = 200
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Position of the changed path in each audit event.
_CHANGES = {
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "sqlite3.connect"), 0),
    **dict.fromkeys(("os.rename", "os.link", "os.symlink"), 1),
}


class WatchedProgram(ToolProgram):
    """A tool file behind its own server, whose import and calls are watched."""

    def __init__(self) -> None:
        super().__init__()
        self._file = ""
        self._touched: dict[tuple[str, str], None] = {}

    def load(self, config: Mapping[str, object]) -> object:
        """Import the file; return the catalog, with the lines that took time or started threads."""
        files = config["files"]
        self._file = os.path.abspath(entry_of(str(files[0])).file) if isinstance(files, list) else ""
        sys.addaudithook(self._audit)
        with self._watching() as seen:
            catalog = super().load(config)
        return {**catalog, "watched": seen()} if isinstance(catalog, dict) else catalog

    def warm_up(self) -> None:
        """Skip the warm-ups of the author."""

    def serve(self, call: object, channel: Channel) -> object:
        """Serve one request; add the paths that the author's lines have opened to the answer."""
        self._touched.clear()
        answer = super().serve(call, channel)
        return {**answer, "touched": [*self._touched]} if isinstance(answer, dict) else answer

    @contextlib.contextmanager
    def _watching(self) -> Iterator[Callable[[], dict[str, object]]]:
        seconds: dict[int, float] = {}
        threads: list[tuple[int, threading.Thread]] = []
        spent, start = time.process_time(), threading.Thread.start

        def sample(_number: int, frame: FrameType | None) -> None:
            nonlocal spent
            now = time.process_time()
            if line := self._line_of(frame, in_module=True):
                # Not a fixed interval: a signal during a call into C is delivered only at its end.
                seconds[line] = seconds.get(line, 0.0) + now - spent
            spent = now

        def start_noted(thread: threading.Thread) -> None:
            # There is no audit event for this before Python 3.13.
            if line := self._line_of(sys._getframe(), in_module=True):
                threads.append((line, thread))
            start(thread)

        def seen() -> dict[str, object]:
            alive = dict.fromkeys(line for line, thread in threads if thread.is_alive())
            slowest = sorted(seconds.items(), key=lambda item: -item[1])
            return {"seconds": slowest[:_MOST], "threads": [*alive][:_MOST]}

        setattr(threading.Thread, "start", start_noted)  # noqa: B010 - mypy refuses the assignment
        signal.signal(signal.SIGPROF, sample)
        signal.setitimer(signal.ITIMER_PROF, _SAMPLE_S, _SAMPLE_S)
        try:
            yield seen
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            setattr(threading.Thread, "start", start)  # noqa: B010

    def _line_of(self, frame: FrameType | None, *, in_module: bool = False) -> int:
        """Return the innermost line of the file in a frame's stack, of its top level if wanted; else 0."""
        while frame is not None:
            code = frame.f_code
            if code.co_filename == self._file and (not in_module or code.co_name == "<module>"):
                return frame.f_lineno
            frame = frame.f_back
        return 0

    def _audit(self, event: str, args: tuple[object, ...]) -> None:
        if event == "open" and len(args) == 3 and isinstance(args[2], int):
            kind, path = "write" if args[2] & _WRITES else "read", args[0]
        elif event in _CHANGES:
            kind, path = "write", args[_CHANGES[event]]
        else:
            return
        if isinstance(path, str | bytes) and len(self._touched) < _MOST and self._line_of(sys._getframe()):
            self._touched[kind, os.path.abspath(os.fsdecode(path))] = None


PROGRAM = WatchedProgram()
