"""The one process that keeps all servers of an installation, and what is asked of it.

Servers are nobody's children for good: a supervisor that is killed leaves them running, and the next finds
them in the record and takes them over. So no call is lost with it.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.errors import CallError, StartError, UsageError
from runner.settings.settings import Settings
from runner.system import locks
from runner.system.state_files import open_lock
from runner.system.uids import Uids
from runner.up.bounds import kill_group, remove_groups
from runner.up.folders import Folders
from runner.up.keeping import Keeping
from runner.up.listeners import Listeners
from runner.up.plan import Server, planned
from runner.up.record import ServerRecord, process_of, read_record, write_record
from runner.up.users_file import read_users_file

__all__ = ["Supervisor", "check_users", "only_one"]

log = logging.getLogger(__name__)


@contextmanager
def only_one(folders: Folders) -> Iterator[bool]:
    """Be the only one who keeps the servers of a folder; False where somebody else is."""
    fd = open_lock(folders.supervisor / "lock")
    try:
        yield locks.try_lock(fd)
    finally:
        os.close(fd)


def check_users(path: Path, folders: Folders) -> None:
    """Refuse a file of users that could not be applied, before anything is begun.

    Raises:
        UsageError: What is wrong with it.
    """
    planned(read_users_file(path), path, folders.users, ports={}, uid_of=lambda _: None)


class Supervisor:
    """Keeps the servers of one installation. One at a time has its folder: see `only_one`.

    Args:
        folders: Its folders.
        settings: The effective settings, of which the range of user ids counts.
    """

    def __init__(self, folders: Folders, settings: Settings) -> None:
        self._folders = folders
        self._settings = settings
        self._kept: dict[str, Keeping] = {}
        self._left: dict[str, ServerRecord] = read_record(folders.record)
        self._listeners = Listeners()
        self._turn = asyncio.Lock()
        self._writing = threading.Lock()

    def take_over(self) -> None:
        """Watch the servers that a supervisor before this one has left."""
        for name, entry in list(self._left.items()):
            if process_of(entry) is not None:
                self._kept[name] = Keeping(entry, self._folders, self._record, None, self._listeners)
            else:
                # It died while nobody watched: what it left in its group goes, and the group.
                groups = tuple(map(Path, entry.groups))
                kill_group(groups)
                remove_groups(groups)

    async def up(self, path: Path) -> dict[str, Any]:
        """Make the servers those of a file of users: start, start anew, end; say what was done.

        Raises:
            UsageError: The file is wrong; nothing has changed.
            StartError: User ids cannot be given.
        """
        async with self._turn:
            wanted = self._planned(path)
            gone = [name for name in self._kept if name not in wanted]
            changed = [name for name, server in wanted.items() if self._differs(name, server)]
            moved = [name for name in changed if self._kept[name].entry.address != wanted[name].address]
            self._refuse([*gone, *moved])
            await self._end([*gone, *changed])
            started = [name for name in wanted if name not in self._kept]
            for name in started:
                self._begin(wanted[name])
            for name in wanted.keys() - set(started):
                self._keep_on(wanted[name])
            kept = [self._kept[name] for name in wanted]
        await asyncio.gather(*(one.settled() for one in kept))
        done = {
            "started": [name for name in started if name not in changed],
            "restarted": changed,
            "ended": gone,
        }
        log.info("file of users applied", extra={"file": str(path), **{k: len(v) for k, v in done.items()}})
        return {**done, "servers": await self.shown()}

    async def down(self, names: Sequence[str]) -> dict[str, Any]:
        """End the servers of some users, or of all; they stay ended until the next `up`.

        Raises:
            UsageError: There is no server of somebody.
        """
        async with self._turn:
            unknown = [name for name in names if name not in self._kept]
            if unknown:
                raise UsageError(
                    f"no server of {', '.join(map(repr, unknown))} runs here; `runner ps` lists them"
                )
            ended = list(names) or list(self._kept)
            self._refuse(ended)
            await self._end(ended)
        return {"ended": ended, "servers": await self.shown()}

    async def shown(self) -> list[dict[str, Any]]:
        """Return what there is to say of each server."""
        return list(await asyncio.gather(*(self._kept[name].shown() for name in sorted(self._kept))))

    def _planned(self, path: Path) -> dict[str, Server]:
        file = read_users_file(path)
        uids = Uids(self._folders.supervisor, self._settings.uids, self._settings.homes)

        def uid_of(segment: str) -> int | None:
            return uids.of(segment) if os.geteuid() == 0 else None

        ports = {name: entry.port for name, entry in self._left.items()}
        try:
            return planned(file, path, self._folders.users, ports=ports, uid_of=uid_of)
        except CallError as error:
            raise StartError(error.message) from error

    def _differs(self, name: str, server: Server) -> bool:
        """Say whether a server runs, or waits to, that is no more what it is to be."""
        return name in self._kept and self._kept[name].entry.digest != server.digest

    def _begin(self, server: Server) -> None:
        entry = ServerRecord(
            name=server.name,
            segment=server.segment,
            port=server.port,
            host=server.host,
            uid=os.geteuid() if server.uid is None else server.uid,
            digest=server.digest,
            said={},
            stop_s=server.stop_s,
        )
        self._kept[server.name] = Keeping(entry, self._folders, self._record, server, self._listeners)
        self._kept[server.name].begin()

    def _keep_on(self, server: Server) -> None:
        """Leave a server as it is; one that was only found is kept from now on, one that waits is started."""
        kept = self._kept[server.name]
        if kept.server is None:
            kept.server = server
            kept.begin()
        kept.hurry()

    def _refuse(self, names: Sequence[str]) -> None:
        """Keep nobody waiting at the address of a server that is about to end for good, or to move."""
        for name in names:
            self._kept[name].refuse()

    async def _end(self, names: Sequence[str]) -> None:
        for name in names:
            if self._kept[name].server is None:
                self._kept[name].begin()
        await asyncio.gather(*(self._kept[name].end() for name in names))
        for name in names:
            self._left[name] = self._kept.pop(name).entry.without_process()
        with contextlib.suppress(OSError):
            self._record()

    def _record(self) -> None:
        # Servers are started in threads, and what is written last must be what is newest.
        with self._writing:
            self._left |= {name: kept.entry for name, kept in list(self._kept.items())}
            write_record(self._folders.record, self._left)
