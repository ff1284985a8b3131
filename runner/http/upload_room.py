"""Reservations of users' quotas for uploads in flight.

The store checks the quota when it stores a file. Until then an upload reserves part of it: the announced
length, or else the bytes received so far. So uploads of one user that do not fit together are refused while
they are received, not once they are on disk.

Equal content counts once. An upload as long as a stored file may have the same content, so it is accepted if
the user has no other upload in flight; the store compares the content.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from runner.errors import CallError
from runner.files.my_files import MyFiles
from runner.http.responses import Refusal
from runner.store.retention import Quota, check_quota

__all__ = ["UploadRoom", "UploadRooms"]

# A bucket that does not answer delays an upload no longer than this; the store refuses it later.
_ASK_S = 2.0
_UPLOADS_PER_USER = 16


@dataclass(slots=True, eq=False)
class _User:
    """The uploads of one user, and the last known lengths of the user's stored files, with their sum."""

    rooms: list["UploadRoom"] = field(default_factory=list)
    sizes: Sequence[int] = ()
    used: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class UploadRooms:
    """The uploads of all users.

    Attributes:
        quota: Returns the current quota of each user.
    """

    quota: Callable[[], Quota]
    _users: dict[str, _User] = field(init=False, default_factory=dict)

    @asynccontextmanager
    async def one(self, files: MyFiles) -> AsyncIterator["UploadRoom"]:
        """Reserve the bytes of one upload until the block ends, with the upload stored or abandoned.

        Raises:
            Refusal: 429: the user has too many uploads in flight.
        """
        user = self._users.setdefault(files.user, _User())
        if len(user.rooms) >= _UPLOADS_PER_USER:
            raise Refusal(429, f"{_UPLOADS_PER_USER} uploads of yours are under way; send this one later")
        room = UploadRoom(quota=self.quota, files=files, user=user)
        user.rooms.append(room)
        try:
            await room.ask()
            yield room
            if len(user.rooms) > 1:
                # The store now counts this upload, and the others are checked against its new usage.
                await room.ask()
        finally:
            user.rooms.remove(room)
            if not user.rooms:
                del self._users[files.user]


@dataclass(slots=True, kw_only=True, eq=False)
class UploadRoom:
    """The reservation of one upload.

    Attributes:
        quota: Returns the current quota of its user.
        files: The files of its user.
        user: All uploads of its user.
        reserved: The bytes that the user's other uploads cannot use.
    """

    quota: Callable[[], Quota]
    files: MyFiles
    user: _User
    reserved: int = 0
    _came: int = 0
    _lengths: range = range(0)

    async def expect(self, least: int, most: int) -> None:
        """Reserve the length that the client announced.

        Raises:
            CallError: `E_QUOTA` or `E_FILE_TOO_LARGE`.
        """
        self._lengths = range(least, most + 1)
        await self._reserve(least)

    async def take(self, count: int) -> None:
        """Count received bytes; reserve those beyond the announced length.

        Raises:
            CallError: As from `expect`.
        """
        self._came += count
        if self._came > self.reserved:
            await self._reserve(self._came)

    async def ask(self) -> None:
        """Read the user's usage from the store; on failure use the last known value."""
        with contextlib.suppress(CallError, TimeoutError):
            async with asyncio.timeout(_ASK_S):
                sizes = await self.files.sizes()
            self.user.sizes, self.user.used = sizes, sum(sizes)

    async def _reserve(self, count: int) -> None:
        # At once, so that no other upload reserves these bytes while the store is queried.
        before, self.reserved = self.reserved, count
        try:
            self._check()
        except CallError:
            # Files may have been removed meanwhile.
            await self.ask()
            try:
                self._check()
            except CallError:
                self.reserved = before
                raise

    def _check(self) -> None:
        others = sum(room.reserved for room in self.user.rooms if room is not self)
        may_be_stored = bool(self._lengths) and not others
        if may_be_stored and any(self.reserved <= size for size in self.user.sizes if size in self._lengths):
            return
        check_quota(self.reserved, self.user.used + others, self.quota())
