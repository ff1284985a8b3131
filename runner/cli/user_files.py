"""The files of one user in one session, as a shell and the available-files block see them.

The files are the store's; what is here is whose they are, and what else ends with the session.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.files.my_files import MyFiles, open_library
from runner.homes.homes import Homes
from runner.settings.model import Settings
from runner.store.protocol import Origin, Record
from runner.users.identity import User

__all__ = ["UserFiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFiles:
    """The files of one user. A `runner.cli.run_files.Files`.

    Attributes:
        settings: The effective settings.
        files: My Files of the user, in the session.
    """

    settings: Settings
    files: MyFiles

    @classmethod
    def of(cls, settings: Settings, user: User, *, session: str | None = None) -> "UserFiles":
        """Return the files of a user in the store that the settings name."""
        return cls(settings=settings, files=open_library(settings).of(user.name, session))

    async def list(self) -> Sequence[Record]:
        """Return all files, by name."""
        return await self.files.all()

    async def find(self, name: str) -> Record | None:
        """Return the file of a name, as anyone may write it."""
        return await self.files.find(name)

    async def nearest(self, name: str) -> Sequence[str]:
        """Return names of files that `name` may have meant."""
        return await self.files.nearest(name)

    async def put(self, source: int, *, name: str) -> Record:
        """Keep an open regular file as uploaded.

        Raises:
            OSError: It is no regular file, or cannot be read.
            CallError: `E_STORE` or `E_QUOTA`; nothing was kept.
        """
        return await self.files.put(source, name=name, origin=Origin.UPLOADED)

    async def copy_to(self, record: Record, target: int) -> None:
        """Write a file's bytes to an open file."""
        async with self.files.open(record) as content:
            await content.copy_to(target)

    async def remove(self, record: Record) -> None:
        """Remove a file."""
        await self.files.remove(record.shown)

    async def end_session(self) -> Mapping[str, Any]:
        """End the session; return how many files went, and whether the home did."""
        removed = await self.files.end_session()
        homes = Homes.of(self.settings)
        emptied = await asyncio.to_thread(homes.end, self.files.user)
        count = len(removed or ())
        return {"session": self.files.session, "files_removed": count, "home_emptied": emptied}
