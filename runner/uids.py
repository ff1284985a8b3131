"""User ids for the processes and the home of each user, in the tiers that give them one.

The id follows from the user's name where that is free, so that two runners with a state folder each give
the same user the same id, and two users hardly ever. What was given is recorded, and no id is given twice.

Source: architecture, decision "Usernames"; `docs/isolation.md`.
"""

import fcntl
import grp
import hashlib
import json
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.errors import CallError, Code

__all__ = ["Uids"]


@dataclass(frozen=True, slots=True)
class Uids:
    """The ids of one runner. Any number of processes may have the same.

    Attributes:
        state: The runner's state folder.
        among: What ids may be given.
    """

    state: Path
    among: range

    def of(self, segment: str) -> int:
        """Return the id of a user, by the segment of the user's home; the same for ever.

        Raises:
            CallError: All ids are given, or the record of them cannot be used.
        """
        with self._record() as (given, path):
            known = given.get(segment)
            if known is not None and known in self.among:
                return known
            given[segment] = self._free(segment, set(given.values()))
            new = path.with_suffix(".new")
            new.write_text(json.dumps(given))
            new.replace(path)
            return given[segment]

    def _free(self, segment: str, taken: set[int]) -> int:
        taken |= {entry.pw_uid for entry in pwd.getpwall()} | {entry.gr_gid for entry in grp.getgrall()}
        first = int.from_bytes(hashlib.sha256(segment.encode()).digest()[:8]) % len(self.among)
        for step in range(len(self.among)):
            uid = self.among[(first + step) % len(self.among)]
            if uid not in taken:
                return uid
        raise _unusable(f"all {len(self.among)} user ids are given; widen the setting `uid_range`")

    @contextmanager
    def _record(self) -> Iterator[tuple[dict[str, int], Path]]:
        path = self.state / "uids.json"
        try:
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(
                self.state / "uids.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as error:
            raise _unusable(f"the state folder {self.state} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield _read(path), path
        except OSError as error:
            raise _unusable(f"the record {path} cannot be used: {error.strerror}") from error
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def _read(path: Path) -> dict[str, int]:
    try:
        return {str(segment): int(uid) for segment, uid in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError) as error:
        raise _unusable(
            f"the record {path} cannot be read; remove it when no home is left, and try again"
        ) from error


def _unusable(message: str) -> CallError:
    return CallError(Code.E_ISOLATION, message)
