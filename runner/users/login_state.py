"""State of logins: registered clients, pending logins, tokens of the provider.

A folder for each kind, in `logins` of the state folder; an entry is a file that nobody else may read, named
by the digest of its key, so that no listing shows a code or a token. Entries end by themselves. Strangers can
have some made, so there is a bound: one more takes away the one that was used longest ago.

An `AsyncKeyValue` of the package py-key-value-aio, as FastMCP's proxies take it.

Source: `docs/serving.md`.
"""

import contextlib
import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat

from anyio.to_thread import run_sync

from runner.errors import StartError
from runner.system.key_values import KeyByKey
from runner.system.state_files import Damaged, holding, make_folder, read_whole, set_apart, write_whole

__all__ = ["MOST_ENTRIES", "LoginState", "signing_key"]

log = logging.getLogger(__name__)

MOST_ENTRIES = 10_000
"""Entries of one kind."""

_FOLDER = "logins"
_KEY = "login-key.json"
_KEY_BYTES = 32


class LoginState(KeyByKey):
    """The entries of one state folder.

    Args:
        state_dir: The state folder.
        most: How many of one kind there may be.
        clock: Says the present time in seconds since the epoch.
    """

    def __init__(
        self, state_dir: Path, *, most: int = MOST_ENTRIES, clock: Callable[[], float] = time.time
    ) -> None:
        self._state = state_dir
        self._most = most
        self._clock = clock

    async def get(self, key: str, *, collection: str | None = None) -> dict[str, Any] | None:
        """Return an entry, or None."""
        return (await self.ttl(key, collection=collection))[0]

    async def ttl(
        self, key: str, *, collection: str | None = None
    ) -> tuple[dict[str, Any] | None, float | None]:
        """Return an entry and how long it still counts, in seconds; None for what has no end."""
        return await run_sync(self._read, self._path(key, collection))

    async def put(
        self,
        key: str,
        value: Mapping[str, Any],
        *,
        collection: str | None = None,
        ttl: SupportsFloat | None = None,
    ) -> None:
        """Keep an entry for so many seconds, or without an end.

        Raises:
            OSError: It cannot be written.
        """
        end = None if ttl is None else self._clock() + float(ttl)
        await run_sync(self._write, self._path(key, collection), {"end": end, "value": dict(value)})

    async def delete(self, key: str, *, collection: str | None = None) -> bool:
        """Remove an entry; say whether there was one."""
        return await run_sync(_removed, self._path(key, collection))

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
            # Its user logs in once more.
            log.warning("login entry damaged", extra={"problem": str(error)})
            return None, None
        if left is not None and left <= 0:
            _removed(path)
            return None, None
        with contextlib.suppress(OSError):
            os.utime(path)
        return (value, left) if isinstance(value, dict) else (None, None)

    def _write(self, path: Path, note: Mapping[str, Any]) -> None:
        make_folder(self._state, _FOLDER, path.parent.name)
        if not path.exists():
            self._make_room(path.parent)
        write_whole(path, json.dumps(note).encode())

    def _make_room(self, folder: Path) -> None:
        with os.scandir(folder) as found:
            entries = list(found)
        if len(entries) < self._most:
            return
        used = sorted((each.stat().st_mtime, each.path) for each in entries)
        # Some at once, so that not every further one looks at all.
        for _, path in used[: len(used) - self._most + max(1, self._most // 50)]:
            _removed(Path(path))


def signing_key(state_dir: Path) -> bytes:
    """Return the key that signs the tokens of logins; made at first use, and the same after a restart.

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
