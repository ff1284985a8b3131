"""Parser of `/proc/PID/stat` and `/proc/PID/task/TID/stat`: read and split once.

The process chooses the name in it, which may contain spaces and parentheses: the fields follow the last `)`.

Source: proc_pid_stat(5).
"""

import os
from dataclasses import dataclass
from typing import Self

__all__ = ["ProcessStat", "read_proc", "state_of"]

_TICKS = os.sysconf("SC_CLK_TCK")
_STAT_BYTES = 4096
# More than the kernel returns for one process.
_MOST_BYTES = 1 << 16


def read_proc(path: str, most_bytes: int = _MOST_BYTES) -> bytes:
    """Return the content of a small file in /proc.

    Raises:
        OSError: It cannot be read; ENOENT or ESRCH where its process has ended.
    """
    # Takes half the time of a file object; every worker is checked.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, most_bytes)
    finally:
        os.close(descriptor)


def state_of(process: int | str) -> bytes:
    """Return only the state letter, like `ProcessStat.of(process).state`: it is read for every thread.

    Raises:
        OSError: It has ended.
    """
    return read_proc(f"/proc/{process}/stat", _STAT_BYTES).rpartition(b")")[2].split(None, 1)[0]


@dataclass(slots=True)
class ProcessStat:
    """The fields behind the name. Numbers are parsed on access: most checks need one or two.

    Attributes:
        fields: From the state on, which the manual page counts as the third.
    """

    fields: list[bytes]

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Split the text of such a file."""
        return cls(text.rpartition(b")")[2].split())

    @classmethod
    def of(cls, process: int | str) -> Self:
        """Read the stat file of a process, by its pid, or of a thread, as `PID/task/TID`.

        Raises:
            OSError: It has ended.
        """
        return cls.parse(read_proc(f"/proc/{process}/stat", _STAT_BYTES))

    @property
    def state(self) -> bytes:
        """The letter of its state: `R`, `S`, `D`, `T`, `Z` and others."""
        return self.fields[0]

    @property
    def parent(self) -> int:
        """Process id of its parent."""
        return int(self.fields[1])

    @property
    def session(self) -> int:
        """Process id of its session leader."""
        return int(self.fields[3])

    @property
    def cpu_s(self) -> float:
        """Processor seconds it has used, including kernel time."""
        return (int(self.fields[11]) + int(self.fields[12])) / _TICKS

    @property
    def waited_cpu_s(self) -> float:
        """Processor seconds of its reaped children."""
        return (int(self.fields[13]) + int(self.fields[14])) / _TICKS

    @property
    def threads(self) -> int:
        """Number of its threads."""
        return int(self.fields[17])

    @property
    def started(self) -> int:
        """Its start time, in clock ticks after boot."""
        return int(self.fields[19])

    @property
    def environment_address(self) -> int:
        """Start address of its environment; 0 without permission to read it."""
        return int(self.fields[47])
