"""Finds what calls left on a machine, from outside and as the kernel reports it."""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from sandbox.layers import cgroup

__all__ = ["Measured", "Traces", "measure", "wait_until_quiet"]

_MIB = 1 << 20
_QUIET_S = 30.0
# A burst of calls leaves up to eight workers parked, and the host ends one of them each 30 s.
_CALM_S = 300
_SYSV = ("shm", "sem", "msg")
_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/etc", "/dev/mqueue")  # noqa: S108 - they are looked through


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The processes of a server, at one moment.

    Attributes:
        uss_mib: Memory that the host alone has.
        rss_mib: Memory of the host, with what it shares.
        descriptors: Open descriptors of the host and the forkserver.
        zygotes: Zygotes.
        workers: Children of zygotes.
        others: Anything else: what a call left behind.
    """

    uss_mib: float
    rss_mib: float
    descriptors: int
    zygotes: int
    workers: int
    others: tuple[str, ...]


def measure(host: int) -> Measured:
    """Measure a server by the process id of its host."""
    process = psutil.Process(host)
    memory = process.memory_full_info()
    forkservers = process.children()
    zygotes = [child for forkserver in forkservers for child in forkserver.children()]
    workers = [child for zygote in zygotes for child in _children(zygote)]
    others = [child for worker in workers for child in _children(worker, recursive=True)]
    return Measured(
        uss_mib=memory.uss / _MIB,
        rss_mib=memory.rss / _MIB,
        descriptors=process.num_fds() + sum(forkserver.num_fds() for forkserver in forkservers),
        zygotes=len(zygotes),
        workers=len(workers),
        others=tuple(map(str, others)),
    )


def wait_until_quiet(host: int) -> Measured:
    """Wait until each zygote has one parked worker and nothing else; return what is there after 5 minutes."""
    deadline = time.monotonic() + _CALM_S
    while True:
        found = measure(host)
        quiet = not found.others and found.workers <= found.zygotes
        if quiet or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """The places where one server and its calls could leave traces.

    Attributes:
        forkserver: Process id of its forkserver.
        uids: The user ids that it gave to users.
        folder: The folder that holds all its own: homes, state, store.
        token: Name of what calls tried to plant.
        key: Of the System V objects that calls tried to make.
        others: Process ids that have nothing to do with it, though they live below this process.
    """

    forkserver: int
    uids: range
    folder: Path
    token: str
    key: int
    others: frozenset[int] = frozenset()

    def left(self) -> list[str]:
        """Return a line for everything that is left, once the server has ended."""
        return [*self._processes(), *self._files(), *self._kernel()]

    def _processes(self) -> Iterator[str]:
        """Yield what lives below this process, which adopts all orphans, or under a user id of the server."""
        deadline = time.monotonic() + _QUIET_S
        while (alive := _alive_below(os.getpid(), self.others)) and time.monotonic() < deadline:
            time.sleep(0.05)
        _reap()
        yield from (f"process {process}" for process in alive)
        for process in psutil.process_iter(["uids"]):
            uids = process.info["uids"]
            if uids is not None and uids.real in self.uids:
                yield f"process {process} with user id {uids.real}"

    def _files(self) -> Iterator[str]:
        for place in _PLACES:
            if os.path.lexists(f"{place}/{self.token}"):
                yield f"file {place}/{self.token}"
            for found in _owned(Path(place), self.uids):
                yield f"file {found} of one of its user ids"
        homes = self.folder / "homes"
        yield from (f"home {found}" for found in sorted(homes.iterdir()))

    def _kernel(self) -> Iterator[str]:
        groups = f"toolcell-{self.forkserver}-*"
        for place in cgroup.places():
            yield from (f"control group {found}" for found in place.folder.glob(groups))
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if str(self.folder) in line:
                yield f"mount {line}"
        for kind in _SYSV:
            for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]:
                if int(line.split()[0]) % 2**32 == self.key:
                    yield f"System V {kind} {line}"
        if Path("/dev/mqueue/soak").exists():
            yield "message queue soak"


def _children(process: psutil.Process, *, recursive: bool = False) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = process.children(recursive=recursive)
    except psutil.NoSuchProcess:
        return []
    return found


def _reap() -> None:
    """Take note of the ends of those whom this process has adopted."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _alive_below(pid: int, others: frozenset[int]) -> list[psutil.Process]:
    alive = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.pid not in others and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def _owned(folder: Path, uids: range) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                if path.lstat().st_uid in uids:
                    yield path
