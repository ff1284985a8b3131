"""User ids for the processes and the home of each user, in tiers with an id for each user.

The id is derived from the user's name if it is free, so that two runners with separate state folders usually
give a user the same id, and rarely give two users one id. Ids are recorded, and no id is given twice.

Processes without a user yet have an id too. They become the first user's, and the kernel counts the
processes of an id over the whole machine: so each pool holds an id of its own while it lasts.

The record has a copy, and both are on disk before an id is used: a power cut loses neither. Homes
survive the loss of the state folder, and other runners have their own records. So the owners of existing
homes are read, too, whenever an id is given.

Source: architecture, decision "Usernames"; `docs/isolation.md`.
"""

import grp
import hashlib
import json
import logging
import os
import pwd
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.errors import CallError, Code
from runner.system import locks
from runner.system.own_folders import HIDDEN, folders_in, open_homes
from runner.system.state_files import Damaged, make_folder, open_lock, read_whole, set_apart, write_whole

__all__ = ["Uids"]

_log = logging.getLogger(__name__)

# Prefix that no user's segment has.
_NOBODY = "=nobody-"


@dataclass(frozen=True, slots=True)
class Uids:
    """The ids of one runner. Any number of processes may share them.

    Attributes:
        state: The runner's state folder.
        among: The range of ids to give.
        homes: The folder of homes, whose owners reveal the ids of users; None for none.
        lender: The id of all users if files of its owner are lent; then no ids are recorded.
    """

    state: Path
    among: range
    homes: Path | None = None
    lender: int | None = None

    def of(self, segment: str) -> int:
        """Return the id of a user, by the segment of the user's home; it never changes.

        Raises:
            CallError: All ids are in use, or their record is unusable.
        """
        if self.lender is not None:
            return self.lender
        digest = hashlib.sha256(segment.encode()).digest()
        with self._record() as ids:
            return self._assign(ids, segment, first=int.from_bytes(digest[:8]))

    def assignments(self) -> dict[str, int]:
        """Return the recorded ids, by the segments of the users' homes."""
        return {name: uid for name, uid in self._read().items() if not name.startswith(_NOBODY)}

    @contextmanager
    def of_nobody(self) -> Iterator[int]:
        """Hold an id without a user, which no other process with this state folder holds.

        It is reused later, so there are never more than were held at one time. With another state folder
        the id differs, except by chance, since there is no name to derive it from.

        Raises:
            CallError: As for users.
        """
        if self.lender is not None:
            yield self.lender
            return
        with self._record() as ids:
            number, held = self._hold_first()
            try:
                uid = self._assign(ids, f"{_NOBODY}{number}", first=secrets.randbits(64))
            except BaseException:
                os.close(held)
                raise
        try:
            yield uid
        finally:
            os.close(held)

    def _assign(self, ids: dict[str, int], name: str, *, first: int) -> int:
        """Return the id recorded for a name, or record the first free one from `first` on."""
        known = ids.get(name)
        if known is not None and known in self.among:
            return known
        in_use = self._learn(ids)
        if name not in ids or ids[name] not in self.among:
            ids[name] = self._free(first, in_use)
        self._write(ids)
        return ids[name]

    def _learn(self, ids: dict[str, int]) -> set[int]:
        """Record the owners of existing homes without a recorded id; return all ids in use."""
        in_use = set(ids.values())
        for name, uid in self._owners():
            # Two homes with one id are a mistake; the first keeps it.
            if name not in ids and uid not in in_use:
                ids[name] = uid
            in_use.add(uid)
        return in_use

    def _owners(self) -> list[tuple[str, int]]:
        if self.homes is None:
            return []
        with open_homes(self.homes) as homes_fd:
            found = sorted(folders_in(homes_fd, self.among))
        return [(name, uid) for name, uid in found if uid in self.among and not name.startswith(HIDDEN)]

    def _write(self, ids: dict[str, int]) -> None:
        """Write record and copy, one after the other, so that one of them is always complete."""
        for path in (self._path, self._copy):
            # A damaged file is quarantined before it is replaced.
            _read(path)
            write_whole(path, json.dumps(ids).encode())

    def _free(self, first: int, taken: set[int]) -> int:
        known = {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
        for step in range(len(self.among)):
            uid = self.among[(first + step) % len(self.among)]
            if uid not in taken and uid not in known:
                return uid
        raise _unusable(f"all {len(self.among)} user ids are given; widen the setting `uid_range`")

    def _hold_first(self) -> tuple[int, int]:
        """Return the first unlocked number, and the descriptor that locks it until it is closed."""
        number = 0
        while True:
            lock = open_lock(self.state / f"nobody-{number}.lock")
            if locks.try_lock(lock):
                return number, lock
            os.close(lock)
            number += 1

    @property
    def _path(self) -> Path:
        return self.state / "uids.json"

    @property
    def _copy(self) -> Path:
        return self.state / "uids-copy.json"

    def _read(self) -> dict[str, int]:
        """Return the recorded ids; from the copy if the record is lost or damaged."""
        for path in (self._path, self._copy):
            ids = _read(path)
            if ids is not None:
                if path != self._path:
                    _log.warning("user ids restored from copy", extra={"users": len(ids)})
                    self._write(ids)
                return ids
        # The homes reveal the ids, whenever one is given.
        return {}

    @contextmanager
    def _record(self) -> Iterator[dict[str, int]]:
        try:
            make_folder(self.state)
            lock = open_lock(self.state / "uids.lock")
        except OSError as error:
            raise _unusable(
                f"the state folder {self.state} (setting `state_dir`) cannot be used: {error.strerror}"
            ) from error
        try:
            with locks.held(lock):
                yield self._read()
        except OSError as error:
            raise _unusable(
                f"the record of user ids ({self._path}, setting `state_dir`) cannot be used: {error.strerror}"
            ) from error


def _read(path: Path) -> dict[str, int] | None:
    """Return the contents of a record; None without one, or if it was damaged and is now quarantined."""
    try:
        return {str(segment): int(uid) for segment, uid in json.loads(read_whole(path)).items()}
    except FileNotFoundError:
        return None
    except Damaged as damage:
        set_apart(path, str(damage))
    except (ValueError, AttributeError, TypeError, RecursionError):
        set_apart(path, "it is not a record of user ids")
    return None


def _unusable(message: str) -> CallError:
    return CallError(Code.E_ISOLATION, message)
