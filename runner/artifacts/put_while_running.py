"""Files that a running tool puts into My Files with `runner.author`, stored at once.

The tool is alive while its file is read, and may change it meanwhile. That harms only the tool itself: the
bytes read are stored with their digest, and the file is opened as carefully as any other output. An
acknowledged put is a promise, so the file stays even if the call is killed later.

Source: document 004, Phase 0; requirements S4-3, S4-63, S4-85 and S4-86; architecture, decision "Time".
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.artifacts.named_file import OpenHome, collect
from runner.contract.error_messages import too_large
from runner.contract.jsonable import NotJsonError, jsonable
from runner.errors import CallError, Code
from runner.files.my_files import MyFiles
from runner.formats.database_logs import LogBudget
from runner.formats.mime import is_mime
from runner.store.protocol import Origin, Record
from runner.system.threads import in_thread

__all__ = ["RunningPuts"]

_SOURCE_CHARS = 1024
_NO_HOME = "this tool has no home to put files from; give it a parameter `username: str`"


@dataclass(slots=True, kw_only=True)
class RunningPuts:
    """The puts of one call.

    Attributes:
        files: My Files of the user.
        home: The home of the call, or None if its tool has none.
        max_bytes: Largest file.
        logs: The budget of the call for logs beside databases.
        inodes: Change times of the stored files, in ns since 1970, by inode.
    """

    files: MyFiles
    home: OpenHome | None
    max_bytes: int
    logs: LogBudget
    inodes: dict[int, int] = field(default_factory=dict)
    _stored_bytes: int = 0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def put(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Store a file that the tool names; return its reference, or `{"refused": reason}`."""
        try:
            # One at a time, so that the total is known.
            async with self._lock:
                record = await self._put(params)
        except CallError as error:
            return {"refused": error.message}
        except (OSError, EOFError) as error:
            return {"refused": f"the file cannot be read: {error}"}
        return record.ref.model_dump()

    async def _put(self, params: Mapping[str, Any]) -> Record:
        name, mime = params.get("name"), params.get("mime")
        if self.home is None:
            raise CallError(Code.E_INVALID_PATH, _NO_HOME)
        left = self.max_bytes - self._stored_bytes
        opened = collect(params.get("path"), self.home, max_bytes=self.max_bytes, logs=self.logs)
        async with in_thread(opened) as found:
            if found.size > left:
                raise too_large(found.size, left)
            changed_ns = found.changed_ns
            record = await self.files.put(
                found.fd,
                name=name if isinstance(name, str) else "artifact",
                mime=mime if is_mime(mime) else None,
                origin=Origin.GENERATED,
                about=_small(params.get("source")),
            )
            self.inodes[found.inode] = changed_ns
        self._stored_bytes += record.size
        return record


def _small(source: object) -> Mapping[str, Any]:
    """Return the tool's description of the file's source, if it is small and valid JSON."""
    if not isinstance(source, Mapping) or len(repr(source)) > _SOURCE_CHARS:
        return {}
    try:
        return dict(jsonable(source))
    except NotJsonError:
        return {}
