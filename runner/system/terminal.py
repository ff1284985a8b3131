"""Standard output and error of a command, without control sequences from untrusted text.

Text of a tool file, a server behind the proxy or a command line can be printed by any code in this process:
reports, errors, usage messages of Click, tracebacks, log lines, libraries. So the streams themselves escape
it (`runner.formats.terminal_text`). Our own control sequences go through `draw`.

Source: console_codes(4); ECMA-48.
"""

import codecs
import io
import sys
from typing import Any, TextIO

from runner.formats.terminal_text import visible

__all__ = ["VisibleText", "draw", "guard_standard_streams", "write_exactly"]


class VisibleText(io.TextIOWrapper):
    """A text stream that escapes hidden characters."""

    def write(self, text: str) -> int:
        """Write a text, escaped."""
        super().write(visible(text))
        return len(text)

    def draw(self, text: str) -> None:
        """Write a text unchanged."""
        super().write(text)


def guard_standard_streams() -> None:
    """Replace standard output and error of this process with streams that escape."""
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)
    # Some libraries write to these.
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc, assignment]


def draw(text: str, stream: TextIO) -> None:
    """Write control sequences of our own, such as those of a progress bar, together with escaped text."""
    if isinstance(stream, VisibleText):
        stream.draw(text)
    else:
        stream.write(text)


def write_exactly(text: str) -> None:
    """Write the value of a call to standard output: unchanged to a file or a pipe, escaped to a terminal."""
    if sys.stdout.isatty():
        sys.stdout.write(text)
    else:
        draw(text, sys.stdout)


def _guarded(stream: TextIO | None) -> TextIO:
    # A stream is None if it was closed when the process started.
    if isinstance(stream, VisibleText) or not isinstance(stream, io.TextIOWrapper):
        return stream  # type: ignore[return-value]
    # Click bypasses an ASCII stream and writes UTF-8 to its buffer.
    encoding = "utf-8" if codecs.lookup(stream.encoding).name == "ascii" else stream.encoding
    buffering, through = stream.line_buffering, stream.write_through
    stream.flush()
    try:
        # A new buffer, since the old one may have checked before the fork whether the descriptor can seek.
        buffer: Any = io.BufferedWriter(io.FileIO(stream.fileno(), "wb", closefd=False))
    except OSError:
        # The stream has no descriptor, as in a program that captures its output.
        buffer = stream.detach()
    return VisibleText(
        buffer,
        encoding=encoding,
        # A lone surrogate, which JSON can contain, must not end the command.
        errors="backslashreplace",
        line_buffering=buffering,
        write_through=through,
    )
