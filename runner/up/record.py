"""Which servers run, on disk before anybody relies on it: who comes after a killed supervisor finds them.

A process is known by its number, when it began and whose it is: a number given anew is nobody's here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from pydantic import TypeAdapter, ValidationError

from runner.system.state_files import Damaged, read_whole, set_apart, write_whole

__all__ = ["ServerRecord", "process_of", "read_record", "write_record"]

# The clock may have been set since; no number comes round that soon.
_SAME_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """What is known of one user's server; of one that does not run, its port.

    Attributes:
        name: The user.
        segment: The user's path segment.
        port: Where it listens.
        host: On which address.
        uid: The user id that it runs as.
        pid: Its process; None if it does not run.
        began: When that began, in seconds since 1970.
        digest: What it was started as.
        groups: Its control group.
        said: What bounds it.
        stop_s: How long it may take to end, in seconds.
        restarts: How often it was started again since it was asked for.
        problem: How its last life ended, for people.
    """

    name: str
    segment: str
    port: int
    host: str
    uid: int
    pid: int | None = None
    began: float = 0.0
    digest: str = ""
    groups: tuple[str, ...] = ()
    said: Mapping[str, str]
    stop_s: float
    restarts: int = 0
    problem: str = ""

    @property
    def address(self) -> tuple[str, int]:
        """Its host and its port."""
        return (self.host, self.port)

    def without_process(self) -> "ServerRecord":
        """Return what is left to know once its process has ended."""
        return replace(self, pid=None, began=0.0)


def process_of(entry: ServerRecord) -> psutil.Process | None:
    """Return the process of a server, if it still runs."""
    if entry.pid is None:
        return None
    try:
        process = psutil.Process(entry.pid)
        with process.oneshot():
            same = abs(process.create_time() - entry.began) < _SAME_S
            own = process.uids().effective == entry.uid
            gone = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return None
    return process if same and own and not gone else None


def read_record(path: Path) -> dict[str, ServerRecord]:
    """Return what is recorded, by user; nothing where there is no record, or a damaged one, set apart now.

    Raises:
        OSError: It cannot be read.
    """
    try:
        return _RECORD.validate_json(read_whole(path), strict=False)
    except FileNotFoundError:
        return {}
    except Damaged as damage:
        set_apart(path, str(damage))
    except ValidationError:
        set_apart(path, "it is no record of servers")
    return {}


def write_record(path: Path, entries: Mapping[str, ServerRecord]) -> None:
    """Write the record, whole and on disk.

    Raises:
        OSError: It cannot be written; what was there is as it was.
    """
    write_whole(path, _RECORD.dump_json(dict(entries)))


_RECORD = TypeAdapter(dict[str, ServerRecord])
