"""What a confined server writes to its standard error: passed on to ours, its end kept for a message.

Source: MCP specification 2025-11-25, "Transports, stdio": a server may log there.
"""

import asyncio
import contextlib
import os
import re
import sys
from typing import TextIO

__all__ = ["LastWords"]

_KEPT_BYTES = 2000
_PIECE_BYTES = 65536
_WAIT_S = 1.0
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x20-\x7e\xa0-\uffff\n]")


class LastWords:
    """Reads the standard error of one process, in the running loop, until the block ends.

    Attributes:
        file: Where the process writes to; closed here once the process has it.
    """

    def __init__(self) -> None:
        self._kept = b""
        self._reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writer, True)
        self.file: TextIO = open(writer, "w", encoding="utf-8")  # noqa: SIM115 - closed with the block
        self._ended = asyncio.Event()

    def __enter__(self) -> "LastWords":
        asyncio.get_running_loop().add_reader(self._reader, self._readable)
        return self

    def __exit__(self, *_raised: object) -> None:
        self.file.close()
        self._stop()

    async def wait(self) -> str:
        """Return the last of what was said, once the process has ended or shortly after."""
        self.file.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _WAIT_S)
        lines = _UNPRINTABLE.sub("", self._kept.decode("utf-8", "replace")).splitlines()
        return " / ".join(line.strip() for line in lines if line.strip())[-_KEPT_BYTES:]

    def _readable(self) -> None:
        try:
            data = os.read(self._reader, _PIECE_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._stop()
            return
        self._kept = (self._kept + data)[-_KEPT_BYTES:]
        sys.stderr.write(data.decode("utf-8", "replace"))

    def _stop(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            asyncio.get_running_loop().remove_reader(self._reader)
            os.close(self._reader)
