"""What happens while a tool file is imported, line by line: processor time, threads, standard output.

`ImportWatch` runs in the zygote, beside the author's code, and so may be lied to; `WatchedImport` is what the
host reads of it.
"""

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, TextIO

__all__ = ["ImportWatch", "SourceLine", "WatchedImport"]

_SAMPLE_S = 0.005
_MOST_PLACES = 200


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a tool file, by the name of the file."""

    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedImport:
    """What was seen.

    Attributes:
        seconds: Processor time of each top-level line.
        threads: Top-level lines during which Python threads were started that still run afterwards.
        printed: Top-level lines during which something was written to standard output.
    """

    seconds: Mapping[SourceLine, float]
    threads: tuple[SourceLine, ...]
    printed: tuple[SourceLine, ...]

    @classmethod
    def from_hello(cls, hello: Mapping[str, Any]) -> "WatchedImport":
        """Read what `ImportWatch.report` wrote.

        Raises:
            ValueError: It is something else; only a hostile tool file can cause that.
        """
        try:
            seen = hello["watched"]
            return cls(
                seconds={SourceLine(str(f), int(line)): float(spent) for f, line, spent in seen["seconds"]},
                threads=tuple(SourceLine(str(f), int(line)) for f, line in seen["threads"]),
                printed=tuple(SourceLine(str(f), int(line)) for f, line in seen["printed"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"what was seen of the import is malformed: {error}") from error


class ImportWatch:
    """Looks at the import of some files, as a context manager."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = {os.path.abspath(file) for file in files}
        self._seconds: dict[SourceLine, float] = {}
        self._threads: list[tuple[SourceLine, threading.Thread]] = []
        self._printed: list[SourceLine] = []
        self._spent = 0.0
        self._watching = False
        self._stdout: TextIO | None = None
        self._start = threading.Thread.start

    def __enter__(self) -> "ImportWatch":
        self._note_threads()
        self._stdout, sys.stdout = sys.stdout, _Overheard(self._note_print)
        self._spent, self._watching = time.process_time(), True
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, _SAMPLE_S, _SAMPLE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        self._watching = False
        setattr(threading.Thread, "start", self._start)  # noqa: B010 - a checker refuses to see it assigned
        if isinstance(sys.stdout, _Overheard) and self._stdout is not None:
            sys.stdout = self._stdout

    def report(self) -> dict[str, object]:
        """Return what was seen, as a JSON value."""
        threads = dict.fromkeys(place for place, thread in self._threads if thread.is_alive())
        seconds = sorted(self._seconds.items(), key=lambda item: -item[1])[:_MOST_PLACES]
        return {
            "seconds": [[place.file, place.line, spent] for place, spent in seconds],
            "threads": [[place.file, place.line] for place in threads][:_MOST_PLACES],
            "printed": [[place.file, place.line] for place in dict.fromkeys(self._printed)][:_MOST_PLACES],
        }

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        """Charge the processor time since the last sample to the line that runs now."""
        now = time.process_time()
        place = self._place(frame)
        if place is not None:
            # Not one sample's worth: a signal that comes during a call into C waits for its end.
            self._seconds[place] = self._seconds.get(place, 0.0) + now - self._spent
        self._spent = now

    def _note_threads(self) -> None:
        """Note where Python threads are started. No audit event tells, before Python 3.13."""

        def start(thread: threading.Thread) -> None:
            place = self._place(sys._getframe())
            if self._watching and place is not None:
                self._threads.append((place, thread))
            self._start(thread)

        setattr(threading.Thread, "start", start)  # noqa: B010

    def _note_print(self) -> None:
        place = self._place(sys._getframe())
        if self._watching and place is not None:
            self._printed.append(place)

    def _place(self, frame: FrameType | None) -> SourceLine | None:
        """Return the top-level line of the outermost watched file that a frame runs for."""
        found = None
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename in self._files:
                found = SourceLine(os.path.basename(frame.f_code.co_filename), frame.f_lineno)
            frame = frame.f_back
        return found


class _Overheard(io.TextIOWrapper):
    """Standard output that tells when something is written to it."""

    def __init__(self, note: Any) -> None:
        super().__init__(os.fdopen(os.dup(1), "wb"), write_through=True)
        self._note = note

    def write(self, text: str) -> int:
        self._note()
        return super().write(text)
