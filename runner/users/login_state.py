"""State of logins: registered clients, pending logins, tokens of the provider.

Each kind has a folder, in `logins` of the state folder. An entry is a file that only its owner may read. Its
name is the digest of its key, so that no listing shows a code or a token. Entries expire. Strangers can
create some, so their number and bytes are bounded: the least recently used are evicted.

An `AsyncKeyValue` of the package py-key-value-aio, as FastMCP's proxies take it.

Source: `docs/serving.md`.
"""

import contextlib
import hashlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat

from anyio.to_thread import run_sync

from runner.errors import StartError
from runner.system.state_files import Damaged, holding, make_folder, read_whole, set_apart, write_whole

__all__ = ["MOST_BYTES", "MOST_ENTRIES", "LoginState", "signing_key"]

log = logging.getLogger(__name__)

MOST_ENTRIES = 10_000
"""Most entries of one kind."""

MOST_BYTES = 128 * 1024 * 1024
"""Most bytes of the entries of one kind."""

_FOLDER = "logins"
_KEY = "login-key.json"
_KEY_BYTES = 32


class LoginState:
    """The entries of one state folder.

    Args:
        state_dir: The state folder.
        most: Most entries of one kind.
        most_bytes: Most bytes of one kind.
        clock: Returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        most: int = MOST_ENTRIES,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = state_dir
        self._most = most
        self._most_bytes = most_bytes
        self._clock = clock
        self._lock = threading.Lock()
        # By folder: entries and bytes that may be written before its next scan.
        self._room: dict[Path, tuple[int, int]] = {}

    async def get(self, key: str, *, collection: str | None = None) -> dict[str, Any] | None:
        """Return an entry, or None."""
        return (await self.ttl(key, collection=collection))[0]

    async def ttl(
        self, key: str, *, collection: str | None = None
    ) -> tuple[dict[str, Any] | None, float | None]:
        """Return an entry and its remaining lifetime, in seconds; None if it does not expire."""
        return await run_sync(self._read, self._path(key, collection))

    async def put(
        self,
        key: str,
        value: Mapping[str, Any],
        *,
        collection: str | None = None,
        ttl: SupportsFloat | None = None,
    ) -> None:
        """Store an entry for `ttl` seconds, or without expiry.

        Raises:
            OSError: It cannot be written.
        """
        end = None if ttl is None else self._clock() + float(ttl)
        await run_sync(self._write, self._path(key, collection), {"end": end, "value": dict(value)})

    async def delete(self, key: str, *, collection: str | None = None) -> bool:
        """Remove an entry; return whether it existed."""
        return await run_sync(_removed, self._path(key, collection))

    async def get_many(
        self, keys: Sequence[str], *, collection: str | None = None
    ) -> list[dict[str, Any] | None]:
        """Return several entries."""
        return [await self.get(key, collection=collection) for key in keys]

    async def ttl_many(
        self, keys: Sequence[str], *, collection: str | None = None
    ) -> list[tuple[dict[str, Any] | None, float | None]]:
        """Return several entries and their remaining lifetimes, in seconds."""
        return [await self.ttl(key, collection=collection) for key in keys]

    async def put_many(
        self,
        keys: Sequence[str],
        values: Sequence[Mapping[str, Any]],
        *,
        collection: str | None = None,
        ttl: SupportsFloat | None = None,
    ) -> None:
        """Store several entries."""
        for key, value in zip(keys, values, strict=True):
            await self.put(key, value, collection=collection, ttl=ttl)

    async def delete_many(self, keys: Sequence[str], *, collection: str | None = None) -> int:
        """Remove several entries; return how many there were."""
        return sum([await self.delete(key, collection=collection) for key in keys])

    def _path(self, key: str, collection: str | None) -> Path:
        kind = hashlib.sha256((collection or "").encode()).hexdigest()[:16]
        return self._state / _FOLDER / kind / hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()

    def _read(self, path: Path) -> tuple[dict[str, Any] | None, float | None]:
        try:
            note = json.loads(read_whole(path))
            end, value = note["end"], note["value"]
            left = None if end is None else float(end) - self._clock()
        except FileNotFoundError:
            return None, None
        except (Damaged, ValueError, LookupError, TypeError) as error:
            # Its user has to log in again.
            log.warning("login entry damaged", extra={"problem": str(error)})
            return None, None
        if left is not None and left <= 0:
            _removed(path)
            return None, None
        with contextlib.suppress(OSError):
            os.utime(path)
        return (value, left) if isinstance(value, dict) else (None, None)

    def _write(self, path: Path, note: Mapping[str, Any]) -> None:
        content = json.dumps(note).encode()
        make_folder(self._state, _FOLDER, path.parent.name)
        with self._lock:
            entries, size = self._room.get(path.parent, (0, 0))
            if entries < 1 or size < len(content):
                entries, size = self._made_room(path.parent, len(content))
            self._room[path.parent] = entries - 1, size - len(content)
        write_whole(path, content)

    def _made_room(self, folder: Path, size: int) -> tuple[int, int]:
        """Make room for 2 % of the entries and bytes, and at least for `size`; return that room."""
        room = max(1, self._most // 50), max(size, self._most_bytes // 50)
        used: list[tuple[float, int, str]] = []
        with os.scandir(folder) as found:
            for each in found:
                with contextlib.suppress(FileNotFoundError):
                    used.append((each.stat().st_mtime, each.stat().st_size, each.path))
        count, held = len(used), sum(length for _, length, _ in used)
        for _, length, path in sorted(used):
            if count + room[0] <= self._most and held + room[1] <= self._most_bytes:
                break
            _removed(Path(path))
            count, held = count - 1, held - length
        return room


def signing_key(state_dir: Path) -> bytes:
    """Return the key that signs the tokens of logins; made at first use, and kept across restarts.

    Raises:
        StartError: It can be neither read nor made.
    """
    path = state_dir / _KEY
    try:
        make_folder(state_dir)
        with holding(state_dir):
            try:
                return bytes.fromhex(json.loads(read_whole(path))["key"])
            except FileNotFoundError:
                pass
            except (Damaged, ValueError, LookupError, TypeError) as damage:
                set_apart(path, f"it holds no key ({damage}); all logins end")
            key = secrets.token_bytes(_KEY_BYTES)
            write_whole(path, json.dumps({"key": key.hex()}).encode())
            return key
    except OSError as error:
        raise StartError(
            f"the key of logins ({_KEY} in the folder of the setting state_dir) cannot be used: "
            f"{error.strerror}; see to the folder's disk and owner"
        ) from error


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
